#include "runtime/hip/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "runtime/gpu_backend.hpp"
#include "runtime/hip/kernel.hpp"
#include "runtime/hip/scopes.hpp"
#include "runtime/hip/timing.hpp"

namespace quarterturn::hip {
namespace {

// Of a lane: spilling inside a main loop costs more than any tile gains; a few bytes outside it
// cost nothing.
constexpr std::int64_t kMostScratchBytes = 64;

// The device that `leave` gives back to the thread.
thread_local int device_before = 0;

class HipBackend final : public GpuBackend {
 public:
  HipBackend(std::shared_ptr<CodeStore> store, BackendOptions options)
      : GpuBackend(std::move(store), {Vendor::amd, "an AMD", "hsaco", "hip", options.target,
                                      options.jit == Jit::on, options.dump}),
        options_(std::move(options)) {}

  Result<PrebuiltKernel> prebuilt(const Problem&, const Variant&) override {
    return Status(Code::no_compiler,
                  "HIP kernels are compiled on the machine that runs them: install ROCm's hipRTC "
                  "(QTURN_HIPRTC names it) or clang 22 (QTURN_HIP_CLANG), or use a store that "
                  "holds their code");
  }

  bool enter() const override {
    int now = 0;
    if (api_->hipGetDevice(&now) != kSuccess || now == device_.ordinal) return false;
    device_before = now;
    return api_->hipSetDevice(device_.ordinal) == kSuccess;
  }
  void leave() const override { api_->hipSetDevice(device_before); }
  Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                void* stream) const override {
    return static_cast<const LoadedKernel&>(kernel).launch(launch, args,
                                                           static_cast<hipStream>(stream));
  }

  Result<void*> allocate(std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    const DeviceScope scope(*api_, device_.ordinal);
    const RelaxedScope relaxed(*api_);
    void* memory = nullptr;
    const auto error =
        api_->hipMalloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (error != kSuccess)
      return api_->check(error, fmt::format("{} bytes of device memory", bytes).c_str());
    return memory;
  }
  void release(void* memory) override {
    if (!memory || !unavailable_.ok()) return;
    const DeviceScope scope(*api_, device_.ordinal);
    api_->hipFree(memory);
  }
  Status upload(void* device, const void* host, std::int64_t bytes) override {
    return copy_and_wait(device, host, bytes, kCopyToDevice, "copy to the device");
  }
  Status download(void* host, const void* device, std::int64_t bytes) override {
    return copy_and_wait(host, device, bytes, kCopyToHost, "copy from the device");
  }
  Status copy(void* to, const void* from, std::int64_t bytes) override {
    return copy_and_wait(to, from, bytes, kCopyOnDevice, "copy on the device");
  }
  Status fill(void* device, unsigned char value, std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    if (bytes == 0) return {};
    const DeviceScope scope(*api_, device_.ordinal);
    if (auto status = api_->check(
            api_->hipMemsetAsync(device, value, static_cast<std::size_t>(bytes), nullptr),
            "fill device memory");
        !status.ok())
      return status;
    return api_->check(api_->hipStreamSynchronize(nullptr), "fill device memory");
  }
  Status synchronize() override {
    if (!unavailable_.ok()) return unavailable_;
    const DeviceScope scope(*api_, device_.ordinal);
    return api_->check(api_->hipDeviceSynchronize(), "synchronise");
  }
  std::unique_ptr<Stopwatch> stopwatch() override {
    if (!unavailable_.ok()) return nullptr;
    return std::make_unique<EventClock>(*api_, device_.ordinal);
  }
  Result<std::unique_ptr<Recording>> record(
      const std::function<Status(void* stream)>& calls) override {
    if (!unavailable_.ok()) return unavailable_;
    auto out = std::make_unique<GraphRecording>(*api_, device_.ordinal);
    if (auto status = out->capture(calls); !status.ok()) return status;
    return std::unique_ptr<Recording>(std::move(out));
  }

 protected:
  Status open_device() override {
    auto api = runtime_api(options_.runtime);
    if (!api.ok()) return api.status();
    api_ = *api;
    const auto count = device_count(options_.runtime);
    if (!count.ok()) return count.status();
    if (options_.ordinal < 0 || options_.ordinal >= *count)
      return Status(Code::no_device, fmt::format("device {} does not exist: the HIP runtime shows "
                                                 "{} (HIP_VISIBLE_DEVICES limits them)",
                                                 options_.ordinal, *count));
    return describe();
  }

  Result<std::string> find_compiler() override {
    auto found =
        Compiler::find(options_.compiler, device_.target.arch, options_.worker, options_.limits);
    if (!found.ok()) return found.status();
    compiler_.emplace(std::move(*found));
    return compiler_->identity();
  }

