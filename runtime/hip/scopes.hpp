// What the HIP back end changes of the calling thread, for the length of a scope.
#pragma once

#include "runtime/hip/runtime_api.hpp"

namespace quarterturn::hip {

/// Makes our device the calling thread's, and gives the thread back its own.
class DeviceScope {
 public:
  DeviceScope(const RuntimeApi& api, int device) : api_(api) {
    changed_ = api.hipGetDevice(&before_) == kSuccess && before_ != device &&
               api.hipSetDevice(device) == kSuccess;
  }
  ~DeviceScope() {
    if (changed_) api_.hipSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const RuntimeApi& api_;
  int before_ = 0;
  bool changed_ = false;
};

/// Lets the thread load code and take memory while some stream is captured in global mode, which
/// would else break that capture: nothing here touches a captured stream.
class RelaxedScope {
 public:
  explicit RelaxedScope(const RuntimeApi& api) : api_(api) {
    exchanged_ = api_.hipThreadExchangeStreamCaptureMode(&mode_) == kSuccess;
  }
  ~RelaxedScope() {
    if (exchanged_) api_.hipThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedScope(const RelaxedScope&) = delete;
  RelaxedScope& operator=(const RelaxedScope&) = delete;

 private:
  const RuntimeApi& api_;
  int mode_ = kCaptureRelaxed;
  bool exchanged_ = false;
};

}  // namespace quarterturn::hip
