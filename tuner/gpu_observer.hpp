// What there is to know of a GPU while candidates are timed on it.
#pragma once

#include <memory>

#include "runtime/backend.hpp"
#include "tuner/measure.hpp"

namespace quarterturn {

/// The observer that fits a device: NVML's clock and heat of an NVIDIA GPU, /proc for the CPU.
std::unique_ptr<Observer> observer_for(const DeviceInfo& device);

/// Timing as a device needs it. A GPU's clock falls with the power that candidates draw, which
/// belongs to them and is no disturbance, and what the host's processors do is none either.
MeasureSettings settings_for(const DeviceInfo& device, MeasureSettings settings);

}  // namespace quarterturn
