// Compiler: NVRTC as the runtime uses it, in a worker process where the helper program is
// installed, in this process where it is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"
#include "generator/target.hpp"
#include "runtime/cuda/nvrtc.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::cuda {

/// Immutable; safe to use from many threads, which then compile side by side.
class Compiler {
 public:
  /// The NVRTC that this driver can take (`driver_version` 13000 for CUDA 13.0; 0 = any, no driver
  /// needed).
  static Result<Compiler> find(int driver_version, const std::string& override_path, Worker worker,
                               WorkerLimits limits);

  /// Version and content of the library, without its path: part of every key of compiled code.
  std::string identity() const { return identity_.text(); }
  const std::string& path() const { return identity_.path; }

  /// Compiles `text` for `target` inside `directory` (source.cu, kernel.cubin). On failure the
  /// status carries the log's first errors; a compiler that was killed is `compile_timeout` or
  /// `compile_failed`.
  Result<Cubin> compile(std::string_view text, const Target& target,
                        const std::vector<std::string>& flags, const std::string& directory) const;

 private:
  Compiler(NvrtcIdentity identity, Worker worker, WorkerLimits limits)
      : identity_(std::move(identity)), worker_(std::move(worker)), limits_(limits) {}

  NvrtcIdentity identity_;
  Worker worker_;
  WorkerLimits limits_;
  std::string helper_;  ///< quarterturn-nvrtc; empty: compile in process
};

}  // namespace quarterturn::cuda
