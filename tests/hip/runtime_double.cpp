// A libamdhip64 for machines without an AMD GPU: device memory is host memory, launches are written
// down, and run where something stands behind them (device_work.hpp). QTURN_DOUBLE_DEVICES sets how
// many devices it shows.
#include "tests/hip/runtime_double.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "tests/hip/device_work.hpp"

using qturn_test::HipDouble;
using qturn_test::RecordedLaunch;
namespace work = qturn_test::work;

namespace {

constexpr int kNoDevice = 100, kInvalidDevice = 101, kInvalidValue = 1, kOutOfMemory = 2,
              kInvalidImage = 200, kNotFound = 500, kLaunchFailure = 719;

HipDouble& state() {
  static HipDouble all = [] {
    HipDouble out;
    if (const char* text = std::getenv("QTURN_DOUBLE_DEVICES")) out.devices = std::atoi(text);
    return out;
  }();
  return all;
}
thread_local int current = 0;

struct Function {
  void* entry;
  std::string name;
};
struct Module {
  void* code;
  std::vector<std::unique_ptr<Function>> functions;
};

struct Call {
  const Function* function;
  RecordedLaunch launch;
  int run() const {
    state().launches.push_back(launch);
    return work::run(function->entry, launch) ? 0 : kLaunchFailure;
  }
};
struct Stream {
  bool capturing = false;
  std::vector<Call> captured;
};
struct Graph {
  std::vector<Call> calls;
};
struct Event {
  std::chrono::steady_clock::time_point at;
};

}  // namespace

