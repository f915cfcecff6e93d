// What the CUDA back end changes of the calling thread, for the length of a scope.
#pragma once

#include "runtime/cuda/driver_api.hpp"

namespace quarterturn::cuda {

/// Whether the calling thread's current context is one of this device.
inline bool has_context(const DriverApi& api, CUdevice device) {
  CUdevice of = -1;
  return api.cuCtxGetDevice(&of) == kSuccess && of == device;
}

/// Makes a context of our device current for the scope, where the caller has none of that device.
class ContextScope {
 public:
  ContextScope(const DriverApi& api, CUdevice device, CUcontext primary) : api_(api) {
    if (!has_context(api, device)) pushed_ = api.cuCtxPushCurrent(primary) == kSuccess;
  }
  ~ContextScope() {
    CUcontext ignored = nullptr;
    if (pushed_) api_.cuCtxPopCurrent(&ignored);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const DriverApi& api_;
  bool pushed_ = false;
};

/// Lets the thread load code and take memory while some stream is captured in global mode, which
/// would else break that capture: nothing here touches a captured stream.
class RelaxedScope {
 public:
  explicit RelaxedScope(const DriverApi& api) : api_(api) {
    exchanged_ = api_.cuThreadExchangeStreamCaptureMode(&mode_) == kSuccess;
  }
  ~RelaxedScope() {
    if (exchanged_) api_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  const DriverApi& api_;
  int mode_ = kCaptureRelaxed;
  bool exchanged_ = false;
};

}  // namespace quarterturn::cuda
