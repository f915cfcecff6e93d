// What the GPU tests need of a device: memory with poisoned guards, kernels compiled from emitted
// sources, a stopwatch. Built on the CUDA back end's own parts.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "generator/cuda/families.hpp"
#include "runtime/backend.hpp"
#include "runtime/cuda/driver_api.hpp"
#include "runtime/cuda/kernel.hpp"
#include "runtime/cuda/nvrtc.hpp"

namespace quarterturn::cuda_test {

inline void require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// When a simulated device does asynchronous work.
enum class Landing { late, eager, mixed };

/// How a simulated device runs what is launched (tests/simulated/scheduler.hpp).
struct Schedule {
  std::uint64_t seed = 1;
  Landing landing = Landing::late;
};

/// A device with its primary context current on the calling thread that found it last.
class Device {
 public:
  /// Device `ordinal`, or null with the reason in `why`.
  /// QTURN_TEST_DEVICE is the first one's, 0 where it is not set.
  static Device* find(std::string& why, int ordinal = first_ordinal()) {
    static std::mutex mutex;
    static std::map<int, std::pair<Device*, std::string>> all;
    const std::lock_guard lock(mutex);
    if (const auto found = all.find(ordinal); found == all.end())
      all[ordinal].first = open(all[ordinal].second, ordinal);
    const auto& [device, reason] = all[ordinal];
    why = reason;
    return device;
  }

  static int first_ordinal() {
    const char* given = std::getenv("QTURN_TEST_DEVICE");
    return given ? std::atoi(given) : 0;
  }

  const cuda::DriverApi& api() const { return *api_; }
  const Target& target() const { return target_; }
  std::int64_t units() const { return units_; }
  cuda::CUstream stream() const { return stream_; }
  const std::string& name() const { return name_; }
  /// Kernels run on CPU fibers, and memory ends at a page that faults (tests/simulated/).
  bool simulated() const { return name_.starts_with("simulated"); }

  /// Makes the device's context current on another thread.
  void enter() const { check(api_->cuCtxPushCurrent(context_), "enter the context"); }

  void check(cuda::CUresult error, const char* what) const { require(api_->check(error, what)); }
  /// Copies from the host; done on return. cuMemcpyHtoD alone may come back while the last of
  /// pageable memory is on its way, and our stream does not wait for the default one.
  void copy_in(cuda::CUdeviceptr to, const void* from, std::size_t bytes) const {
    check(api_->cuMemcpyHtoD(to, from, bytes), "upload");
    check(api_->cuStreamSynchronize(nullptr), "upload");
  }
  void synchronize() const { check(api_->cuStreamSynchronize(stream_), "synchronise"); }

  /// The kernel of a variant; compiled once.
  const cuda::LoadedKernel& kernel(const Family& family, const Problem& problem,
                                   const Variant& variant) {
    const auto source = family.emit(problem, target_, variant);
    return kernel(source, family.name());
  }

  const cuda::LoadedKernel& kernel(const Source& source, std::string_view what) {
    return *shared_kernel(source, what);
  }

