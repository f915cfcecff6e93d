// Backend: what the runtime needs of a device. One implementation a vendor (cpu, cuda, hip); tests
// inject made-up ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "generator/family.hpp"
#include "generator/source.hpp"
#include "generator/status.hpp"
#include "generator/target.hpp"
#include "templates/args.h"

namespace quarterturn {

/// Who a device is: the target decides what is legal, the performance class what is comparable, and
/// the validators when a stored answer is stale (design: keys and validity).
struct DeviceInfo {
  std::string name;  ///< for people only, never in a key
  std::int32_t ordinal = 0;
  Target target;
  std::string performance_class;  ///< canonical: "cpu model=... cores=2 l2=... l3=..."
  std::int64_t units = 1;         ///< worker threads of a CPU, SMs or CUs of a GPU
  std::int64_t memory_bytes = 0;
  std::string driver;    ///< soft validators; empty where there is none
  std::string compiler;  ///< identity of the run-time compiler: path-free, with version and build
};

/// Compiled code as stored: a path for the CPU (dlopen needs a file), and the compiler's figures.
struct Binary {
  std::string path;
  std::string target;  ///< the Target::key it was compiled for
  Digest key{};        ///< names the code: source, flags, target, compiler
  std::string log;     ///< what the compiler said
  std::int64_t compile_ms = 0;
  std::int64_t registers = 0, spills = 0, shared_bytes = 0;
  bool cached = false;  ///< found in the code store, not compiled now
};

/// A loaded kernel: immutable, usable from many threads, kept alive by the plans that use it.
class Kernel {
 public:
  virtual ~Kernel() = default;
};

/// A kernel that came with the library. Its variant decides launch and layouts, as for any other.
struct PrebuiltKernel {
  std::shared_ptr<const Kernel> kernel;
  Variant variant;
};

/// Where time is taken from, so that tests can inject a clock.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual void start(void* stream) = 0;
  /// Seconds since start, once everything enqueued on `stream` is done.
  virtual double stop(void* stream) = 0;
};

/// Calls that are started together: the host's time between short kernels is not theirs.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual Status start(void* stream) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const DeviceInfo& device() const = 0;
  /// Ok where kernels run; else why code is compiled for this device and cannot be tried.
  virtual Status usable() const { return {}; }

  /// Compiles in a worker process, or finds the code in the store; never both at once for one key.
  virtual Result<Binary> compile(const Source& source) = 0;
  /// Whether `compile` would find the code in the store.
  virtual bool has_code(const Source&) { return false; }
  virtual Result<std::shared_ptr<const Kernel>> load(const Binary& binary,
                                                     const Source& source) = 0;

  /// A kernel that needs no compiler, for one step of a plan, and the variant it is; an error where
  /// there is none.
  virtual Result<PrebuiltKernel> prebuilt(const Problem& step, const Variant& wanted) = 0;

  /// The target whose default plans `prebuilt` has kernels for.
  virtual Target prebuilt_target() const { return device().target; }

  /// Around the launches of a run: gives the calling thread a context of this device where it has
  /// none. Returns whether `leave` must follow.
  virtual bool enter() const { return false; }
  virtual void leave() const {}

  /// Starts a kernel, between `enter` and `leave`; never compiles, loads, allocates, locks or
  /// synchronises. CPU: runs to the end.
  virtual Status launch(const Kernel& kernel, const Launch& launch, const qt_args& args,
                        void* stream) const = 0;

  /// Device memory for tuning, admission and owned weights; never used by run.
  virtual Result<void*> allocate(std::int64_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual Status upload(void* device, const void* host, std::int64_t bytes) = 0;
  virtual Status download(void* host, const void* device, std::int64_t bytes) = 0;
  /// Device memory filled with one byte, or copied from other device memory, done on return.
  virtual Status fill(void* device, unsigned char value, std::int64_t bytes) {
    const std::vector<unsigned char> content(static_cast<std::size_t>(bytes), value);
    return upload(device, content.data(), bytes);
  }
  virtual Status copy(void* to, const void* from, std::int64_t bytes) {
    std::vector<unsigned char> content(static_cast<std::size_t>(bytes));
    if (auto status = download(content.data(), from, bytes); !status.ok()) return status;
    return upload(to, content.data(), bytes);
  }
  virtual Status synchronize() = 0;
  virtual std::unique_ptr<Stopwatch> stopwatch() = 0;
  /// What `calls` enqueues on the stream that it is given, unrolled; null where a device has no
  /// such thing.
  virtual Result<std::unique_ptr<Recording>> record(
      const std::function<Status(void* stream)>& /*calls*/) {
    return std::unique_ptr<Recording>();
  }

  /// Rows that a kernel has computed outside its window since it was loaded. `capturing` while that
  /// cannot be read. Waits for the device: for statistics, never by run.
  virtual Result<std::uint64_t> window_fallbacks(const Kernel&) const { return std::uint64_t{0}; }

  /// The same device with another number of workers is another performance class.
  virtual std::int64_t threads() const { return device().units; }
};

}  // namespace quarterturn
