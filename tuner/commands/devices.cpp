// qturn devices: what can be tuned on here, and why other back ends cannot.
#include <fmt/format.h>

#include "runtime/cpu/features.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/hip/backend.hpp"
#include "tuner/commands/command.hpp"

namespace quarterturn {

std::function<int()> register_devices(CLI::App& app) {
  auto* command = app.add_subcommand("devices", "List the devices that can be used here");
  auto global = std::make_shared<GlobalOptions>();
  add_json(*command, *global);
  return [global] {
    Table table({"device", "target", "units", "memory_gib", "class", "name"});
    const auto gib = [](std::int64_t bytes) {
      return fmt::format("{}", (bytes + (std::int64_t{1} << 29)) >> 30);
    };
    const auto machine = cpu::detect_cpu();
    table.add({"cpu", machine.target.key(), fmt::format("{}", machine.cores),
               gib(machine.memory_bytes), machine.performance_class(machine.cores), machine.name});
    const auto list = [&](const char* kind, const char* title, const Result<std::int32_t>& count,
                          const auto& open) {
      if (!count.ok())
        std::fprintf(stderr, "qturn: no %s device: %s\n", title, count.status().message().c_str());
      for (std::int32_t i = 0; count.ok() && i < *count; ++i) {
        const Result<std::unique_ptr<Backend>> backend = open(i);
        if (!backend.ok()) {
          std::fprintf(stderr, "qturn: %s:%d: %s\n", kind, i, backend.status().message().c_str());
          continue;
        }
        const auto& device = (*backend)->device();
        table.add({fmt::format("{}:{}", kind, i), device.target.key(),
                   fmt::format("{}", device.units), gib(device.memory_bytes),
                   device.performance_class, device.name});
      }
    };
    const auto settings = Settings::load(SettingSources());
    list("cuda", "CUDA", cuda::device_count(settings.text(Setting::cuda_driver)),
         [&](std::int32_t ordinal) {
           cuda::BackendOptions options;
           options.ordinal = ordinal;
           options.driver = settings.text(Setting::cuda_driver);
           return cuda::open_backend(nullptr, options);
         });
    list("hip", "HIP", hip::device_count(settings.text(Setting::hip_runtime)),
         [&](std::int32_t ordinal) {
           hip::BackendOptions options;
           options.ordinal = ordinal;
           options.runtime = settings.text(Setting::hip_runtime);
           options.jit = hip::Jit::off;
           return hip::open_backend(nullptr, options);
         });
    table.print(global->json);
    return static_cast<int>(kExitOk);
  };
}

}  // namespace quarterturn
