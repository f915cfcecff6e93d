// Locks go away with their owner, and waits end.
#include "cache/file_lock.hpp"

#include <doctest/doctest.h>
#include <signal.h>

#include <thread>

#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace std::chrono_literals;

TEST_CASE("file_lock.acquire excludes threads and processes, byte by byte") {
  test::Folder folder;
  const auto path = folder / "lock";
  auto first = FileLock::acquire(path, 7, 1s);
  REQUIRE(first.ok());
  CHECK(FileLock::acquire(path, 8, 0ms).ok());
  std::thread([&] {
    CHECK(FileLock::acquire(path, 7, 30ms).status().code() == Code::busy);
  }).join();
  CHECK(test::Child([&]() -> std::string {
          const auto second = FileLock::acquire(path, 7, 30ms);
          CHILD_CHECK(second.status().code() == Code::busy);
          CHILD_CHECK(second.status().message().find(path) != std::string::npos);
          return {};
        }).wait() == "");
  first->release();
  CHECK(FileLock::acquire(path, 7, 0ms).ok());
}

TEST_CASE("file_lock.acquire takes over at once from an owner that was killed") {
  test::Folder folder;
  const auto path = folder / "lock";
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  test::Child owner([&]() -> std::string {
    const auto lock = FileLock::acquire(path, 1, 1s);
    CHILD_OK(lock);
    const auto ignored = write(ready[1], "x", 1);
    (void)ignored;
    pause();
    return {};
  });
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(FileLock::acquire(path, 1, 0ms).status().code() == Code::busy);
  owner.kill_now();
  (void)owner.wait();
  CHECK(FileLock::acquire(path, 1, 0ms).ok());
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("file_lock.acquire gives up when the caller no longer needs it") {
  test::Folder folder;
  const auto held = FileLock::acquire(folder / "lock", 0, 0ms);
  int asked = 0;
  const auto second =
      FileLock::acquire(folder / "lock", 0, 10s, LockKind::exclusive, [&] { return ++asked == 3; });
  CHECK(second.status().code() == Code::interrupted);
  CHECK(asked == 3);
  CHECK(FileLock::acquire(folder / "no/such/folder", 0, 0ms).status().code() == Code::io_error);
}

TEST_CASE("file_lock.acquire lets many share, and none beside an exclusive owner") {
  test::Folder folder;
  const auto path = folder / "lock";
  auto one = FileLock::acquire(path, 0, 0ms, LockKind::shared);
  auto two = FileLock::acquire(path, 0, 0ms, LockKind::shared);
  REQUIRE(one.ok());
  REQUIRE(two.ok());
  CHECK(FileLock::acquire(path, 0, 0ms).status().code() == Code::busy);
  one->release();
  two->release();
  const auto alone = FileLock::acquire(path, 0, 0ms);
  CHECK(alone.ok());
  CHECK(FileLock::acquire(path, 0, 0ms, LockKind::shared).status().code() == Code::busy);
}
