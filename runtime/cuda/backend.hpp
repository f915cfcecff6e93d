// An NVIDIA GPU as a Backend: emitted CUDA text through NVRTC and the driver API, on the caller's
// context and stream.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cache/code_store.hpp"
#include "runtime/backend.hpp"
#include "runtime/worker.hpp"

namespace quarterturn::cuda {

enum class Jit { on, off };

struct BackendOptions {
  std::int32_t ordinal = 0;  ///< as the driver counts, after CUDA_VISIBLE_DEVICES
  std::string target;  ///< a Target key; empty = the device's own. With it, no driver is needed
  std::string driver;  ///< path of libcuda; empty = find it
  std::string nvrtc;   ///< path of libnvrtc; empty = find it
  Jit jit = Jit::on;   ///< off: nothing is compiled; stored code still serves
  std::string dump;    ///< folder for sources and logs; empty = none
  Worker worker;
  WorkerLimits limits;
};

/// Thread-safe. With `target` given and no driver or device, the back end compiles only: launch and
/// memory functions return `no_driver` or `no_device`. Without `store` nothing is compiled.
Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options);

/// Devices the driver (at that path, where one is given) shows; an error says why there are none.
Result<std::int32_t> device_count(const std::string& driver = {});

}  // namespace quarterturn::cuda
