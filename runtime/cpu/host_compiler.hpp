// HostCompiler: the C++ compiler of this machine, which turns emitted CPU kernels into shared
// objects.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"
#include "generator/target.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::cpu {

/// One compilation, as it was done.
struct Compilation {
  std::string log;      ///< what the compiler said, also when it succeeded
  std::string command;  ///< one line, as a shell would take it
  std::int64_t milliseconds = 0;
};

/// Immutable; safe to use from many threads. Runs the compiler through a Worker with its limits.
class HostCompiler {
 public:
  /// `wanted` (a command, perhaps with arguments: "ccache g++-13") decides alone where it is not
  /// empty; else $CXX if it exists, then c++, g++, clang++ in PATH. `no_compiler` says what was
  /// tried.
  static Result<HostCompiler> find(const std::string& wanted, const Worker& worker,
                                   WorkerLimits limits);

  /// "g++ (Debian 12.2.0-14) 12.2.0 x86_64-linux-gnu 0123456789abcdef": version, machine, and a
  /// hash of the binaries that do the work, so that two builds of one version differ. Holds no
  /// path.
  const std::string& identity() const { return identity_; }
  /// The command as found: "/usr/bin/g++".
  const std::string& command() const { return command_text_; }

  /// What decides the meaning of the text, for keys: language, optimisation, arithmetic,
  /// instruction set as an explicit list.
  static std::vector<std::string> flags_for(const Target& target);

  /// Writes `text` to kernel.cpp in `directory` and makes kernel.so there. Only relative names
  /// reach the compiler. A failure is `compile_failed` or `compile_timeout` with the log's
  /// beginning, or `no_compiler` when it cannot even build a trivial shared object (no headers, no
  /// linker). `done` is filled in either case.
  Status compile(std::string_view text, const Target& target,
                 const std::vector<std::string>& extra_flags, const std::string& directory,
                 Compilation& done) const;

  /// Builds a trivial shared object that includes the intrinsics header.
  Status check(const Target& target, const std::string& directory) const;

  static constexpr std::string_view kSourceName = "kernel.cpp";
  static constexpr std::string_view kObjectName = "kernel.so";

 private:
  HostCompiler(std::vector<std::string> command, Worker worker, WorkerLimits limits);

  Status identify();
  Status build(std::string_view text, const Target& target,
               const std::vector<std::string>& extra_flags, const std::string& directory,
               Compilation& done) const;

  std::vector<std::string> command_;
  std::string command_text_;
  std::string identity_;
  Worker worker_;
  WorkerLimits limits_;
};

/// The full path of a command that PATH or its own slashes lead to; empty when there is none.
std::string find_in_path(const std::string& command, std::string_view path);

/// What an executable file is: its build id, or the hash of its bytes where it has none.
std::string content_id(const std::string& path);

/// The first lines of a compile log, for messages.
std::string beginning_of(const std::string& log, std::size_t lines);

}  // namespace quarterturn::cpu
