#include "cache/trusted_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "cache/filesystem.hpp"

namespace quarterturn {

Status check_trusted(const struct stat& info, const std::string& path) {
  if (info.st_uid != geteuid() && info.st_uid != 0)
    return {Code::not_ours,
            fmt::format("{} belongs to user {}; code is loaded only from folders of "
                        "your own",
                        path, info.st_uid)};
  if ((info.st_mode & 022) != 0)
    return {Code::not_ours,
            fmt::format("{} can be written by others (mode {:o}); run chmod go-w on it", path,
                        info.st_mode & 0777)};
  return {};
}

Result<std::string> read_trusted(const std::string& path) {
  int file = -1;
  do {
    file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  } while (file < 0 && errno == EINTR);
  if (file < 0 && errno == ENOENT) return Status(Code::miss, "no such entry");
  if (file < 0) return system_status(errno, fmt::format("open {}", path));
  struct stat info {};
  Status status;
  if (fstat(file, &info) != 0)
    status = system_status(errno, fmt::format("examine {}", path));
  else if (!S_ISREG(info.st_mode))
    status = {Code::not_ours, fmt::format("{} is no file", path)};
  else
    status = check_trusted(info, path);
  std::string bytes;
  if (status.ok()) bytes.resize(static_cast<std::size_t>(info.st_size));
  std::size_t have = 0;
  while (status.ok() && have < bytes.size()) {
    const ssize_t got = read(file, bytes.data() + have, bytes.size() - have);
    if (got > 0)
      have += static_cast<std::size_t>(got);
    else if (got == 0)
      break;
    else if (errno != EINTR)
      status = system_status(errno, fmt::format("read {}", path));
  }
  close(file);
  if (!status.ok()) return status;
  bytes.resize(have);
  return bytes;
}

Status create_durably(const std::string& path, std::string_view bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return system_status(errno, fmt::format("create {}", path));
  close(file);
  auto status = append_durably(path, bytes);
  if (!status.ok()) unlink(path.c_str());
  return status;
}

Status append_durably(const std::string& path, std::string_view bytes) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return system_status(errno, fmt::format("open {}", path));
  Status status;
  while (!bytes.empty() && status.ok()) {
    const ssize_t put = write(file, bytes.data(), bytes.size());
    if (put >= 0)
      bytes.remove_prefix(static_cast<std::size_t>(put));
    else if (errno != EINTR)
      status = system_status(errno, fmt::format("write {}", path));
  }
  if (status.ok() && fchmod(file, 0600) != 0)
    status = system_status(errno, fmt::format("set the mode of {}", path));
  if (status.ok() && fsync(file) != 0) status = system_status(errno, fmt::format("sync {}", path));
  if (close(file) != 0 && status.ok()) status = system_status(errno, fmt::format("close {}", path));
  return status;
}

Result<std::string> make_private_folder() {
  const char* base = secure_getenv("TMPDIR");
  std::string name = base != nullptr && *base == '/' ? base : "/tmp";
  name += "/quarterturn-XXXXXX";
  if (mkdtemp(name.data()) == nullptr)
    return system_status(errno, fmt::format("create a private folder {}", name));
  return name;
}

}  // namespace quarterturn
