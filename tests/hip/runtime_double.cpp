// A libamdhip64 for machines without an AMD GPU: device memory is host memory, launches are written
// down. QTURN_DOUBLE_DEVICES sets how many MI355X it shows.
#include "tests/hip/runtime_double.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

using qturn_test::HipDouble;
using qturn_test::RecordedLaunch;

namespace {

constexpr int kNoDevice = 100, kInvalidDevice = 101, kInvalidValue = 1, kInvalidImage = 200,
              kNotFound = 500;

HipDouble& state() {
  static HipDouble all = [] {
    HipDouble out;
    if (const char* text = std::getenv("QTURN_DOUBLE_DEVICES")) out.devices = std::atoi(text);
    return out;
  }();
  return all;
}
thread_local int current = 0;

struct Module {
  std::string image;
};
struct Function {
  std::string entry;
};
struct Stream {
  bool capturing = false;
  std::vector<RecordedLaunch> captured;
};
struct Graph {
  std::vector<RecordedLaunch> launches;
};

// As far as its section headers say.
std::size_t elf_bytes(const unsigned char* image) {
  std::uint64_t headers = 0;
  std::uint16_t size = 0, count = 0;
  std::memcpy(&headers, image + 40, 8);
  std::memcpy(&size, image + 58, 2);
  std::memcpy(&count, image + 60, 2);
  return headers + std::size_t{size} * count;
}

std::vector<std::unique_ptr<Function>>& functions() {
  static std::vector<std::unique_ptr<Function>> all;
  return all;
}

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
  *value = attribute == 63 ? 256 : attribute == 19 ? 4 << 20 : attribute == 74 ? 163840 : 0;
  return 0;
}
int hipDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "AMD Instinct MI355X", static_cast<std::size_t>(length));
  return 0;
}
int hipDeviceTotalMem(std::size_t* bytes, int) {
  *bytes = std::size_t{288} << 30;
  return 0;
}
int hipGetDevicePropertiesR0600(void* out, int) {
  std::memset(out, 0, 1472);
  std::strcpy(static_cast<char*>(out) + 1160, "gfx950:sramecc+:xnack-");
  return 0;
}
// The structure that ROCm 5 filled: nobody who asks for the new one may call this.
int hipGetDeviceProperties(void*, int) { std::abort(); }
int hipDeviceSynchronize() { return 0; }
int hipMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(*memory, 0xff, bytes);
  ++state().live_allocations;
  return 0;
}
int hipFree(void* memory) {
  std::free(memory);
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
  const auto* bytes = static_cast<const unsigned char*>(image);
  if (std::memcmp(bytes,
                  "\x7f"
                  "ELF",
                  4) != 0)
    return kInvalidImage;
  *module = new Module{std::string(reinterpret_cast<const char*>(bytes), elf_bytes(bytes))};
  ++state().live_modules;
  return 0;
}
int hipModuleUnload(void* module) {
  delete static_cast<Module*>(module);
  --state().live_modules;
  return 0;
}
int hipModuleGetFunction(void** function, void* module, const char* name) {
  // Kernels have a descriptor under their name.
  if (static_cast<Module*>(module)->image.find(std::string(name) + ".kd") == std::string::npos)
    return kNotFound;
  functions().push_back(std::make_unique<Function>(Function{name}));
  *function = functions().back().get();
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
  const RecordedLaunch launch{
      static_cast<Function*>(function)->entry,     {gx, gy, gz}, {bx, by, bz}, shared, stream,
      *static_cast<const qt_args*>(parameters[0]), current};
  auto* const on = static_cast<Stream*>(stream);
  (on && on->capturing ? on->captured : state().launches).push_back(launch);
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
  const auto& all = static_cast<Graph*>(exec)->launches;
  state().launches.insert(state().launches.end(), all.begin(), all.end());
  return 0;
}
int hipGraphExecDestroy(void* exec) {
  delete static_cast<Graph*>(exec);
  --state().live_graphs;
  return 0;
}
int hipGraphDestroy(void* graph) { return hipGraphExecDestroy(graph); }
int hipEventCreateWithFlags(void** event, unsigned) {
  *event = new int(0);
  ++state().live_events;
  return 0;
}
int hipEventRecord(void*, void*) { return 0; }
int hipEventSynchronize(void*) { return 0; }
int hipEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 2.0f;
  return 0;
}
int hipEventDestroy(void* event) {
  delete static_cast<int*>(event);
  --state().live_events;
  return 0;
}
const char* hipGetErrorName(int error) {
  return error == kNoDevice ? "hipErrorNoDevice" : error == 0 ? "hipSuccess" : "hipErrorUnknown";
}
const char* hipGetErrorString(int error) {
  return error == kNoDevice ? "no ROCm-capable device is detected" : "made up";
}
}
