#include "runtime/hip/kernel.hpp"

#include <fmt/format.h>

#include "runtime/hip/scopes.hpp"

namespace quarterturn::hip {

Result<std::shared_ptr<const Kernel>> LoadedKernel::load(const RuntimeApi& api, int device,
                                                         const std::string& code,
                                                         const Source& source) {
  std::shared_ptr<LoadedKernel> kernel(new LoadedKernel(api, device));
  kernel->entry_ = source.entry;
  const auto fail = [&](hipError error, const char* what) {
    // Only what the runtime says of the code itself counts against it (invalid image, no binary for
    // this GPU, no such entry, ...).
    const bool about_code =
        error == 1 || error == 500 || (error >= 200 && error < 400 && error != 201);
    const auto message = fmt::format("{}: {}", source.entry, what);
    if (about_code)
      return Status(Code::rejected, fmt::format("{}: {}", message, api.describe(error)));
    const auto status = api.check(error, message.c_str());
    return Status(status.code() == Code::launch_failed ? Code::no_device : status.code(),
                  status.message());
  };
  if (const auto error = api.hipModuleLoadData(&kernel->module_, code.data()))
    return fail(error, "the runtime refuses the compiled code");
  if (const auto error =
          api.hipModuleGetFunction(&kernel->function_, kernel->module_, source.entry.c_str()))
    return fail(error, "the compiled code has no such entry");
  // Asking makes the runtime put the code on the device now, not at the first run.
  int registers = 0;
  if (const auto error = api.hipFuncGetAttribute(&registers, kFunctionRegisters, kernel->function_))
    return fail(error, "loading onto the device");
  return std::shared_ptr<const Kernel>(std::move(kernel));
}

LoadedKernel::~LoadedKernel() {
  if (!module_) return;
  const DeviceScope scope(api_, device_);
  api_.hipModuleUnload(module_);
}

Status LoadedKernel::launch(const Launch& launch, const qt_args& args, hipStream stream) const {
  if (launch.grid[0] == 0 || launch.grid[1] == 0 || launch.grid[2] == 0) return {};
  // A dispatch packet counts threads in 32 bits.
  for (int i = 0; i < 3; ++i)
    if (std::uint64_t{launch.grid[i]} * launch.block[i] > 0xffffffffu)
      return Status(Code::launch_failed,
                    fmt::format("{}: {} blocks of {} threads; a launch has fewer than 2^32 threads",
                                entry_, launch.grid[i], launch.block[i]));
  void* parameters[] = {const_cast<qt_args*>(&args)};
  const hipError error = api_.hipModuleLaunchKernel(
      function_, launch.grid[0], launch.grid[1], launch.grid[2], launch.block[0], launch.block[1],
      launch.block[2], static_cast<unsigned int>(launch.shared_bytes), stream, parameters, nullptr);
  if (error == kSuccess) return {};
  return Status(Code::launch_failed, fmt::format("{}: grid {}x{}x{}, {} bytes of LDS: {}", entry_,
                                                 launch.grid[0], launch.grid[1], launch.grid[2],
                                                 launch.shared_bytes, api_.describe(error)));
}

}  // namespace quarterturn::hip
