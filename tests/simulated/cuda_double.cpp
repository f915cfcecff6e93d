// A double of libcuda over the simulated machine: memory is guarded host memory, streams run what
// they are given at once, graphs are lists of calls, kernels are shared objects of the NVRTC
// double. A launch that goes wrong is CUDA_ERROR_LAUNCH_FAILED, and its description says what
// happened.
#include "tests/simulated/scheduler.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/cuda/driver_api.hpp"
#include "tests/simulated/device_memory.hpp"
#include "tests/simulated/kernel_compiler.hpp"
#include "tests/simulated/tensor_map.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda;

// The driver's opaque handles.
namespace quarterturn::cuda {
struct CUctx_st {
  CUdevice device;
  int users = 0;
};
struct CUgraph_st {
  std::vector<std::function<CUresult()>> calls;
};
struct CUgraphExec_st {
  std::vector<std::function<CUresult()>> calls;
};
struct CUstream_st {
  CUgraph_st* capturing = nullptr;
};
struct CUevent_st {
  std::chrono::steady_clock::time_point at;
};
struct CUkern_st {
  std::string name;
  const simulated::Entry* entry;
  simulated::Machine** slot;
  int most_dynamic_shared = 48 << 10;
};
struct CUlib_st {
  void* handle = nullptr;
  std::vector<std::unique_ptr<CUkern_st>> kernels;
};
}  // namespace quarterturn::cuda

namespace {

constexpr CUresult kInvalidValue = 1, kOutOfMemory = 2, kInvalidImage = 200, kNotFound = 500,
                   kLaunchFailed = 719, kNotSupported = 801;

struct DeviceModel {
  const char* name;
  int major, minor, shared_opt_in;
};
constexpr DeviceModel kModels[] = {{"simulated sm_90a", 9, 0, 227 << 10},
                                   {"simulated sm_80", 8, 0, 163 << 10},
                                   {"simulated sm_100f", 10, 0, 227 << 10},
                                   {"simulated sm_120f", 12, 0, 99 << 10}};
constexpr int kDevices = static_cast<int>(std::size(kModels));
constexpr int kUnits = 4;

CUctx_st contexts[kDevices] = {{0}, {1}, {2}, {3}};
thread_local std::vector<CUcontext> context_stack;
thread_local std::string failure = "no failure";
std::mutex schedule_mutex;
simulated::Schedule schedule;
std::atomic<int> captures{0};

bool is_device(CUdevice device) { return device >= 0 && device < kDevices; }

// Does it now, or later, where the stream is captured.
CUresult enqueue(CUstream stream, std::function<CUresult()> call) {
  if (!stream || !stream->capturing) return call();
  stream->capturing->calls.push_back(std::move(call));
  return kSuccess;
}

CUresult run_all(const std::vector<std::function<CUresult()>>& calls) {
  for (const auto& call : calls)
    if (const auto error = call()) return error;
  return kSuccess;
}

CUresult launch(const CUkern_st& kernel, const simulated::LaunchShape& shape,
                const std::vector<std::vector<std::uint64_t>>& parameters) {
  std::vector<void*> pointers;
  for (const auto& p : parameters) pointers.push_back(const_cast<std::uint64_t*>(p.data()));
  simulated::Schedule chosen;
  {
    const std::lock_guard lock(schedule_mutex);
    chosen = schedule;
  }
  const auto wrong = simulated::run(shape, chosen, *kernel.entry, pointers.data(), kernel.slot,
                                    simulated::describe_address);
  if (wrong.empty()) return kSuccess;
  failure = fmt::format("{} (seed {}, {}): {}", kernel.name, chosen.seed,
                        chosen.landing == simulated::Landing::late    ? "late"
                        : chosen.landing == simulated::Landing::eager ? "eager"
                                                                      : "mixed",
                        wrong);
  return kLaunchFailed;
}

void* pointer(CUdeviceptr memory) { return reinterpret_cast<void*>(memory); }

}  // namespace

extern "C" {

// ---- driver and devices

static CUresult cuInit(unsigned int) { return kSuccess; }
static CUresult cuDriverGetVersion(int* version) { return *version = 13000, kSuccess; }
static CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == kLaunchFailed  ? "CUDA_ERROR_LAUNCH_FAILED"
          : error == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
                                  : "CUDA_ERROR";
  return kSuccess;
}
static CUresult cuGetErrorString(CUresult error, const char** text) {
  static thread_local std::string said;
  said =
      error == kLaunchFailed || error == kInvalidImage ? failure : fmt::format("error {}", error);
  *text = said.c_str();
  return kSuccess;
}
static CUresult cuDeviceGetCount(int* count) { return *count = kDevices, kSuccess; }
static CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!is_device(ordinal)) return 101;
  return *device = ordinal, kSuccess;
}
static CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!is_device(device)) return 101;
  std::snprintf(name, static_cast<std::size_t>(length), "%s", kModels[device].name);
  return kSuccess;
}
static CUresult cuDeviceGetAttribute(int* value, int attribute, CUdevice device) {
  if (!is_device(device)) return 101;
  const auto& model = kModels[device];
  switch (attribute) {
    case kDeviceSmCount:
      return *value = kUnits, kSuccess;
    case kDeviceClockRate:
      return *value = 1000000, kSuccess;
    case kDeviceL2Bytes:
      return *value = 1 << 20, kSuccess;
    case kDeviceCapabilityMajor:
      return *value = model.major, kSuccess;
    case kDeviceCapabilityMinor:
      return *value = model.minor, kSuccess;
    case kDeviceSharedOptIn:
      return *value = model.shared_opt_in, kSuccess;
    default:
      return kInvalidValue;
  }
}
static CUresult cuDeviceTotalMem(std::size_t* bytes, CUdevice) {
  return *bytes = std::size_t(1) << 30, kSuccess;
}

