// The CPU as a Backend: emitted C++ through the host compiler and dlopen, run by a thread pool.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cache/code_store.hpp"
#include "runtime/backend.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::cpu {

enum class Jit { on, off };

struct BackendOptions {
  std::int64_t threads =
      0;               ///< workers with the calling thread; 0 = as many as the process may use
  std::string target;  ///< a Target key to compile for; empty = what this machine has
  bool compile_only = false;  ///< `target` may be what this machine cannot run
  std::string compiler;       ///< a command; empty = $CXX, c++, g++, clang++
  Jit jit = Jit::on;          ///< off: no compiler is started; stored code still serves
  std::string dump;           ///< folder for sources, commands and logs; empty = none
  Worker worker;
  WorkerLimits limits;
};

/// Thread-safe. `store` may be null only with Jit::off.
Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options);

}  // namespace quarterturn::cpu
