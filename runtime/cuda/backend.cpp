#include "runtime/cuda/backend.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "runtime/cuda/compiler.hpp"
#include "runtime/cuda/driver_api.hpp"
#include "runtime/cuda/kernel.hpp"

namespace quarterturn::cuda {
namespace {

// Spilling inside a main loop costs more than any tile gains; a few bytes outside it cost nothing.
constexpr std::int64_t kMostSpillBytes = 64;

// "sm_90a": the architecture with its own features, so that wgmma and the like are there. From
// Blackwell on the family form serves every chip of the family.
std::string arch_of(int major, int minor) {
  const int capability = major * 10 + minor;
  const char* suffix = capability >= 100 ? "f" : capability == 90 ? "a" : "";
  return fmt::format("sm_{}{}", capability, suffix);
}

// Makes a context of our device current for the scope, where the caller has none of that device.
class ContextScope {
 public:
  ContextScope(const DriverApi& api, CUdevice device, CUcontext primary) : api_(api) {
    CUcontext current = nullptr;
    CUdevice of = -1;
    if (api.cuCtxGetCurrent(&current) == kSuccess && current &&
        api.cuCtxGetDevice(&of) == kSuccess && of == device)
      return;
    pushed_ = api.cuCtxPushCurrent(primary) == kSuccess;
  }
  ~ContextScope() {
    CUcontext ignored = nullptr;
    if (pushed_) api_.cuCtxPopCurrent(&ignored);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const DriverApi& api_;
  bool pushed_ = false;
};

class EventClock final : public Stopwatch {
 public:
  explicit EventClock(const DriverApi& api) : api_(api) {
    api_.cuEventCreate(&begin_, 0);
    api_.cuEventCreate(&end_, 0);
  }
  ~EventClock() override {
    api_.cuEventDestroy(begin_);
    api_.cuEventDestroy(end_);
  }
  EventClock(const EventClock&) = delete;
  EventClock& operator=(const EventClock&) = delete;

  void start(void* stream) override { api_.cuEventRecord(begin_, static_cast<CUstream>(stream)); }
  double stop(void* stream) override {
    api_.cuEventRecord(end_, static_cast<CUstream>(stream));
    if (api_.cuEventSynchronize(end_) != kSuccess) return std::nan("");
    float milliseconds = 0;
    api_.cuEventElapsedTime(&milliseconds, begin_, end_);
    return milliseconds * 1e-3;
  }

 private:
  const DriverApi& api_;
  CUevent begin_ = nullptr, end_ = nullptr;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::shared_ptr<CodeStore> store, BackendOptions options)
      : store_(std::move(store)), options_(std::move(options)) {}

  ~CudaBackend() override {
    if (primary_) api_->cuDevicePrimaryCtxRelease(handle_);
  }

  Status open() {
    if (!options_.target.empty()) {
      auto wanted = parse_target(options_.target);
      if (!wanted.ok()) return wanted.status();
      if (wanted->vendor != Vendor::nvidia)
        return Status(Code::invalid_argument,
                      fmt::format("'{}' is not an NVIDIA target", options_.target));
      device_.target = std::move(*wanted);
    }
    unavailable_ = open_device();
    if (!unavailable_.ok() && options_.target.empty()) return unavailable_;
    find_compiler();
    return {};
  }

  const DeviceInfo& device() const override { return device_; }

  Result<Binary> compile(const Source& source) override {
    auto flat = flatten(source);
    if (!flat.ok()) return flat.status();
    auto digest = source_digest(source, device_.target);
    if (!digest.ok()) return digest.status();
    if (!store_ || !compiler_) return no_compiler_;
    const CodeKey key{fmt::format("source={}\ncompiler={}", hex(*digest), compiler_->identity()),
                      "cubin"};
    auto entry = store_->get_or_build(
        key, [&](const std::string& output) { return build(source, *flat, *digest, output); });
    if (!entry.ok()) return entry.status();
    return admit(std::move(*entry));
  }

  Result<std::shared_ptr<const Kernel>> load(const Binary& binary, const Source& source) override {
    if (!unavailable_.ok()) return unavailable_;
    auto entry = CodeEntry{};
    entry.path = binary.path;
    std::ifstream in(binary.path, std::ios::binary);
    std::string code((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (code.empty()) return Status(Code::io_error, fmt::format("{} cannot be read", binary.path));
    const ContextScope scope(*api_, handle_, primary_);
    return LoadedKernel::load(*api_, handle_, code, source.entry);
  }

  Result<PrebuiltKernel> prebuilt(const Problem&, const Variant&) override {
    return Status(Code::no_compiler,
                  "CUDA kernels are compiled on the machine that runs them: install NVRTC "
                  "(QTURN_NVRTC names it), or use a store that holds their code");
  }

  Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                void* stream) const override {
    return static_cast<const LoadedKernel&>(kernel).launch(launch, args,
                                                           static_cast<CUstream>(stream));
  }

  Result<void*> allocate(std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
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
    return api_->check(api_->cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(device), host,
                                          static_cast<std::size_t>(bytes)),
                       "copy to the device");
  }
  Status download(void* host, const void* device, std::int64_t bytes) override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
    return api_->check(api_->cuMemcpyDtoH(host, reinterpret_cast<CUdeviceptr>(device),
                                          static_cast<std::size_t>(bytes)),
                       "copy from the device");
  }
  Status synchronize() override {
    if (!unavailable_.ok()) return unavailable_;
    const ContextScope scope(*api_, handle_, primary_);
    return api_->check(api_->cuCtxSynchronize(), "synchronise");
  }
  std::unique_ptr<Stopwatch> stopwatch() override {
    const ContextScope scope(*api_, handle_, primary_);
    return std::make_unique<EventClock>(*api_);
  }

