#include "runtime/hip/backend.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>

#include "runtime/hip/kernel.hpp"
#include "runtime/hip/scopes.hpp"
#include "runtime/hip/timing.hpp"
#include "runtime/stored_code.hpp"

namespace quarterturn::hip {
namespace {

// Of a lane: spilling inside a main loop costs more than any tile gains; a few bytes outside it
// cost nothing.
constexpr std::int64_t kMostScratchBytes = 64;

// The device that `leave` gives back to the thread.
thread_local int device_before = 0;

class HipBackend final : public Backend {
 public:
  HipBackend(std::shared_ptr<CodeStore> store, BackendOptions options)
      : code_(std::move(store), "hsaco"), options_(std::move(options)) {}

  Status open() {
    if (!options_.target.empty()) {
      auto wanted = parse_target(options_.target);
      if (!wanted.ok()) return wanted.status();
      if (wanted->vendor != Vendor::amd)
        return Status(Code::invalid_argument,
                      fmt::format("'{}' is not an AMD target", options_.target));
      device_.target = std::move(*wanted);
    }
    unavailable_ = open_device();
    if (!unavailable_.ok() && options_.target.empty()) return unavailable_;
    find_compiler();
    return {};
  }

  const DeviceInfo& device() const override { return device_; }

  Result<Binary> compile(const Source& source) override {
    if (auto status = refuse_capture(); !status.ok()) return status;
    auto flat = flatten(source);
    if (!flat.ok()) return flat.status();
    auto digest = source_digest(source, device_.target);
    if (!digest.ok()) return digest.status();
    if (!code_.has_store()) return no_compiler_;
    if (!compiler_) {
      auto stored = code_.find_any(hex(*digest));
      if (!stored) return no_compiler_;
      return admit(std::move(*stored));
    }
    auto entry = code_.get_or_build(
        hex(*digest), compiler_->identity(),
        [&](const std::string& path) { return build(source, *flat, hex(*digest), path); });
    if (!entry.ok()) return entry.status();
    return admit(std::move(*entry));
  }

  bool has_code(const Source& source) override {
    const auto digest = source_digest(source, device_.target);
    if (!digest.ok()) return false;
    const auto found =
        compiler_ ? code_.find(hex(*digest), compiler_->identity()) : code_.find_any(hex(*digest));
    return found.has_value();
  }

  Result<std::shared_ptr<const Kernel>> load(const Binary& binary, const Source& source) override {
    if (!unavailable_.ok()) return unavailable_;
    if (auto status = refuse_capture(); !status.ok()) return status;
    const auto code = read_binary(binary);
    if (!code.ok()) return code.status();
    const DeviceScope scope(*api_, device_.ordinal);
    const RelaxedScope relaxed(*api_);
    return LoadedKernel::load(*api_, device_.ordinal, *code, source);
  }

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

  // The runtime names a capture by a blocking stream when asked for the null stream; other captures
  // are not disturbed by what follows.
  Status refuse_capture() const {
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

  Status open_device() {
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
    if (options_.target.empty()) device_.target = std::move(*target);
    if (const int bytes = attribute(kDeviceSharedBytes); bytes > 0)
      device_.target.shared_bytes = bytes;
    const double gib = static_cast<double>(memory) / static_cast<double>(1u << 30);
    device_.performance_class =
        fmt::format("amd model={} units={} l2={} memory_gib={}", device_.target.arch, device_.units,
                    attribute(kDeviceL2Bytes), std::llround(gib));
    return {};
  }

  void find_compiler() {
    if (options_.jit == Jit::off) {
      no_compiler_ =
          Status(Code::no_compiler, "compiling is switched off (QTURN_NO_JIT, or jit off)");
      return;
    }
    auto found =
        Compiler::find(options_.compiler, device_.target.arch, options_.worker, options_.limits);
    if (!found.ok()) {
      no_compiler_ = found.status();
      return;
    }
    compiler_.emplace(std::move(*found));
    device_.compiler = compiler_->identity();
  }

  Result<CodeInfo> build(const Source& source, const std::string& text, const std::string& digest,
                         const std::string& path) const {
    namespace fs = std::filesystem;
    const auto begin = std::chrono::steady_clock::now();
    auto compiled = compiler_->compile(text, source.entry, device_.target, source.flags,
                                       fs::path(path).parent_path().string());
    dump(source, text, digest, compiled.ok() ? compiled->log : compiled.status().message());
    if (!compiled.ok()) return compiled.status();
    if (auto status = write_binary(path, compiled->code); !status.ok()) return status;
    CodeInfo info;
    info.target = device_.target.key();
    info.compiler = compiler_->identity();
    info.flags = fmt::format("{}", fmt::join(source.flags, " "));
    info.log = compiled->log;
    info.registers = compiled->note.vector_registers;
    info.spills = compiled->note.scratch_bytes;
    info.shared_bytes = compiled->note.lds_bytes;
    info.compile_ms = std::chrono::duration_cast<std::chrono::milliseconds>(
                          std::chrono::steady_clock::now() - begin)
                          .count();
    return info;
  }

  // Code that compiled can be rejected: it is stored all the same, so that nobody compiles it
  // twice.
  static Result<Binary> admit(CodeEntry entry) {
    if (entry.info.spills > kMostScratchBytes)
      return Status(Code::rejected,
                    fmt::format("a lane needs {} bytes of scratch memory for spilled registers; at "
                                "most {} are accepted",
                                entry.info.spills, kMostScratchBytes));
    return binary_of(std::move(entry));
  }

  void dump(const Source& source, const std::string& text, const std::string& digest,
            const std::string& log) const {
    dump_text(options_.dump, digest, "source.hip", source.text);
    dump_text(options_.dump, digest, "hip", text);
    dump_text(options_.dump, digest, "log", log);
  }

  StoredCode code_;
  BackendOptions options_;
  DeviceInfo device_;
  const RuntimeApi* api_ = nullptr;
  Status unavailable_;  ///< why nothing can run here
  Status no_compiler_;
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

}  // namespace quarterturn::hip
