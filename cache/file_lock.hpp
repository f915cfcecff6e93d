// FileLock: a lock on one byte of a file, which the kernel drops when its owner dies.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "generator/status.hpp"

namespace quarterturn {

enum class LockKind { exclusive, shared };

/// Between processes and between threads: the lock belongs to the open file, not to the process.
class FileLock {
 public:
  FileLock() = default;
  ~FileLock() { release(); }
  FileLock(FileLock&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
  FileLock& operator=(FileLock&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }

  /// Waits until the lock is had, `wait` is over (busy, naming the file) or `give_up` returns true
  /// (interrupted). not_supported: the file system has no such locks.
  static Result<FileLock> acquire(const std::string& path, std::uint64_t byte,
                                  std::chrono::milliseconds wait,
                                  LockKind kind = LockKind::exclusive,
                                  const std::function<bool()>& give_up = {});
  void release();

 private:
  int file_ = -1;
};

}  // namespace quarterturn