 private:
  Status open_device() {
    auto api = driver_api();
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
    if (options_.target.empty())
      device_.target = *parse_target(
          arch_of(attribute(kDeviceCapabilityMajor), attribute(kDeviceCapabilityMinor)));
    device_.target.shared_bytes = attribute(kDeviceSharedOptIn);
    const double gib = static_cast<double>(memory) / static_cast<double>(1u << 30);
    device_.performance_class =
        fmt::format("nvidia model={} units={} l2={} memory_gib={}", device_.target.arch,
                    device_.units, attribute(kDeviceL2Bytes), std::llround(gib));
  }

  void find_compiler() {
    auto found =
        Compiler::find(api_ ? api_->version : 0, options_.nvrtc, options_.worker, options_.limits);
    if (!found.ok()) {
      no_compiler_ = found.status();
      return;
    }
    compiler_.emplace(std::move(*found));
    device_.compiler = compiler_->identity();
  }

  Result<CodeInfo> build(const Source& source, const std::string& text, const Digest& digest,
                         const std::string& output) const {
    namespace fs = std::filesystem;
    const auto begin = std::chrono::steady_clock::now();
    auto cubin = compiler_->compile(text, device_.target, source.flags,
                                    fs::path(output).parent_path().string());
    dump(source, text, hex(digest), cubin.ok() ? cubin->log : cubin.status().message());
    if (!cubin.ok()) return cubin.status();
    std::ofstream out(output, std::ios::binary);
    out.write(cubin->code.data(), static_cast<std::streamsize>(cubin->code.size()));
    out.close();
    if (!out) return Status(Code::io_error, fmt::format("cannot write {}", output));
    CodeInfo info;
    info.target = device_.target.key();
    info.compiler = compiler_->identity();
    info.flags = fmt::format("{}", fmt::join(source.flags, " "));
    info.log = cubin->log;
    info.registers = cubin->registers;
    info.spills = cubin->spill_bytes;
    info.shared_bytes = cubin->shared_bytes;
    info.compile_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::steady_clock::now() - begin)
                          .count();
    return info;
  }

  // What ptxas said can reject code that compiled: it is stored all the same, so that nobody
  // compiles it twice.
  static Result<Binary> admit(CodeEntry entry) {
    Cubin figures;
    figures.log = entry.info.log;
    parse_ptxas_log(figures);
    if (figures.serialised_wgmma)
      return Status(Code::rejected,
                    "ptxas serialised the wgmma instructions (C7510): registers of a product in "
                    "flight are touched");
    if (entry.info.spills > kMostSpillBytes)
      return Status(Code::rejected,
                    fmt::format("{} bytes of registers are spilled; at most {} are accepted",
                                entry.info.spills, kMostSpillBytes));
    Binary out;
    out.path = std::move(entry.path);
    out.key = entry.key;
    out.log = std::move(entry.info.log);
    out.target = std::move(entry.info.target);
    out.compile_ms = entry.info.compile_ms;
    out.registers = entry.info.registers;
    out.spills = entry.info.spills;
    out.shared_bytes = entry.info.shared_bytes;
    out.cached = entry.origin != CodeOrigin::built;
    return out;
  }

  void dump(const Source& source, const std::string& text, const std::string& digest,
            const std::string& log) const {
    if (options_.dump.empty()) return;
    std::error_code ignored;
    std::filesystem::create_directories(options_.dump, ignored);
    const auto base = fmt::format("{}/{}", options_.dump, digest.substr(0, 16));
    std::ofstream(base + ".source.cu") << source.text;
    std::ofstream(base + ".cu") << text;
    std::ofstream(base + ".log") << log;
  }

  std::shared_ptr<CodeStore> store_;
  BackendOptions options_;
  DeviceInfo device_;
  const DriverApi* api_ = nullptr;
  CUdevice handle_ = 0;
  CUcontext primary_ = nullptr;
  Status unavailable_;  ///< why nothing can run here
  Status no_compiler_;
  std::optional<Compiler> compiler_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options) {
  auto out = std::make_unique<CudaBackend>(std::move(store), options);
  if (auto status = out->open(); !status.ok()) return status;
  return std::unique_ptr<Backend>(std::move(out));
}

Result<std::int32_t> device_count() {
  auto api = driver_api();
  if (!api.ok()) return api.status();
  int count = 0;
  (*api)->cuDeviceGetCount(&count);
  return count;
}

}  // namespace quarterturn::cuda
