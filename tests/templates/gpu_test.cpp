// The same text executed by an NVIDIA GPU, where there is one: its digests are this program's own.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <iostream>
#include <vector>

#include "digest.h"
#include "flatten.hpp"
#include "nvrtc.hpp"

namespace {

constexpr int kCases = 4096;

// The few driver calls that run one kernel on device 0. Every call gives 0 for success.
class Driver {
 public:
  Driver() : handle_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver() {
    if (context_) call<int(int)>("cuDevicePrimaryCtxRelease_v2")(0);
  }

  bool start() {
    int count = 0;
    return handle_ && call<int(unsigned)>("cuInit")(0) == 0 &&
           call<int(int*)>("cuDeviceGetCount")(&count) == 0 && count > 0 &&
           call<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, 0) == 0 &&
           call<int(void*)>("cuCtxSetCurrent")(context_) == 0;
  }

  std::string arch() {
    constexpr int major_attribute = 75, minor_attribute = 76;
    int major = 0, minor = 0;
    const auto get = call<int(int*, int, int)>("cuDeviceGetAttribute");
    get(&major, major_attribute, 0);
    get(&minor, minor_attribute, 0);
    return "sm_" + std::to_string(major) + std::to_string(minor) + (major >= 9 ? "a" : "");
  }

  // Runs kernel `digest(u64* out, int cases)`, one thread for each word of `out`.
  int run(const std::string& cubin, std::vector<qt::u64>& out) {
    void *module = nullptr, *function = nullptr;
    if (const int s = call<int(void**, const void*)>("cuModuleLoadData")(&module, cubin.data()))
      return s;
    if (const int s = call<int(void**, void*, const char*)>("cuModuleGetFunction")(
            &function, module, "digest"))
      return s;
    qt::u64 memory = 0;
    const std::size_t bytes = out.size() * sizeof(qt::u64);
    if (const int s = call<int(qt::u64*, std::size_t)>("cuMemAlloc_v2")(&memory, bytes)) return s;
    int cases = kCases;
    void* arguments[] = {&memory, &cases};
    int status = call<int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void*, void**, void**)>("cuLaunchKernel")(
        function, unsigned(out.size() / 64), 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr);
    if (status == 0)
      status = call<int(void*, qt::u64, std::size_t)>("cuMemcpyDtoH_v2")(out.data(), memory, bytes);
    call<int(qt::u64)>("cuMemFree_v2")(memory);
    call<int(void*)>("cuModuleUnload")(module);
    return status;
  }

 private:
  template <class Signature>
  Signature* call(const char* name) {
    return reinterpret_cast<Signature*>(dlsym(handle_, name));
  }

  void* handle_;
  void* context_ = nullptr;
};

}  // namespace

TEST_CASE("gpu.every mode gives the host's bits") {
  Driver driver;
  const nvrtc::Library library;
  if (!driver.start() || !library) {
    std::cout << "SKIPPED: needs an NVIDIA GPU with its driver, and NVRTC\n";
    return;
  }
  const auto compiled = library.compile(
      flatten("#include \"digest.h\"\n"
              "extern \"C\" __global__ void digest(qt::u64* out, int cases) {\n"
              "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
              "  out[i] = qt::digest_case(i / cases, qt::u32(i % cases));\n"
              "}\n"),
      {"--gpu-architecture=" + driver.arch(), "--std=c++17", "--fmad=false", "--ftz=false"});
  INFO(compiled.log);
  REQUIRE(compiled.status == 0);
  std::vector<qt::u64> out(std::size_t(qt::kDigestModes) * kCases);
  REQUIRE(driver.run(compiled.cubin, out) == 0);
  for (int mode = 0; mode < qt::kDigestModes; ++mode) {
    int wrong = 0;
    for (int c = 0; c < kCases; ++c)
      wrong +=
          out[std::size_t(mode) * kCases + std::size_t(c)] != qt::digest_case(mode, qt::u32(c));
    INFO("mode ", mode);
    CHECK(wrong == 0);
  }
  std::cout << "executed on " << driver.arch() << "\n";
}
