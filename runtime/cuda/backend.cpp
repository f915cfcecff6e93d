#include "runtime/cuda/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/driver_api.hpp"
#include "runtime/cuda/kernel.hpp"
#include "runtime/cuda/scopes.hpp"
#include "runtime/cuda/timing.hpp"
#include "runtime/gpu_backend.hpp"

namespace quarterturn::cuda {
namespace {

// Spilling inside a main loop costs more than any tile gains; a few bytes outside it cost nothing.
constexpr std::int64_t kMostSpillBytes = 64;

constexpr std::int64_t kStaging = 4 << 20;  // bytes of a pinned buffer that downloads pass through

// "sm_90a": the architecture with its own features, so that wgmma and the like are there. For
// Blackwell the family form serves every chip of the family. A chip that is newer than this library
// gets the plain form, which an older NVRTC can serve by PTX.
std::string arch_of(int major, int minor) {
  const int capability = major * 10 + minor;
  const char* suffix = capability == 90 ? "a" : capability >= 100 && capability < 130 ? "f" : "";
  return fmt::format("sm_{}{}", capability, suffix);
}

class CudaBackend final : public GpuBackend {
 public:
  CudaBackend(std::shared_ptr<CodeStore> store, BackendOptions options)
      : GpuBackend(std::move(store), {Vendor::nvidia, "an NVIDIA", "cubin", "cu", options.target,
                                      options.jit == Jit::on, options.dump}),
        options_(std::move(options)) {}

  ~CudaBackend() override {
    if (!primary_) return;
    if (staging_[0]) {
      const ContextScope scope(*api_, handle_, primary_);
      for (void* buffer : staging_)
        if (buffer) api_->cuMemFreeHost(buffer);
    }
    api_->cuDevicePrimaryCtxRelease(handle_);
  }

  Result<PrebuiltKernel> prebuilt(const Problem&, const Variant&) override {
    return Status(Code::no_compiler,
                  "CUDA kernels are compiled on the machine that runs them: install NVRTC "
                  "(QTURN_NVRTC names it), or use a store that holds their code");
  }

  bool enter() const override {
    return !has_context(*api_, handle_) && api_->cuCtxPushCurrent(primary_) == kSuccess;
  }
  void leave() const override {
    CUcontext ignored = nullptr;
    api_->cuCtxPopCurrent(&ignored);
  }
  Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                void* stream) const override {
    return static_cast<const LoadedKernel&>(kernel).launch(launch, args,
                                                           static_cast<CUstream>(stream));
  }

  Result<std::uint64_t> window_fallbacks(const Kernel& kernel) const override {
    if (auto status = refuse_capture(); !status.ok()) return status;
    const ContextScope scope(*api_, handle_, primary_);
    const RelaxedScope relaxed(*api_);
    auto rows = static_cast<const LoadedKernel&>(kernel).counter("quarterturn_stand_ins");
    if (!rows.ok() && rows.status().code() == Code::not_supported) return std::uint64_t{0};
    return rows;
  }