// ---- contexts

static CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (!is_device(device)) return 101;
  ++contexts[device].users;
  return *context = &contexts[device], kSuccess;
}
static CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return is_device(device) ? (--contexts[device].users, kSuccess) : 101;
}
static CUresult cuCtxGetCurrent(CUcontext* context) {
  return *context = context_stack.empty() ? nullptr : context_stack.back(), kSuccess;
}
static CUresult cuCtxGetDevice(CUdevice* device) {
  if (context_stack.empty()) return kInvalidContext;
  return *device = context_stack.back()->device, kSuccess;
}
static CUresult cuCtxPushCurrent(CUcontext context) {
  return context_stack.push_back(context), kSuccess;
}
static CUresult cuCtxPopCurrent(CUcontext* context) {
  if (context_stack.empty()) return kInvalidContext;
  *context = context_stack.back();
  context_stack.pop_back();
  return kSuccess;
}
static CUresult cuCtxSynchronize() { return kSuccess; }

// ---- code

static CUresult cuLibraryLoadData(CUlibrary* library, const void* code, int*, void**, unsigned int,
                                  int*, void**, unsigned int) {
  void* handle = simulated::load_object(code, failure);
  if (!handle) return kInvalidImage;
  *library = new CUlib_st{handle, {}};
  return kSuccess;
}
static CUresult cuLibraryUnload(CUlibrary library) {
  dlclose(library->handle);
  delete library;
  return kSuccess;
}
static CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const auto* entry = static_cast<const simulated::Entry*>(
      dlsym(library->handle, fmt::format("{}_simulated", name).c_str()));
  auto* slot = static_cast<simulated::Machine**>(dlsym(library->handle, "qt_simulated_machine"));
  if (!entry || !slot) return kNotFound;
  library->kernels.push_back(std::make_unique<CUkern_st>(CUkern_st{name, entry, slot}));
  return *kernel = library->kernels.back().get(), kSuccess;
}
static CUresult cuLibraryGetGlobal(CUdeviceptr* memory, std::size_t* bytes, CUlibrary library,
                                   const char* name) {
  void* at = dlsym(library->handle, name);
  if (!at) return kNotFound;
  *memory = reinterpret_cast<CUdeviceptr>(at);
  *bytes = sizeof(std::uint64_t);  // all that kernels declare are counters
  return kSuccess;
}
static CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice) {
  if (attribute == kFunctionMaxDynamicShared) kernel->most_dynamic_shared = value;
  return kSuccess;
}
static CUresult cuKernelGetAttribute(int* value, int, CUkernel, CUdevice) {
  return *value = 0, kSuccess;
}
static CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return *function = reinterpret_cast<CUfunction>(kernel), kSuccess;
}
static CUresult cuFuncGetAttribute(int* value, int, CUfunction) { return *value = 32, kSuccess; }
static CUresult cuThreadExchangeStreamCaptureMode(int*) { return kSuccess; }

static CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUkernel kernel, void** parameters,
                                 void**) {
  simulated::LaunchShape shape;
  shape.grid = {config->grid[0], config->grid[1], config->grid[2]};
  shape.block = {config->block[0], config->block[1], config->block[2]};
  shape.shared_bytes = config->shared_bytes;
  for (unsigned int i = 0; i < config->attribute_count; ++i)
    if (config->attributes[i].id == kAttributeClusterDimension) {
      const auto* c = config->attributes[i].value.cluster;
      shape.cluster = {c[0], c[1], c[2]};
    }
  if (static_cast<int>(config->shared_bytes) > kernel->most_dynamic_shared) return kInvalidValue;
  std::vector<std::vector<std::uint64_t>> copies;
  for (std::uint32_t i = 0; i < kernel->entry->count; ++i) {
    copies.emplace_back((kernel->entry->size_bytes[i] + 7) / 8 + 8);
    std::memcpy(copies.back().data(), parameters[i], kernel->entry->size_bytes[i]);
  }
  return enqueue(config->stream,
                 [kernel, shape, copies] { return launch(*kernel, shape, copies); });
}

// ---- memory

