// Compiler: hipRTC where ROCm and the helper program are installed, else clang.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"
#include "generator/target.hpp"
#include "runtime/hip/clang.hpp"
#include "runtime/hip/code_object.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::hip {

/// What the user says of compilers; empty: find them.
struct CompilerChoice {
  std::string hiprtc;  ///< path of libhiprtc
  std::string clang;   ///< command or path; where it is given alone, hipRTC is not looked for
};

struct Compiled {
  std::string code;  ///< a code object
  std::string log;
  KernelNote note;  ///< of the entry
};

/// Immutable; safe to use from many threads, which then compile side by side.
class Compiler {
 public:
  /// The compiler that knows `arch`. hipRTC always runs in the helper process; without the helper
  /// it is not used.
  static Result<Compiler> find(const CompilerChoice& choice, std::string_view arch, Worker worker,
                               WorkerLimits limits);

  /// Name, version and content, without a path: part of every key of compiled code.
  const std::string& identity() const { return identity_; }

  /// Compiles `text` for `target` inside `directory`, and reads what the code object says of
  /// `entry`.
  Result<Compiled> compile(std::string_view text, std::string_view entry, const Target& target,
                           const std::vector<std::string>& flags,
                           const std::string& directory) const;

 private:
  Compiler(Worker worker, WorkerLimits limits) : worker_(std::move(worker)), limits_(limits) {}
  Status find_hiprtc(const std::string& override_path, std::string_view arch);
  Result<std::string> by_hiprtc(std::string_view text, const Target& target,
                                const std::vector<std::string>& flags,
                                const std::string& directory) const;

  Worker worker_;
  WorkerLimits limits_;
  std::string identity_;
  std::string helper_, hiprtc_;  ///< paths; empty: clang compiles
  std::optional<Clang> clang_;
};

}  // namespace quarterturn::hip
