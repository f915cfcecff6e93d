#include "runtime/hip/runtime_api.hpp"

#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <vector>

namespace quarterturn::hip {
namespace {

template <class Function>
bool bind(const VendorLibrary& library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(library.symbol(name));
  return out != nullptr;
}

Status resolve(RuntimeApi& api) {
  std::string missing;
  const auto need = [&missing](bool bound, const char* name) {
    if (!bound) missing += (missing.empty() ? "" : ", ") + std::string(name);
  };
#define X(name, parameters) need(bind(api.library, #name, api.name), #name);
  QTURN_HIP_ENTRIES(X)
#undef X
  need(bind(api.library, "hipGetErrorName", api.hipGetErrorName), "hipGetErrorName");
  need(bind(api.library, "hipGetErrorString", api.hipGetErrorString), "hipGetErrorString");
  // The unversioned name is the old structure's, whatever the release.
  if (!bind(api.library, "hipGetDevicePropertiesR0600", api.properties)) {
    api.arch_name_at = kArchNameBefore;
    need(bind(api.library, "hipGetDeviceProperties", api.properties), "hipGetDeviceProperties");
  }
  if (missing.empty()) return {};
  return Status(Code::no_driver,
                fmt::format("{} lacks {}; install ROCm 6 or later", api.library.path(), missing));
}

Result<const RuntimeApi*> load(const std::string& override_path) {
  auto library = VendorLibrary::open(override_path, {"libamdhip64.so.7", "libamdhip64.so.6"},
                                     {"/opt/rocm/lib", "/opt/rocm/lib64"});
  if (!library.ok())
    return Status(Code::no_driver,
                  fmt::format("no HIP runtime: {}\nInstall ROCm, or name libamdhip64 in "
                              "QTURN_HIP_RUNTIME; without it `QTURN_TARGET=gfx950` still compiles",
                              library.status().message()));
  // Leaked on purpose: kernels may be released by destructors that run after statics are gone.
  auto* api = new RuntimeApi;
  api->library = std::move(*library);
  if (auto status = resolve(*api); !status.ok()) return status;
  if (const hipError error = api->hipInit(0); error != kSuccess) {
    const bool none = error == kNoDevice || error == kInvalidDevice;
    return Status(none ? Code::no_device : Code::no_driver,
                  fmt::format("{}: hipInit: {}{}", api->library.path(), api->describe(error),
                              none ? " (is /dev/kfd there, and readable by this user?)" : ""));
  }
  api->hipRuntimeGetVersion(&api->version);
  return static_cast<const RuntimeApi*>(api);
}

}  // namespace

std::string RuntimeApi::describe(hipError error) const {
  const char* name = hipGetErrorName ? hipGetErrorName(error) : nullptr;
  const char* text = hipGetErrorString ? hipGetErrorString(error) : nullptr;
  return fmt::format("{} ({})", name ? name : fmt::format("error {}", error),
                     text ? text : "no description");
}

Status RuntimeApi::check(hipError error, const char* what) const {
  if (error == kSuccess) return {};
  const bool capturing = error >= kCaptureUnsupported && error <= kCaptureLast;
  return Status(error == kOutOfMemory                           ? Code::out_of_memory
                : error == kNoDevice || error == kInvalidDevice ? Code::no_device
                : capturing                                     ? Code::capturing
                                                                : Code::launch_failed,
                fmt::format("{}: {}", what, describe(error)));
}

Result<const RuntimeApi*> runtime_api(const std::string& override_path) {
  static std::mutex mutex;
  static std::optional<Result<const RuntimeApi*>> answer;
  const std::lock_guard lock(mutex);
  if (!answer) answer = load(override_path);
  return *answer;
}

std::string arch_of(const RuntimeApi& api, int device) {
  std::vector<char> properties(kPropertyBytes, '\0');
  if (api.properties(properties.data(), device) != kSuccess) return {};
  std::string name(properties.data() + api.arch_name_at, kArchNameBytes);
  return name.substr(0, name.find_first_of(std::string(":\0", 2)));
}

}  // namespace quarterturn::hip
