#include "runtime/cuda/driver_api.hpp"

#include <fmt/format.h>

#include <memory>
#include <mutex>
#include <optional>

namespace quarterturn::cuda {
namespace {

constexpr int kWantedVersion = 12000;

using GetProcAddress = CUresult (*)(const char* name, void** function, int version,
                                    std::uint64_t flags, int* status);

// cuGetProcAddress_v2 hands out the entry point of the version we declare; a bare
// dlsym("cuMemAlloc") would be the ABI of CUDA 3.
Status resolve(DriverApi& api) {
  auto get = reinterpret_cast<GetProcAddress>(api.library.symbol("cuGetProcAddress_v2"));
  if (!get)
    return Status(
        Code::no_driver,
        fmt::format("{} is older than CUDA 12.0; install a driver of the 525 series or newer",
                    api.library.path()));
  std::string missing;
#define X(name, parameters)                                                         \
  {                                                                                 \
    void* function = nullptr;                                                       \
    if (get(#name, &function, kWantedVersion, 0, nullptr) != kSuccess || !function) \
      missing += (missing.empty() ? "" : ", ") + std::string(#name);                \
    api.name = reinterpret_cast<CUresult(*) parameters>(function);                  \
  }
  QTURN_CUDA_ENTRIES(X)
#undef X
  if (!missing.empty())
    return Status(Code::no_driver,
                  fmt::format("{} lacks {}; install a newer driver", api.library.path(), missing));
  return {};
}

Result<const DriverApi*> load(const std::string& override_path) {
  auto library = VendorLibrary::open(override_path, {"libcuda.so.1"},
                                     {"/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"});
  if (!library.ok())
    return Status(Code::no_driver, "no NVIDIA driver: " + library.status().message());
  // Leaked on purpose: kernels may be released by destructors that run after statics are gone.
  auto* api = new DriverApi;
  api->library = std::move(*library);
  if (auto status = resolve(*api); !status.ok()) return status;
  if (const CUresult error = api->cuInit(0); error != kSuccess) {
    const auto code = error == kNoDevice ? Code::no_device : Code::no_driver;
    return Status(code, fmt::format("{}: cuInit: {}", api->library.path(), api->describe(error)));
  }
  api->cuDriverGetVersion(&api->version);
  return static_cast<const DriverApi*>(api);
}

}  // namespace

std::string DriverApi::describe(CUresult error) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName) cuGetErrorName(error, &name);
  if (cuGetErrorString) cuGetErrorString(error, &text);
  return fmt::format("{} ({})", name ? name : fmt::format("error {}", error),
                     text ? text : "no description");
}

Status DriverApi::check(CUresult error, const char* what) const {
  if (error == kSuccess) return {};
  constexpr CUresult out_of_memory = 2;
  const bool capturing = error >= kCaptureUnsupported && error <= kCaptureLast;
  return Status(error == out_of_memory ? Code::out_of_memory
                : capturing            ? Code::capturing
                                       : Code::launch_failed,
                fmt::format("{}: {}", what, describe(error)));
}

Result<const DriverApi*> driver_api(const std::string& override_path) {
  static std::mutex mutex;
  static std::optional<Result<const DriverApi*>> answer;
  const std::lock_guard lock(mutex);
  if (!answer) answer = load(override_path);
  return *answer;
}

}  // namespace quarterturn::cuda
