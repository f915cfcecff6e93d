#include "cache/file_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "cache/filesystem.hpp"

namespace quarterturn {

Result<FileLock> FileLock::acquire(const std::string& path, std::uint64_t byte,
                                   std::chrono::milliseconds wait, LockKind kind,
                                   const std::function<bool()>& give_up) {
  FileLock lock;
  do {
    lock.file_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  } while (lock.file_ < 0 && errno == EINTR);
  if (lock.file_ < 0) return system_status(errno, fmt::format("open the lock file {}", path));

  struct flock range {};
  range.l_type = kind == LockKind::exclusive ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(byte & 0x3fffffffffffffffull);
  range.l_len = 1;
  const auto deadline = std::chrono::steady_clock::now() + wait;
  auto pause = std::chrono::milliseconds(1);
  while (true) {
    // Locks of the open file description: POSIX locks would be lost when any thread closes the
    // file.
    if (fcntl(lock.file_, F_OFD_SETLK, &range) == 0) return lock;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EACCES) {
      return Status(Code::not_supported,
                    fmt::format("the file system of {} has no locks (errno {})", path, errno));
    }
    if (give_up && give_up()) return Status(Code::interrupted, "no longer needed");
    if (std::chrono::steady_clock::now() >= deadline)
      return Status(Code::busy, fmt::format("another process has held a lock of {} for {} ms", path,
                                            wait.count()));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(25));
  }
}

void FileLock::release() {
  // Closing drops the lock; the file stays, so that nobody can lock a file that is already
  // unlinked.
  if (file_ >= 0) close(file_);
  file_ = -1;
}

}  // namespace quarterturn
