// Runs a compiler (or another helper program) in a child process with limits, so that a crash, a
// hang or a runaway allocation costs one call and never the host process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

/// 0 in CPU time or memory: no limit.
struct WorkerLimits {
  std::int64_t wall_seconds = 120;
  std::int64_t cpu_seconds = 120;
  std::int64_t memory_bytes = std::int64_t{4} << 30;  ///< of address space
};

struct WorkerCommand {
  std::vector<std::string> arguments;  ///< the program, looked up in PATH, and its arguments
  std::string directory;               ///< where it runs; empty = here
  WorkerLimits limits;
};

/// How the program ended, with what it wrote to stdout and stderr (at most 256 KiB).
struct WorkerReport {
  enum class End {
    exited,      ///< `code` is its exit status
    signalled,   ///< `code` is the signal
    timed_out,   ///< the wall-time limit passed; it was killed
    not_started  ///< the program could not be executed; `code` is errno
  };
  End end = End::exited;
  std::int32_t code = 0;
  std::string output;

  bool succeeded() const { return end == End::exited && code == 0; }
  /// Of a compiler that did not succeed: compile_failed, or what was not its input's fault:
  /// compile_timeout, no_compiler, disk_full, and interrupted where somebody sent SIGTERM, as batch
  /// systems do to all processes of a job.
  Code failure() const;
  /// "exit status 1", "killed by signal 11 (Segmentation fault)", ...
  std::string ending(const WorkerLimits& limits) const;
};

/// Starts commands politely: posix_spawn, no inherited descriptors, own process group, the host's
/// SIGCHLD disposition and handlers left alone (the end is reported through a pipe, so it works
/// where the host ignores or reaps SIGCHLD). If this process dies, the worker kills the program.
///
/// Thread-safe. Uses the program `quarterturn-worker`; where that is not installed, /bin/sh sets
/// the limits instead, and this process watches the clock.
class Worker {
 public:
  Worker() : Worker(std::string()) {}
  /// `path`: quarterturn-worker; empty = find it beside the library.
  explicit Worker(std::string path);

  /// The worker program in use; empty when /bin/sh stands in.
  const std::string& path() const { return path_; }

  /// Waits for the end. An error status means that nothing could be started at all.
  Result<WorkerReport> run(const WorkerCommand& command) const;

 private:
  std::string path_;
};

/// A program that comes with the library ("quarterturn-worker"), as installed or as built:
/// ../libexec/quarterturn/ and the like, from the place of the file that holds this function; empty
/// when it is in none of them.
std::string find_program(const std::string& name);

}  // namespace quarterturn
