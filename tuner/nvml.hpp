// NVML, the driver's management library, opened at run time: the clock, power and heat of a GPU
// while something is timed on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "generator/status.hpp"
#include "runtime/vendor_library.hpp"

namespace quarterturn {

/// 16 bytes that name a device, or a MIG slice, whatever CUDA_VISIBLE_DEVICES makes of its number;
/// empty: not told.
std::string gpu_uuid(std::int32_t ordinal);

struct GpuState {
  double clock_mhz = 0;  ///< of the SMs; 0 where it is not told
  double watts = 0;
  double temperature_c = 0;
  std::uint64_t throttle = 0;  ///< NVML's bits of why the clock is below what was asked for

  /// "power cap", "heat", ...; empty when nothing holds the clock back.
  std::string throttle_text() const;
};

/// Reading takes some 10 microseconds and leaves the device alone.
class Nvml {
 public:
  /// For a device as the driver counts, found by its PCI address: NVML also counts those that
  /// CUDA_VISIBLE_DEVICES hides.
  static Result<std::unique_ptr<Nvml>> open(std::int32_t ordinal);

  GpuState state() const;

 private:
  Nvml() = default;

  VendorLibrary library_;
  void* device_ = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
  int (*throttle_)(void*, unsigned long long*) = nullptr;
};

}  // namespace quarterturn
