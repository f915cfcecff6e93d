// An AMD GPU as a Backend: emitted HIP text through hipRTC or clang and the HIP runtime, on the
// caller's stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/code_store.hpp"
#include "runtime/backend.hpp"
#include "runtime/hip/compiler.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::hip {

enum class Jit { on, off };

struct BackendOptions {
  std::int32_t ordinal = 0;  ///< as the runtime counts, after HIP_VISIBLE_DEVICES
  std::string target;   ///< a Target key; empty = the device's own. With it, no runtime is needed
  std::string runtime;  ///< path of libamdhip64; empty = find it
  CompilerChoice compiler;
  Jit jit = Jit::on;  ///< off: nothing is compiled; stored code still serves
  std::string dump;   ///< folder for sources and logs; empty = none
  Worker worker;
  WorkerLimits limits;
};

/// Thread-safe. With `target` given and no runtime or device, the back end compiles only: launch
/// and memory functions return `no_driver` or `no_device`. Without `store` nothing is compiled.
Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options);

/// Devices the runtime shows; an error says why there are none. `runtime` as in BackendOptions.
Result<std::int32_t> device_count(const std::string& runtime = {});

/// The architecture of one of them, without its features: "gfx950".
Result<std::string> device_arch(std::int32_t ordinal, const std::string& runtime = {});

}  // namespace quarterturn::hip