extern "C" {

HipDouble* qturn_double() { return &state(); }

int hipInit(unsigned) { return state().devices > 0 ? 0 : kNoDevice; }
int hipRuntimeGetVersion(int* version) {
  *version = 70125410;
  return 0;
}
int hipGetDeviceCount(int* count) {
  *count = state().devices;
  return state().devices > 0 ? 0 : kNoDevice;
}
int hipGetDevice(int* device) {
  *device = current;
  return 0;
}
int hipSetDevice(int device) {
  if (device < 0 || device >= state().devices) return kInvalidDevice;
  ++state().set_devices;
  current = device;
  return 0;
}
int hipDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 63   ? work::model().units
           : attribute == 19 ? 4 << 20
           : attribute == 74 ? 163840
                             : 0;
  return 0;
}
int hipDeviceGetName(char* name, int length, int) {
  std::strncpy(name, work::model().name, static_cast<std::size_t>(length));
  return 0;
}
int hipDeviceTotalMem(std::size_t* bytes, int) {
  *bytes = work::model().memory_bytes;
  return 0;
}
int hipGetDevicePropertiesR0600(void* out, int) {
  std::memset(out, 0, 1472);
  std::strcpy(static_cast<char*>(out) + 1160, state().arch.c_str());
  return 0;
}
// The structure that ROCm 5 filled: nobody who asks for the new one may call this.
int hipGetDeviceProperties(void*, int) { std::abort(); }
int hipDeviceSynchronize() { return 0; }
int hipMalloc(void** memory, std::size_t bytes) {
  *memory = work::allocate(bytes);
  state().live_allocations += *memory != nullptr;
  return *memory ? 0 : kOutOfMemory;
}
int hipFree(void* memory) {
  work::release(memory);
  --state().live_allocations;
  return 0;
}
int hipMemcpy(void* to, const void* from, std::size_t bytes, int) {
  std::memcpy(to, from, bytes);
  return 0;
}
int hipMemcpyAsync(void* to, const void* from, std::size_t bytes, int, void*) {
  std::memcpy(to, from, bytes);
  return 0;
}
int hipMemsetAsync(void* memory, int value, std::size_t bytes, void*) {
  std::memset(memory, value, bytes);
  return 0;
}
int hipModuleLoadData(void** module, const void* image) {
  void* code = work::load(image);
  if (!code) return kInvalidImage;
  *module = new Module{code, {}};
  ++state().live_modules;
  return 0;
}
int hipModuleUnload(void* module) {
  work::unload(static_cast<Module*>(module)->code);
  delete static_cast<Module*>(module);
  --state().live_modules;
  return 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  auto& of = *static_cast<Module*>(module);
  void* entry = work::entry(of.code, name);
  if (!entry) return kNotFound;
  of.functions.push_back(std::make_unique<Function>(Function{entry, name}));
  *function = of.functions.back().get();
  return 0;
}
int hipFuncGetAttribute(int* value, int, void*) {
  *value = 128;
  return 0;
}
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, void* stream,
                          void** parameters, void** extra) {
  if (const int error = state().fail_next_launch) {
    state().fail_next_launch = 0;
    return error;
  }
  if (gx == 0 || gy == 0 || gz == 0 || extra) return kInvalidValue;
  const auto* of = static_cast<const Function*>(function);
  const Call call{of,
                  {of->name,
                   {gx, gy, gz},
                   {bx, by, bz},
                   shared,
                   stream,
                   *static_cast<const qt_args*>(parameters[0]),
                   current}};
  auto* const on = static_cast<Stream*>(stream);
  if (!on || !on->capturing) return call.run();
  on->captured.push_back(call);
  return 0;
}
int hipStreamCreateWithFlags(void** stream, unsigned) {
  *stream = new Stream;
  ++state().live_streams;
  return 0;
}
int hipStreamSynchronize(void*) { return 0; }
int hipStreamDestroy(void* stream) {
  delete static_cast<Stream*>(stream);
  --state().live_streams;
  return 0;
}
int hipStreamIsCapturing(void* stream, int* capturing) {
  if (!stream && state().captures_of_null_stream) return 906;
  *capturing = stream && static_cast<Stream*>(stream)->capturing ? 1 : 0;
  return 0;
}
int hipStreamBeginCapture(void* stream, int) {
  static_cast<Stream*>(stream)->capturing = true;
  return 0;
}
int hipStreamEndCapture(void* stream, void** graph) {
  auto* on = static_cast<Stream*>(stream);
  on->capturing = false;
  *graph = new Graph{std::move(on->captured)};
  ++state().live_graphs;
  return 0;
}
int hipThreadExchangeStreamCaptureMode(int* mode) {
  static thread_local int now = 0;
  std::swap(*mode, now);
  return 0;
}
int hipGraphInstantiate(void** exec, void* graph, void**, char*, std::size_t) {
  *exec = new Graph(*static_cast<Graph*>(graph));
  ++state().live_graphs;
  return 0;
}
int hipGraphLaunch(void* exec, void*) {
  for (const auto& call : static_cast<Graph*>(exec)->calls)
    if (const int error = call.run()) return error;
  return 0;
}
int hipGraphExecDestroy(void* exec) {
  delete static_cast<Graph*>(exec);
  --state().live_graphs;
  return 0;
}
int hipGraphDestroy(void* graph) { return hipGraphExecDestroy(graph); }
int hipEventCreateWithFlags(void** event, unsigned) {
  *event = new Event;
  ++state().live_events;
  return 0;
}
int hipEventRecord(void* event, void*) {
  static_cast<Event*>(event)->at = std::chrono::steady_clock::now();
  return 0;
}
int hipEventSynchronize(void*) { return 0; }
int hipEventElapsedTime(float* milliseconds, void* begin, void* end) {
  *milliseconds = std::chrono::duration<float, std::milli>(static_cast<Event*>(end)->at -
                                                           static_cast<Event*>(begin)->at)
                      .count();
  return 0;
}
int hipEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  --state().live_events;
  return 0;
}
const char* hipGetErrorName(int error) {
  return error == kNoDevice ? "hipErrorNoDevice" : error == 0 ? "hipSuccess" : "hipErrorUnknown";
}
const char* hipGetErrorString(int error) {
  return error == kNoDevice        ? "no ROCm-capable device is detected"
         : error == kLaunchFailure ? work::failure().c_str()
                                   : "made up";
}
}