  std::shared_ptr<const cuda::LoadedKernel> shared_kernel(const Source& source,
                                                          std::string_view what) {
    auto flat = flatten(source);
    require(flat.status());
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = kernels_.find(*flat); found != kernels_.end()) return found->second;
    }
    auto cubin = cuda::nvrtc_compile(*flat, target_.arch, source.flags);
    if (!cubin.ok())
      throw std::runtime_error(
          fmt::format("{}: {}\n{}", what, cubin.status().message(), source.text));
    if (cubin->spill_bytes > 0 || cubin->serialised_wgmma)
      std::cout << "spills or serialised products: " << source.entry << "\n" << cubin->log << "\n";
    auto loaded = cuda::LoadedKernel::load(*api_, device_, cubin->code, source);
    require(loaded.status());
    auto kernel = std::dynamic_pointer_cast<const cuda::LoadedKernel>(*loaded);
    const std::lock_guard lock(mutex_);
    return kernels_.emplace(*flat, std::move(kernel)).first->second;
  }

  /// Of the launches that follow, where the device is simulated.
  void schedule(std::uint64_t seed, Landing landing, std::uint32_t resident_blocks = 3) const {
    using Set = void (*)(std::uint64_t, int, std::uint32_t);
    if (const auto set = reinterpret_cast<Set>(api_->library.symbol("qturn_simulated_schedule")))
      set(seed, static_cast<int>(landing), resident_blocks);
  }
  void schedule(const Schedule& how) const { schedule(how.seed, how.landing); }
  /// Every case is run under each of these: once on a GPU; on a simulated device late, eager and
  /// mixed, under seeds that no other case has. QTURN_TEST_SEED adds to the seeds.
  std::vector<Schedule> schedules() {
    if (!simulated()) return {{}};
    static const std::uint64_t first = [] {
      const char* given = std::getenv("QTURN_TEST_SEED");
      return given ? std::strtoull(given, nullptr, 10) : 0;
    }();
    // Landings mix with the manners that a seed chooses.
    std::vector<Schedule> out;
    ++cases_;
    for (std::uint64_t i = 0; i < runs_of_case(); ++i)
      out.push_back({first + 4 * cases_ + i, static_cast<Landing>(i % 3)});
    return out;
  }
  std::uint64_t runs_of_case() const { return simulated() ? 3 * rounds_ : 1; }
  /// Families whose blocks wait for each other are run under so many times as many schedules.
  void set_rounds(std::uint64_t rounds) { rounds_ = rounds; }
  /// The next of such schedules, for tests that run a case once.
  void rotate_schedule() {
    if (simulated()) schedule(schedules()[cases_ % 3]);
  }

  /// Enqueues one call of a variant.
  /// As on a chip of so many units; 0: of this one's.
  void run(const Family& family, const Problem& problem, const Variant& variant,
           const qt_args& args, std::int64_t units = 0) {
    rotate_schedule();
    run_as_scheduled(family, problem, variant, args, units);
  }
  void run_as_scheduled(const Family& family, const Problem& problem, const Variant& variant,
                        const qt_args& args, std::int64_t units = 0) {
    const auto launch = family.launch(problem, variant, args, units > 0 ? units : units_);
    require(kernel(family, problem, variant).launch(launch, args, stream_));
  }

 private:
  static Device* open(std::string& why, int ordinal) {
    // A double of libcuda and libnvrtc in one file: kernels run on CPU fibers.
    const char* simulated = std::getenv("QTURN_TEST_SIMULATED_CUDA");
    const std::string library = simulated ? simulated : "";
    auto api = cuda::driver_api(library);
    if (!api.ok()) return why = api.status().message(), nullptr;
    if (!library.empty()) require(cuda::nvrtc_open(0, library));
    if (auto identity = cuda::nvrtc_identity(); !identity.ok())
      return why = identity.status().message(), nullptr;
    auto device = std::make_unique<Device>();
    device->api_ = *api;
    const auto& d = **api;
    int major = 0, minor = 0, units = 0, count = 0;
    d.cuDeviceGetCount(&count);
    if (ordinal >= count || d.cuDeviceGet(&device->device_, ordinal) != 0)
      return why = "no device", nullptr;
    d.cuDeviceGetAttribute(&major, cuda::kDeviceCapabilityMajor, device->device_);
    d.cuDeviceGetAttribute(&minor, cuda::kDeviceCapabilityMinor, device->device_);
    d.cuDeviceGetAttribute(&units, cuda::kDeviceSmCount, device->device_);
    char name[128] = {};
    d.cuDeviceGetName(name, sizeof name, device->device_);
    device->name_ = name;
    device->units_ = units;
    const char* features = major >= 10 ? "f" : major == 9 ? "a" : "";
    device->target_ = *parse_target(fmt::format("sm_{}{}{}", major, minor, features));
    if (d.cuDevicePrimaryCtxRetain(&device->context_, device->device_) != 0 ||
        d.cuCtxPushCurrent(device->context_) != 0 || d.cuStreamCreate(&device->stream_, 1) != 0)
      return why = "no context", nullptr;
    return device.release();  // lives as long as the process
  }

  const cuda::DriverApi* api_ = nullptr;
  cuda::CUdevice device_ = 0;
  cuda::CUcontext context_ = nullptr;
  cuda::CUstream stream_ = nullptr;
  Target target_;
  std::int64_t units_ = 0;
  std::string name_;
  std::uint64_t cases_ = 0, rounds_ = 1;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const cuda::LoadedKernel>> kernels_;
};

/// On a simulated device one in `every` of many cases that differ little: compiling takes longest.
inline bool is_left_out(const Device& device, std::size_t index, std::size_t every) {
  return device.simulated() && index % every != 0;
}

