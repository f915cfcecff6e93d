#include "tuner/gpu_observer.hpp"

#include <limits>

#include "cache/env.hpp"
#include "tuner/nvml.hpp"
#include "tuner/observer.hpp"

namespace quarterturn {
namespace {

class NvidiaObserver final : public Observer {
 public:
  explicit NvidiaObserver(std::unique_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}
  Conditions observe() override {
    const GpuState state = nvml_->state();
    Conditions out;
    out.clock_mhz = state.clock_mhz;
    out.temperature_c = state.temperature_c;
    return out;
  }

 private:
  std::unique_ptr<Nvml> nvml_;
};

}  // namespace

std::unique_ptr<Observer> observer_for(const DeviceInfo& device) {
  if (device.target.vendor == Vendor::nvidia)
    if (auto nvml = Nvml::open(device.ordinal); nvml.ok())
      return std::make_unique<NvidiaObserver>(std::move(*nvml));
  return std::make_unique<LinuxObserver>();
}

MeasureSettings settings_for(const DeviceInfo& device, MeasureSettings settings) {
  if (device.target.vendor == Vendor::cpu) return settings;
  settings.clock_drop = 0;
  settings.stolen_limit = settings.others_limit = std::numeric_limits<double>::infinity();
  // Its times mean nothing anyhow.
  if (is_simulated(device.performance_class)) settings.slowest_clock = 0;
  return settings;
}

}  // namespace quarterturn
