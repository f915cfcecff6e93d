#include "runtime/open_backend.hpp"

#include <fmt/format.h>

#include "generator/hip/families.hpp"
#include "runtime/cpu/backend.hpp"
#include "runtime/cpu/features.hpp"
#include "runtime/cuda/backend.hpp"
#include "runtime/hip/backend.hpp"

namespace quarterturn {
namespace {

// The one with most features that this machine has; empty when there is none.
std::string best_of(const std::vector<std::string>& targets) {
  const Target machine = cpu::detect_cpu().target;
  std::string best;
  std::pair<std::string, std::size_t> rank;
  for (const auto& name : targets) {
    const auto target = parse_target(name);
    if (!target.ok() || target->vendor != Vendor::cpu || !cpu::check_runs_on(*target, machine).ok())
      continue;
    // "x86-64-v4" sorts behind "x86-64-v3" and "x86-64".
    const std::pair own(target->arch, target->features.size() + 1);
    if (own > rank) {
      rank = own;
      best = name;
    }
  }
  return best;
}

Result<std::unique_ptr<Backend>> open_cpu(const Settings& settings,
                                          std::shared_ptr<CodeStore> store,
                                          const std::vector<std::string>& targets) {
  cpu::BackendOptions options;
  options.threads = settings.count(Setting::threads);
  options.target = settings.text(Setting::target);
  if (options.target.empty()) options.target = best_of(targets);
  options.compiler = settings.text(Setting::cxx);
  options.jit = settings.text(Setting::no_jit) == "1" ? cpu::Jit::off : cpu::Jit::on;
  options.dump = settings.text(Setting::dump);
  options.worker = Worker(settings.text(Setting::worker));
  options.limits = compile_limits(settings);
  return cpu::open_backend(std::move(store), options);
}

Result<std::unique_ptr<Backend>> open_cuda(const Settings& settings,
                                           std::shared_ptr<CodeStore> store) {
  cuda::BackendOptions options;
  options.ordinal = static_cast<std::int32_t>(settings.count(Setting::device));
  if (const auto& target = settings.text(Setting::target); target.rfind("sm_", 0) == 0)
    options.target = target;
  options.driver = settings.text(Setting::cuda_driver);
  options.nvrtc = settings.text(Setting::nvrtc);
  options.jit = settings.text(Setting::no_jit) == "1" ? cuda::Jit::off : cuda::Jit::on;
  options.dump = settings.text(Setting::dump);
  options.worker = Worker(settings.text(Setting::worker));
  options.limits = compile_limits(settings);
  return cuda::open_backend(std::move(store), options);
}

Result<std::unique_ptr<Backend>> open_hip(const Settings& settings,
                                          std::shared_ptr<CodeStore> store) {
  hip::BackendOptions options;
  options.ordinal = static_cast<std::int32_t>(settings.count(Setting::device));
  if (const auto& target = settings.text(Setting::target); target.rfind("gfx", 0) == 0)
    options.target = target;
  options.runtime = settings.text(Setting::hip_runtime);
  options.compiler = {settings.text(Setting::hiprtc), settings.text(Setting::hip_clang)};
  options.jit = settings.text(Setting::no_jit) == "1" ? hip::Jit::off : hip::Jit::on;
  options.dump = settings.text(Setting::dump);
  options.worker = Worker(settings.text(Setting::worker));
  options.limits = compile_limits(settings);
  return hip::open_backend(std::move(store), options);
}

// Why the AMD device that would be taken runs nothing; empty where it may.
std::string unfit_amd_device(const Settings& settings) {
  if (!settings.text(Setting::target).empty()) return {};  // whoever names one wants it
  const auto arch = hip::device_arch(static_cast<std::int32_t>(settings.count(Setting::device)),
                                     settings.text(Setting::hip_runtime));
  const auto target = arch.ok() ? parse_target(*arch) : Result<Target>(arch.status());
  return target.ok() ? hip::refuse_target(*target) : std::string();
}

// The first GPU back end that has a device and is not disabled, or an empty name; then `reasons`
// says why.
std::string gpu_of(const Settings& settings, std::string& reasons) {
  const auto has_device = [&](const char* name, const auto& count) {
    if (settings.lists(Setting::disable, name)) return false;
    const Result<std::int32_t> devices = count();
    if (devices.ok() && *devices > 0) return true;
    if (!reasons.empty()) reasons += "; ";
    reasons +=
        devices.ok() ? fmt::format("there is no {} device", name) : devices.status().message();
    return false;
  };
  if (has_device("cuda", [&] { return cuda::device_count(settings.text(Setting::cuda_driver)); }))
    return "cuda";
  if (has_device("hip", [&] { return hip::device_count(settings.text(Setting::hip_runtime)); })) {
    const auto unfit = unfit_amd_device(settings);
    if (unfit.empty()) return "hip";
    if (!reasons.empty()) reasons += "; ";
    reasons += unfit;
  }
  return {};
}

}  // namespace

WorkerLimits compile_limits(const Settings& settings) {
  WorkerLimits out;
  out.wall_seconds = settings.count(Setting::compile_seconds);
  out.cpu_seconds = out.wall_seconds;
  out.memory_bytes = settings.count(Setting::compile_memory_mib) << 20;
  return out;
}

Result<std::unique_ptr<Backend>> open_backend(const Settings& settings,
                                              std::shared_ptr<CodeStore> store,
                                              const std::vector<std::string>& targets) {
  const auto& wanted = settings.text(Setting::backend);
  if (wanted != "auto" && settings.lists(Setting::disable, wanted))
    return Status(
        Code::not_supported,
        fmt::format("back end '{}' is asked for and disabled at once (QTURN_DISABLE)", wanted));
  if (wanted == "auto" && settings.lists(Setting::disable, "cpu") &&
      settings.lists(Setting::disable, "cuda") && settings.lists(Setting::disable, "hip"))
    return Status(Code::no_device, fmt::format("every back end is disabled (QTURN_DISABLE = {})",
                                               settings.text(Setting::disable)));
  std::string reasons;
  const auto gpu = wanted == "auto" ? gpu_of(settings, reasons) : wanted;
  if (gpu == "cuda") return open_cuda(settings, std::move(store));
  if (gpu == "hip") return open_hip(settings, std::move(store));
  if (wanted == "auto" && settings.lists(Setting::disable, "cpu"))
    return Status(Code::no_device, fmt::format("the CPU is disabled (QTURN_DISABLE = {}), and {}",
                                               settings.text(Setting::disable), reasons));
  return open_cpu(settings, std::move(store), targets);
}

}  // namespace quarterturn