/// Device memory between two guards of 4096 bytes of 0xff, itself filled with 0xff at first: codes
/// of -6, scales of NaN, floats of NaN. On a simulated device nothing lies behind it.
class Memory {
 public:
  Memory(Device& device, std::int64_t bytes)
      : device_(device), bytes_(bytes), behind_(device.simulated() ? 0 : kGuard) {
    device.check(device.api().cuMemAlloc(&whole_, whole_bytes()), "allocate");
    poison();
  }
  template <class T>
  Memory(Device& device, const std::vector<T>& values)
      : Memory(device, static_cast<std::int64_t>(values.size() * sizeof(T))) {
    upload(values.data());
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { device_.api().cuMemFree(whole_); }

  void poison() {
    device_.check(device_.api().cuMemsetD8Async(whole_, 0xff, whole_bytes(), device_.stream()),
                  "poison");
    device_.synchronize();
  }
  void upload(const void* from) {
    if (bytes_ > 0) device_.copy_in(whole_ + kGuard, from, static_cast<std::size_t>(bytes_));
  }
  template <class T = unsigned char>
  T* data(std::int64_t offset = 0) const {
    return reinterpret_cast<T*>(whole_ + kGuard) + offset;
  }
  template <class T = unsigned char>
  std::vector<T> download() const {
    device_.synchronize();
    std::vector<unsigned char> all(whole_bytes());
    device_.check(device_.api().cuMemcpyDtoH(all.data(), whole_, all.size()), "download");
    const auto is_kept = [](unsigned char byte) { return byte == 0xff; };
    const auto end = all.end() - static_cast<std::ptrdiff_t>(behind_);
    if (!std::all_of(all.begin(), all.begin() + kGuard, is_kept) ||
        !std::all_of(end, all.end(), is_kept))
      throw std::runtime_error("a kernel wrote outside its result");
    std::vector<T> out(static_cast<std::size_t>(bytes_) / sizeof(T));
    std::memcpy(out.data(), all.data() + kGuard, out.size() * sizeof(T));
    return out;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kGuard = 4096;
  std::size_t whole_bytes() const { return static_cast<std::size_t>(bytes_) + kGuard + behind_; }

  Device& device_;
  std::int64_t bytes_;
  std::size_t behind_;
  cuda::CUdeviceptr whole_ = 0;
};

/// Compiles kernels on as many threads as there are, so that later calls find them.
inline void compile_all(Device& device,
                        const std::vector<std::pair<Source, std::string>>& sources) {
  // A mutant is killed by the first kernel that it spoils: the others need not be compiled.
  if (std::getenv("QTURN_SIMULATED_MUTANT")) return;
  std::atomic<std::size_t> next{0};
  std::vector<std::future<void>> work;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    work.push_back(std::async(std::launch::async, [&] {
      device.enter();  // loading needs a context
      for (auto at = next++; at < sources.size(); at = next++)
        device.kernel(sources[at].first, sources[at].second);
    }));
  for (auto& one : work) one.get();
}

/// The device as the runtime's Executable wants it: compiles in process, keeps no store.
class DeviceBackend final : public Backend {
 public:
  explicit DeviceBackend(Device& device) : device_(device) {
    info_.name = device.name();
    info_.target = device.target();
    info_.units = device.units();
  }
  const DeviceInfo& device() const override { return info_; }
  Result<Binary> compile(const Source&) override { return Binary{}; }
  Result<std::shared_ptr<const Kernel>> load(const Binary&, const Source& source) override {
    return std::shared_ptr<const Kernel>(device_.shared_kernel(source, source.entry));
  }
  Result<PrebuiltKernel> prebuilt(const Problem&, const Variant&) override {
    return Status(Code::not_supported, "none");
  }
  Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                void* stream) const override {
    device_.rotate_schedule();
    return static_cast<const cuda::LoadedKernel&>(kernel).launch(
        launch, args, static_cast<cuda::CUstream>(stream));
  }
  Result<void*> allocate(std::int64_t) override { return Status(Code::not_supported, "tests do"); }
  void release(void*) override {}
  Status upload(void*, const void*, std::int64_t) override { return {}; }
  Status download(void*, const void*, std::int64_t) override { return {}; }
  Status synchronize() override { return device_.synchronize(), Status{}; }
  std::unique_ptr<Stopwatch> stopwatch() override { return nullptr; }

 private:
  Device& device_;
  DeviceInfo info_;
};

}  // namespace quarterturn::cuda_test
