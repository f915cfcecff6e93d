#include "runtime/cpu/backend.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>

#include "runtime/cpu/features.hpp"
#include "runtime/cpu/host_compiler.hpp"
#include "runtime/cpu/kernel.hpp"
#include "runtime/cpu/prebuilt.hpp"
#include "runtime/cpu/thread_pool.hpp"
#include "runtime/stored_code.hpp"

namespace quarterturn::cpu {
namespace {

// A shared object and its entry. It stays mapped while a plan holds it.
class LoadedKernel final : public CpuKernel {
 public:
  using Entry = void (*)(const qt_args* args, long long part);

  LoadedKernel(void* object, Entry entry) : object_(object), entry_(entry) {}
  ~LoadedKernel() override { dlclose(object_); }
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  void run(const ThreadPool& pool, const qt_args& args, std::int64_t parts) const override {
    struct Call {
      Entry entry;
      const qt_args* args;
    } const call{entry_, &args};
    pool.run(
        [](const void* context, std::int64_t part) {
          const auto& now = *static_cast<const Call*>(context);
          now.entry(now.args, part);
        },
        &call, parts);
  }

 private:
  void* object_;
  Entry entry_;
};

class WallClock final : public Stopwatch {
 public:
  void start(void*) override { start_ = std::chrono::steady_clock::now(); }
  double stop(void*) override {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_;
};

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<CodeStore> store, const BackendOptions& options, DeviceInfo device)
      : code_(std::move(store), "so"),
        options_(options),
        device_(std::move(device)),
        pool_(device_.units) {}

  Status find_compiler() {
    if (options_.jit == Jit::off) {
      no_compiler_ =
          Status(Code::no_compiler, "compiling is switched off (QTURN_NO_JIT, or jit off)");
      return no_compiler_;
    }
    auto found = HostCompiler::find(options_.compiler, options_.worker, options_.limits);
    if (!found.ok()) return no_compiler_ = found.status();
    compiler_.emplace(std::move(*found));
    device_.compiler = compiler_->identity();
    return {};
  }

  const DeviceInfo& device() const override { return device_; }
  std::int64_t threads() const override { return pool_.threads(); }

  Result<Binary> compile(const Source& source) override {
    auto flat = flatten(source);
    if (!flat.ok()) return flat.status();
    auto digest = source_digest(source, device_.target);
    if (!digest.ok()) return digest.status();
    if (!code_.has_store()) return no_compiler_;
    return compiler_ ? build(source, *flat, hex(*digest)) : find_stored(hex(*digest));
  }

  bool has_code(const Source& source) override {
    const auto digest = source_digest(source, device_.target);
    if (!digest.ok()) return false;
    const auto found =
        compiler_ ? code_.find(hex(*digest), compiler_->identity()) : code_.find_any(hex(*digest));
    return found.has_value();
  }

  Result<std::shared_ptr<const Kernel>> load(const Binary& binary, const Source& source) override {
    auto kernel = open_object(binary, source.entry);
    if (kernel.ok() || kernel.status().code() != Code::rejected || !binary.cached || !compiler_)
      return kernel;
    // What was stored is not what this machine takes: build it anew, once.
    auto digest = source_digest(source, device_.target);
    if (!digest.ok()) return digest.status();
    code_.remove(hex(*digest), compiler_->identity());
    auto fresh = compile(source);
    return fresh.ok() ? open_object(*fresh, source.entry) : kernel;
  }

  Result<PrebuiltKernel> prebuilt(const Problem& step, const Variant& wanted) override {
    return prebuilt_kernel(step, wanted);
  }
  Target prebuilt_target() const override { return portable_target(); }

  Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                void*) const override {
    static_cast<const CpuKernel&>(kernel).run(pool_, args, launch.parts);
    return {};
  }

