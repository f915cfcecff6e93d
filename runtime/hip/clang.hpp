// Clang as a compiler for AMD GPUs: ROCm's own, or a distribution's, which needs no ROCm at all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"
#include "generator/target.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::hip {

/// Immutable; safe to use from many threads. Runs the compiler through a Worker with its limits.
class Clang {
 public:
  /// `wanted` (a command or a path) decides alone where it is not empty; else ROCm's clang, then
  /// clang-22 and clang in PATH. One that does not know gfx950, or has no linker for it, is passed
  /// over; `no_compiler` says what was tried.
  static Result<Clang> find(const std::string& wanted, const Worker& worker, WorkerLimits limits);

  /// "Debian clang version 22.1.8 (1~deb12u1) 0123456789abcdef": with a hash of the compiler and
  /// its linker, and no path.
  const std::string& identity() const { return identity_; }
  const std::string& command() const { return command_; }

  /// What decides the meaning of the text: language, optimisation, arithmetic, architecture.
  static std::vector<std::string> flags_for(const Target& target);

  /// Writes `text` to source.hip in `directory` and makes kernel.hsaco there; returns the log. A
  /// failure is `compile_failed` or `compile_timeout` with the log's beginning.
  Result<std::string> compile(std::string_view text, const Target& target,
                              const std::vector<std::string>& extra_flags,
                              const std::string& directory) const;

 private:
  Clang(std::string command, Worker worker, WorkerLimits limits)
      : command_(std::move(command)), worker_(std::move(worker)), limits_(limits) {}
  Status identify();

  std::string command_, identity_;
  Worker worker_;
  WorkerLimits limits_;
};

}  // namespace quarterturn::hip
