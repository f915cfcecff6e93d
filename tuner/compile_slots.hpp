// CompileSlots: how many compilers run at once, over all processes that tune together.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cache/file_lock.hpp"

namespace quarterturn {

/// Cores that this process may use: its affinity, its cgroup's quota, and what Slurm gave the task
/// (SLURM_CPUS_PER_TASK). At least 1.
std::size_t usable_cores();
/// The same from what was found; `slurm` is the variable's text, empty when it is not set.
std::size_t cores_within(std::int64_t detected, const std::string& slurm);

/// Each slot is a byte of a file, locked while a compiler runs: the kernel frees those of a process
/// that is killed.
class CompileSlots {
 public:
  CompileSlots(std::string path, std::size_t count) : path_(std::move(path)), count_(count) {}

  /// Waits for a free slot, until `give_up` returns true. Where the file system has no locks there
  /// is nothing to wait for.
  FileLock take(const std::function<bool()>& give_up) const;

 private:
  std::string path_;
  std::size_t count_;
};

}  // namespace quarterturn