static CUresult cuMemAlloc(CUdeviceptr* memory, std::size_t bytes) {
  void* at = simulated::allocate_guarded(bytes);
  return at ? (*memory = reinterpret_cast<CUdeviceptr>(at), kSuccess) : kOutOfMemory;
}
static CUresult cuMemFree(CUdeviceptr memory) {
  return memory == 0 || simulated::free_guarded(pointer(memory)) ? kSuccess : kInvalidValue;
}
static CUresult cuMemAllocHost(void** memory, std::size_t bytes) {
  return *memory = std::malloc(bytes), *memory ? kSuccess : kOutOfMemory;
}
static CUresult cuMemFreeHost(void* memory) { return std::free(memory), kSuccess; }
static CUresult copy(void* to, const void* from, std::size_t bytes, const void* device) {
  if (bytes > 0 && simulated::bytes_behind(device) < bytes) {
    // Counters of loaded code are no allocation.
    if (!simulated::describe_address(device).empty()) return kInvalidValue;
  }
  std::memcpy(to, from, bytes);
  return kSuccess;
}
static CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  return copy(pointer(to), from, bytes, pointer(to));
}
static CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  return copy(to, pointer(from), bytes, pointer(from));
}
static CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  return enqueue(stream, [=] { return cuMemcpyDtoH(to, from, bytes); });
}
static CUresult cuMemsetD8Async(CUdeviceptr memory, unsigned char value, std::size_t bytes,
                                CUstream stream) {
  return enqueue(stream, [=] {
    if (simulated::bytes_behind(pointer(memory)) < bytes) return kInvalidValue;
    return std::memset(pointer(memory), value, bytes), kSuccess;
  });
}
static CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                                  CUstream stream) {
  return enqueue(stream, [=] {
    if (simulated::bytes_behind(pointer(from)) < bytes) return kInvalidValue;
    return copy(pointer(to), pointer(from), bytes, pointer(to));
  });
}

// ---- streams, graphs, events

static CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  return *stream = new CUstream_st, kSuccess;
}
static CUresult cuStreamDestroy(CUstream stream) { return delete stream, kSuccess; }
static CUresult cuStreamSynchronize(CUstream) { return kSuccess; }
static CUresult cuStreamIsCapturing(CUstream stream, int* state) {
  return *state = stream && stream->capturing ? 1 : 0, kSuccess;
}
static CUresult cuStreamBeginCapture(CUstream stream, int) {
  if (!stream || stream->capturing) return kInvalidValue;
  ++captures;
  return stream->capturing = new CUgraph_st, kSuccess;
}
static CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  if (!stream || !stream->capturing) return kInvalidValue;
  --captures;
  return *graph = std::exchange(stream->capturing, nullptr), kSuccess;
}
static CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  return *exec = new CUgraphExec_st{graph->calls}, kSuccess;
}
static CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return enqueue(stream, [calls = exec->calls] { return run_all(calls); });
}
static CUresult cuGraphExecDestroy(CUgraphExec exec) { return delete exec, kSuccess; }
static CUresult cuGraphDestroy(CUgraph graph) { return delete graph, kSuccess; }
static CUresult cuEventCreate(CUevent* event, unsigned int) {
  return *event = new CUevent_st, kSuccess;
}
static CUresult cuEventDestroy(CUevent event) { return delete event, kSuccess; }
static CUresult cuEventRecord(CUevent event, CUstream stream) {
  return enqueue(stream,
                 [event] { return event->at = std::chrono::steady_clock::now(), kSuccess; });
}
static CUresult cuEventSynchronize(CUevent) { return kSuccess; }
static CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->at - start->at).count();
  return kSuccess;
}

static CUresult cuTensorMapEncodeTiled(CUtensorMap* map, int type, std::uint32_t rank,
                                       void* address, const std::uint64_t* sizes,
                                       const std::uint64_t* strides, const std::uint32_t* box,
                                       const std::uint32_t* steps, int interleave, int swizzle, int,
                                       int fill) {
  if (interleave != 0 || fill != 0) return kNotSupported;
  static_assert(sizeof(simulated::TensorMap) <= sizeof(CUtensorMap));
  simulated::TensorMap out;
  if (!simulated::encode(out, type, rank, address, sizes, strides, box, steps, swizzle))
    return kInvalidValue;
  std::memcpy(map, static_cast<const void*>(&out), sizeof out);
  return kSuccess;
}

/// That the devices are simulated, and which (runtime/gpu_backend.hpp).
__attribute__((visibility("default"))) const char* qturn_simulated_devices() {
  return "sm_90a sm_80 sm_100f sm_120f";
}

/// How the launches that follow are run, in every thread: landing 0 late, 1 eager, 2 mixed.
__attribute__((visibility("default"))) void qturn_simulated_schedule(
    std::uint64_t seed, int landing, std::uint32_t resident_blocks) {
  const std::lock_guard lock(schedule_mutex);
  schedule = {seed, static_cast<simulated::Landing>(landing), resident_blocks};
}

__attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* name,
                                                                    void** function, int,
                                                                    std::uint64_t, int*) {
  *function = nullptr;
#define X(entry, parameters) \
  if (std::strcmp(name, #entry) == 0) *function = reinterpret_cast<void*>(&entry);
  QTURN_CUDA_ENTRIES(X)
#undef X
  return *function ? kSuccess : kNotFound;
}

}  // extern "C"