  Result<void*> allocate(std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
    const RelaxedScope relaxed(*api_);
    CUdeviceptr memory = 0;
    const auto error =
        api_->cuMemAlloc(&memory, static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1)));
    if (error != kSuccess)
      return api_->check(error, fmt::format("{} bytes of device memory", bytes).c_str());
    return reinterpret_cast<void*>(memory);
  }
  void release(void* memory) override {
    if (!memory || !unavailable_.ok()) return;
    const ContextScope scope(*api_, handle_, primary_);
    api_->cuMemFree(reinterpret_cast<CUdeviceptr>(memory));
  }
  Status upload(void* device, const void* host, std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
    if (auto status = api_->check(api_->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(device), host,
                                                     static_cast<std::size_t>(bytes)),
                                  "copy to the device");
        !status.ok())
      return status;
    // That may come back while the last of pageable memory is on its way, for which streams that
    // do not block on the default one would not wait.
    return api_->check(api_->cuStreamSynchronize(nullptr), "copy to the device");
  }
  Status download(void* host, const void* device, std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
    const auto from = reinterpret_cast<CUdeviceptr>(device);
    if (bytes >= 4 * kStaging) return download_staged(static_cast<char*>(host), from, bytes);
    return api_->check(api_->cuMemcpyDtoH(host, from, static_cast<std::size_t>(bytes)),
                       "copy from the device");
  }
  Status fill(void* device, unsigned char value, std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    if (bytes == 0) return {};
    const ContextScope scope(*api_, handle_, primary_);
    if (auto status =
            api_->check(api_->cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(device), value,
                                              static_cast<std::size_t>(bytes), nullptr),
                        "fill device memory");
        !status.ok())
      return status;
    return api_->check(api_->cuStreamSynchronize(nullptr), "fill device memory");
  }
  Status copy(void* to, const void* from, std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    if (bytes == 0) return {};
    const ContextScope scope(*api_, handle_, primary_);
    if (auto status = api_->check(api_->cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(to),
                                                          reinterpret_cast<CUdeviceptr>(from),
                                                          static_cast<std::size_t>(bytes), nullptr),
                                  "copy on the device");
        !status.ok())
      return status;
    return api_->check(api_->cuStreamSynchronize(nullptr), "copy on the device");
  }
  Status synchronize() override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
    return api_->check(api_->cuCtxSynchronize(), "synchronise");
  }
  std::unique_ptr<Stopwatch> stopwatch() override {
    if (!unavailable_.ok()) return nullptr;
    const ContextScope scope(*api_, handle_, primary_);
    return std::make_unique<EventClock>(*api_, handle_, primary_);
  }
  Result<std::unique_ptr<Recording>> record(
      const std::function<Status(void* stream)>& calls) override {
    if (!unavailable_.ok()) return unavailable_;
    auto out = std::make_unique<GraphRecording>(*api_, handle_, primary_);
    if (auto status = out->capture(calls); !status.ok()) return status;
    return std::unique_ptr<Recording>(std::move(out));
  }

 protected:
  Status open_device() override {
    auto api = driver_api(options_.driver);
    if (!api.ok()) return api.status();
    api_ = *api;
    int count = 0;
    api_->cuDeviceGetCount(&count);
    if (options_.ordinal < 0 || options_.ordinal >= count)
      return Status(
          Code::no_device,
          fmt::format(
              "device {} does not exist: the driver shows {} (CUDA_VISIBLE_DEVICES limits them)",
              options_.ordinal, count));
    if (auto status = api_->check(api_->cuDeviceGet(&handle_, options_.ordinal), "cuDeviceGet");
        !status.ok())
      return status;
    if (auto status = api_->check(api_->cuDevicePrimaryCtxRetain(&primary_, handle_),
                                  "cuDevicePrimaryCtxRetain");
        !status.ok())
      return status;
    describe();
    return {};
  }

  Result<std::string> find_compiler() override {
    auto found =
        Compiler::find(api_ ? api_->version : 0, options_.nvrtc, options_.worker, options_.limits);
    if (!found.ok()) return found.status();
    compiler_.emplace(std::move(*found));
    return compiler_->identity();
  }

  Result<Compiled> compile_text(const Source& source, const std::string& text,
                                const std::string& folder) const override {
    auto cubin = compiler_->compile(text, device_.target, source.flags, folder);
    if (!cubin.ok()) return cubin.status();
    return Compiled{std::move(cubin->code), std::move(cubin->log), cubin->registers,
                    cubin->spill_bytes, cubin->shared_bytes};
  }

  Status refuse_code(const CodeInfo& info) const override {
    Cubin figures;
    figures.log = info.log;
    parse_ptxas_log(figures);
    if (figures.serialised_wgmma)
      return Status(Code::rejected,
                    "ptxas serialised the wgmma instructions (C7510): registers of a product in "
                    "flight are touched");
    if (info.spills > kMostSpillBytes)
      return Status(Code::rejected,
                    fmt::format("{} bytes of registers are spilled; at most {} are accepted",
                                info.spills, kMostSpillBytes));
    return {};
  }

  Result<std::shared_ptr<const Kernel>> load_code(const std::string& code,
                                                  const Source& source) override {
    const ContextScope scope(*api_, handle_, primary_);
    const RelaxedScope relaxed(*api_);
    return LoadedKernel::load(*api_, handle_, code, source);
  }

  // The driver names a capture by a blocking stream when asked for the legacy stream; other
  // captures are not disturbed by what follows.
  Status refuse_capture() const override {
    if (!unavailable_.ok()) return {};
    const ContextScope scope(*api_, handle_, primary_);
    int state = kStreamCaptureNone;
    const CUresult error = api_->cuStreamIsCapturing(nullptr, &state);
    if (error == kSuccess && state == kStreamCaptureNone) return {};
    if (error != kSuccess && (error < kCaptureUnsupported || error > kCaptureLast)) return {};
    return Status(Code::capturing,
                  "a stream of this context is being captured: prepare may compile and load, so it "
                  "must come before the capture; only run belongs into it");
  }

 private:
  // The driver copies to pageable memory at a fraction of the link's rate: two pinned buffers take
  // turns instead, one filled by the device while the other is emptied.
  Status download_staged(char* host, CUdeviceptr device, std::int64_t bytes) {
    const std::lock_guard lock(staging_mutex_);
    for (void*& buffer : staging_)
      if (!buffer)
        if (auto status = api_->check(api_->cuMemAllocHost(&buffer, kStaging), "pinned memory");
            !status.ok())
          return status;
    const auto size_at = [&](std::int64_t at) {
      return static_cast<std::size_t>(std::min<std::int64_t>(kStaging, bytes - at));
    };
    // What was enqueued on any stream is done first, as for a plain copy.
    CUresult error = api_->cuMemcpyDtoHAsync(staging_[0], device, size_at(0), nullptr);
    for (std::int64_t at = 0, turn = 0; error == kSuccess && at < bytes; at += kStaging, ++turn) {
      error = api_->cuStreamSynchronize(nullptr);
      const std::int64_t next = at + kStaging;
      if (error == kSuccess && next < bytes)
        error = api_->cuMemcpyDtoHAsync(staging_[(turn + 1) % 2],
                                        device + static_cast<CUdeviceptr>(next), size_at(next),
                                        nullptr);
      if (error == kSuccess) std::memcpy(host + at, staging_[turn % 2], size_at(at));
    }
    return api_->check(error, "copy from the device");
  }

  void describe() {
    const auto attribute = [&](int which) {
      int value = 0;
      api_->cuDeviceGetAttribute(&value, which, handle_);
      return value;
    };
    char name[256] = {};
    std::size_t memory = 0;
    api_->cuDeviceGetName(name, sizeof name, handle_);
    api_->cuDeviceTotalMem(&memory, handle_);
    device_.name = name;
    device_.ordinal = options_.ordinal;
    device_.units = attribute(kDeviceSmCount);
    device_.memory_bytes = static_cast<std::int64_t>(memory);
    device_.driver = fmt::format("cuda {}.{}", api_->version / 1000, api_->version % 1000 / 10);
    if (!has_own_target())
      device_.target = *parse_target(
          arch_of(attribute(kDeviceCapabilityMajor), attribute(kDeviceCapabilityMinor)));
    device_.target.shared_bytes = attribute(kDeviceSharedOptIn);
    const double gib = static_cast<double>(memory) / static_cast<double>(1u << 30);
    device_.performance_class = fmt::format(
        "{}nvidia model={} units={} l2={} memory_gib={}", class_prefix(api_->library),
        device_.target.arch, device_.units, attribute(kDeviceL2Bytes), std::llround(gib));
  }

  BackendOptions options_;
  const DriverApi* api_ = nullptr;
  CUdevice handle_ = 0;
  CUcontext primary_ = nullptr;
  std::mutex staging_mutex_;
  void* staging_[2] = {};
  std::optional<Compiler> compiler_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options) {
  auto out = std::make_unique<CudaBackend>(std::move(store), options);
  if (auto status = out->open(); !status.ok()) return status;
  return std::unique_ptr<Backend>(std::move(out));
}

Result<std::int32_t> device_count(const std::string& driver) {
  auto api = driver_api(driver);
  if (!api.ok()) return api.status();
  int count = 0;
  (*api)->cuDeviceGetCount(&count);
  return count;
}

}  // namespace quarterturn::cuda
