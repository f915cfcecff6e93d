#include "tuner/nvml.hpp"

#include <fmt/format.h>

#include <array>

#include "runtime/cuda/driver_api.hpp"

namespace quarterturn {
namespace {

constexpr int kSmClock = 1, kGpuTemperature = 0;

Result<std::string> pci_address(std::int32_t ordinal) {
  auto api = cuda::driver_api();
  if (!api.ok()) return api.status();
  using GetAddress = cuda::CUresult (*)(char*, int, cuda::CUdevice);
  const auto get = reinterpret_cast<GetAddress>((*api)->library.symbol("cuDeviceGetPCIBusId"));
  cuda::CUdevice device = 0;
  char text[32] = {};
  if (!get || (*api)->cuDeviceGet(&device, ordinal) != cuda::kSuccess ||
      get(text, sizeof text, device) != cuda::kSuccess)
    return Status(Code::no_device, fmt::format("device {} has no PCI address", ordinal));
  return std::string(text);
}

}  // namespace

std::string gpu_uuid(std::int32_t ordinal) {
  auto api = cuda::driver_api();
  if (!api.ok()) return {};
  using GetUuid = cuda::CUresult (*)(unsigned char*, cuda::CUdevice);
  auto* symbol = (*api)->library.symbol("cuDeviceGetUuid_v2");
  if (!symbol) symbol = (*api)->library.symbol("cuDeviceGetUuid");
  const auto get = reinterpret_cast<GetUuid>(symbol);
  cuda::CUdevice device = 0;
  std::array<unsigned char, 16> bytes{};
  if (!get || (*api)->cuDeviceGet(&device, ordinal) != cuda::kSuccess ||
      get(bytes.data(), device) != cuda::kSuccess)
    return {};
  return {bytes.begin(), bytes.end()};
}

std::string GpuState::throttle_text() const {
  // nvmlClocksThrottleReason*; bit 0 is "idle", which is none.
  static constexpr std::pair<std::uint64_t, const char*> reasons[] = {
      {0x2, "clocks as set"}, {0x4, "power cap"},           {0x8, "hardware slowdown"},
      {0x20, "heat"},         {0x40, "heat of the board"},  {0x80, "power brake"},
      {0x100, "display"},     {0x10, "synchronised boost"},
  };
  std::string out;
  for (const auto& [bit, name] : reasons)
    if (throttle & bit) out += (out.empty() ? "" : "+") + std::string(name);
  return out;
}

Result<std::unique_ptr<Nvml>> Nvml::open(std::int32_t ordinal) {
  const auto address = pci_address(ordinal);
  if (!address.ok()) return address.status();
  auto library = VendorLibrary::open({}, {"libnvidia-ml.so.1"}, {"/usr/local/nvidia/lib64"});
  if (!library.ok())
    return Status(Code::no_driver, fmt::format("no NVML: {}", library.status().message()));
  std::unique_ptr<Nvml> out(new Nvml);
  out->library_ = std::move(*library);
  const auto find = [&](const char* name, auto& function) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(out->library_.symbol(name));
    return function != nullptr;
  };
  int (*initialise)() = nullptr;
  int (*by_address)(const char*, void**) = nullptr;
  if (!find("nvmlInit_v2", initialise) || !find("nvmlDeviceGetHandleByPciBusId_v2", by_address))
    return Status(Code::no_driver, fmt::format("{} is not NVML", out->library_.path()));
  if (const int error = initialise(); error != 0)
    return Status(Code::no_driver, fmt::format("NVML does not start: error {}", error));
  if (const int error = by_address(address->c_str(), &out->device_); error != 0)
    return Status(Code::no_device,
                  fmt::format("NVML does not know the device at {}: error {}", *address, error));
  find("nvmlDeviceGetClockInfo", out->clock_);
  find("nvmlDeviceGetPowerUsage", out->power_);
  find("nvmlDeviceGetTemperature", out->temperature_);
  if (!find("nvmlDeviceGetCurrentClocksEventReasons", out->throttle_))
    find("nvmlDeviceGetCurrentClocksThrottleReasons", out->throttle_);
  return out;
}

GpuState Nvml::state() const {
  GpuState out;
  unsigned value = 0;
  if (clock_ && clock_(device_, kSmClock, &value) == 0) out.clock_mhz = value;
  if (power_ && power_(device_, &value) == 0) out.watts = 1e-3 * value;
  if (temperature_ && temperature_(device_, kGpuTemperature, &value) == 0)
    out.temperature_c = value;
  unsigned long long reasons = 0;
  if (throttle_ && throttle_(device_, &reasons) == 0) out.throttle = reasons;
  return out;
}

}  // namespace quarterturn