  Result<Compiled> compile_text(const Source& source, const std::string& text,
                                const std::string& folder) const override {
    auto made = compiler_->compile(text, source.entry, device_.target, source.flags, folder);
    if (!made.ok()) return made.status();
    return Compiled{std::move(made->code), std::move(made->log), made->note.vector_registers,
                    made->note.scratch_bytes, made->note.lds_bytes};
  }

  Status refuse_code(const CodeInfo& info) const override {
    if (info.spills <= kMostScratchBytes) return {};
    return Status(Code::rejected,
                  fmt::format("a lane needs {} bytes of scratch memory for spilled registers; at "
                              "most {} are accepted",
                              info.spills, kMostScratchBytes));
  }

  Result<std::shared_ptr<const Kernel>> load_code(const std::string& code,
                                                  const Source& source) override {
    const DeviceScope scope(*api_, device_.ordinal);
    const RelaxedScope relaxed(*api_);
    return LoadedKernel::load(*api_, device_.ordinal, code, source);
  }

  // The runtime names a capture by a blocking stream when asked for the null stream; other captures
  // are not disturbed by what follows.
  Status refuse_capture() const override {
    if (!unavailable_.ok()) return {};
    const DeviceScope scope(*api_, device_.ordinal);
    int state = kCaptureNone;
    const hipError error = api_->hipStreamIsCapturing(nullptr, &state);
    if (error == kSuccess && state == kCaptureNone) return {};
    if (error != kSuccess && (error < kCaptureUnsupported || error > kCaptureLast)) return {};
    return Status(Code::capturing,
                  "a stream of this device is being captured: prepare may compile and load, so it "
                  "must come before the capture; only run belongs into it");
  }

 private:
  Status copy_and_wait(void* to, const void* from, std::int64_t bytes, int kind, const char* what) {
    if (!unavailable_.ok()) return unavailable_;
    if (bytes == 0) return {};
    const DeviceScope scope(*api_, device_.ordinal);
    if (auto status = api_->check(
            api_->hipMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, nullptr), what);
        !status.ok())
      return status;
    // Copies of pageable memory may come back while they are on their way.
    return api_->check(api_->hipStreamSynchronize(nullptr), what);
  }

  Status describe() {
    const auto attribute = [&](int which) {
      int value = 0;
      api_->hipDeviceGetAttribute(&value, which, options_.ordinal);
      return value;
    };
    char name[256] = {};
    std::size_t memory = 0;
    api_->hipDeviceGetName(name, sizeof name, options_.ordinal);
    api_->hipDeviceTotalMem(&memory, options_.ordinal);
    const auto arch = arch_of(*api_, options_.ordinal);
    auto target = parse_target(arch);
    if (!target.ok())
      return Status(Code::no_device, fmt::format("hip:{} ({}) has the unknown architecture '{}'",
                                                 options_.ordinal, name, arch));
    device_.name = name;
    device_.ordinal = options_.ordinal;
    device_.units = attribute(kDeviceUnits);
    device_.memory_bytes = static_cast<std::int64_t>(memory);
    device_.driver = fmt::format("hip {}.{}.{}", api_->version / 10000000,
                                 api_->version / 100000 % 100, api_->version % 100000);
    if (!has_own_target()) device_.target = std::move(*target);
    if (const int bytes = attribute(kDeviceSharedBytes); bytes > 0)
      device_.target.shared_bytes = bytes;
    const double gib = static_cast<double>(memory) / static_cast<double>(1u << 30);
    device_.performance_class = fmt::format(
        "{}amd model={} units={} l2={} memory_gib={}", class_prefix(api_->library),
        device_.target.arch, device_.units, attribute(kDeviceL2Bytes), std::llround(gib));
    return {};
  }

  BackendOptions options_;
  const RuntimeApi* api_ = nullptr;
  std::optional<Compiler> compiler_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options) {
  auto out = std::make_unique<HipBackend>(std::move(store), options);
  if (auto status = out->open(); !status.ok()) return status;
  return std::unique_ptr<Backend>(std::move(out));
}

Result<std::int32_t> device_count(const std::string& runtime) {
  auto api = runtime_api(runtime);
  if (!api.ok()) return api.status();
  int count = 0;
  if (auto status = (*api)->check((*api)->hipGetDeviceCount(&count), "hipGetDeviceCount");
      !status.ok())
    return status;
  return count;
}

Result<std::string> device_arch(std::int32_t ordinal, const std::string& runtime) {
  auto api = runtime_api(runtime);
  if (!api.ok()) return api.status();
  return arch_of(**api, ordinal);
}

}  // namespace quarterturn::hip