  Result<void*> allocate(std::int64_t bytes) override {
    const auto padded = static_cast<std::size_t>(round_up(std::max<std::int64_t>(bytes, 1), 256));
    if (void* memory = std::aligned_alloc(256, padded)) return memory;
    return Status(Code::out_of_memory, fmt::format("no memory for {} bytes", bytes));
  }
  void release(void* memory) override { std::free(memory); }
  Status upload(void* device, const void* host, std::int64_t bytes) override {
    std::memcpy(device, host, static_cast<std::size_t>(bytes));
    return {};
  }
  Status download(void* host, const void* device, std::int64_t bytes) override {
    std::memcpy(host, device, static_cast<std::size_t>(bytes));
    return {};
  }
  Status synchronize() override { return {}; }
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<WallClock>(); }

  void set_machine(Target machine) { machine_ = std::move(machine); }

 private:
  Result<std::shared_ptr<const Kernel>> open_object(const Binary& binary,
                                                    const std::string& entry_name) const {
    // Asked of the code, not of the key: a store may have come from another machine.
    auto made_for = parse_target(binary.target);
    if (!made_for.ok()) return made_for.status();
    if (auto status = check_runs_on(*made_for, machine_); !status.ok()) return status;
    void* object = dlopen(binary.path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!object) {
      const char* reason = dlerror();
      const std::string said = reason ? reason : "unknown reason";
      struct statvfs place {};
      if (::statvfs(binary.path.c_str(), &place) == 0 && (place.f_flag & ST_NOEXEC) != 0)
        return Status(Code::io_error,
                      fmt::format("{} lies on a file system that is mounted noexec, so compiled "
                                  "kernels cannot be loaded; set QTURN_CODE_CACHE to a folder "
                                  "elsewhere ({})",
                                  binary.path, said));
      return Status(Code::rejected, fmt::format("{} cannot be loaded: {}", binary.path, said));
    }
    void* entry = dlsym(object, entry_name.c_str());
    if (!entry) {
      dlclose(object);
      return Status(Code::rejected, fmt::format("{} has no entry {}", binary.path, entry_name));
    }
    return std::shared_ptr<const Kernel>(
        std::make_shared<LoadedKernel>(object, reinterpret_cast<LoadedKernel::Entry>(entry)));
  }

  Result<Binary> build(const Source& source, const std::string& text, const std::string& digest) {
    {
      const std::lock_guard lock(mutex_);
      if (!no_compiler_.ok()) return find_stored(digest);
    }
    const auto compile = [&](const std::string& output) -> Result<CodeInfo> {
      namespace fs = std::filesystem;
      Compilation done;
      const auto folder = fs::path(output).parent_path().string();
      auto status = compiler_->compile(text, device_.target, source.flags, folder, done);
      dump(source, text, digest, done);
      if (!status.ok()) return status;
      std::error_code error;
      fs::rename(fs::path(folder) / HostCompiler::kObjectName, output, error);
      if (error)
        return Status(Code::io_error, fmt::format("cannot write {}: {}", output, error.message()));
      CodeInfo info;
      info.target = device_.target.key();
      info.compiler = compiler_->identity();
      info.flags = fmt::format("{}", fmt::join(HostCompiler::flags_for(device_.target), " "));
      info.log = done.log;
      info.compile_ms = done.milliseconds;
      return info;
    };
    auto entry = code_.get_or_build(digest, compiler_->identity(), compile);
    if (!entry.ok()) {
      if (entry.status().code() == Code::no_compiler) {
        const std::lock_guard lock(mutex_);
        no_compiler_ = entry.status();
      }
      return entry.status();
    }
    return binary_of(std::move(*entry));
  }

  Result<Binary> find_stored(const std::string& digest) const {
    auto entry = code_.find_any(digest);
    if (!entry) return no_compiler_;
    return binary_of(std::move(*entry));
  }

  void dump(const Source& source, const std::string& text, const std::string& digest,
            const Compilation& done) const {
    dump_text(options_.dump, digest, "source.cpp", source.text);
    dump_text(options_.dump, digest, "cpp", text);
    dump_text(options_.dump, digest, "command", done.command + "\n");
    dump_text(options_.dump, digest, "log", done.log);
  }

  StoredCode code_;
  BackendOptions options_;
  DeviceInfo device_;
  Target machine_;
  std::optional<HostCompiler> compiler_;
  std::mutex mutex_;
  Status no_compiler_;  ///< why nothing can be compiled; guarded by mutex_ once open
  ThreadPool pool_;
};

}  // namespace

Result<std::unique_ptr<Backend>> open_backend(std::shared_ptr<CodeStore> store,
                                              const BackendOptions& options) {
  const Cpu cpu = detect_cpu();
  DeviceInfo device;
  device.name = cpu.name;
  device.target = cpu.target;
  if (!options.target.empty()) {
    auto wanted = parse_target(options.target);
    if (!wanted.ok()) return wanted.status();
    if (auto status = check_runs_on(*wanted, cpu.target); !status.ok() && !options.compile_only)
      return status;
    device.target = std::move(*wanted);
  }
  if (options.threads < 0 || options.threads > 4096)
    return Status(Code::invalid_argument,
                  fmt::format("threads = {}: 0 (all that the process may use) to 4096 are allowed",
                              options.threads));
  device.units = options.threads > 0 ? options.threads : cpu.cores;
  device.performance_class = cpu.performance_class(device.units);
  device.memory_bytes = cpu.memory_bytes;
  auto out = std::make_unique<CpuBackend>(std::move(store), options, std::move(device));
  out->set_machine(cpu.target);
  // Without a compiler the back end is still of use: stored code and prebuilt kernels.
  (void)out->find_compiler();
  return std::unique_ptr<Backend>(std::move(out));
}

}  // namespace quarterturn::cpu
