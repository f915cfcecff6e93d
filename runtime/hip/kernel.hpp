// A HIP kernel as loaded on one device.
#pragma once

#include <memory>
#include <string>

#include "generator/source.hpp"
#include "runtime/backend.hpp"
#include "runtime/hip/runtime_api.hpp"

namespace quarterturn::hip {

/// Immutable. Loaded into the device that is current when it is made, and unloaded there.
class LoadedKernel final : public Kernel {
 public:
  static Result<std::shared_ptr<const Kernel>> load(const RuntimeApi& api, int device,
                                                    const std::string& code, const Source& source);
  ~LoadedKernel() override;
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  /// Enqueues on `stream` of the calling thread's current device. No allocation, lock or
  /// synchronisation.
  Status launch(const Launch& launch, const qt_args& args, hipStream stream) const;

 private:
  LoadedKernel(const RuntimeApi& api, int device) : api_(api), device_(device) {}

  const RuntimeApi& api_;
  int device_;
  hipModule module_ = nullptr;
  hipFunction function_ = nullptr;
  std::string entry_;
};

}  // namespace quarterturn::hip
