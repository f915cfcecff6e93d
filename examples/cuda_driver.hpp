// The few functions of the CUDA driver that the example calls, found at run time: it compiles where
// no CUDA is, and tells where no GPU is.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

struct Cuda {
  using Pointer = std::uintptr_t;
  using Handle = struct Opaque*;

  int (*init)(unsigned);
  int (*device_get)(int*, int);
  int (*retain)(Handle*, int);
  int (*set_current)(Handle);
  int (*allocate)(Pointer*, std::size_t);
  int (*free)(Pointer);
  int (*upload)(Pointer, const void*, std::size_t);
  int (*download)(void*, Pointer, std::size_t);
  int (*copy_async)(Pointer, Pointer, std::size_t, Handle);
  int (*stream_create)(Handle*, unsigned);
  int (*stream_synchronize)(Handle);
  int (*begin_capture)(Handle, int);
  int (*end_capture)(Handle, Handle*);
  int (*instantiate)(Handle*, Handle, unsigned long long);
  int (*launch_graph)(Handle, Handle);
  int (*destroy_graph)(Handle);
  int (*destroy_executable)(Handle);

  /// Opens the driver and makes its first device current; `why` says what is missing otherwise.
  bool open(std::string& why) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return why = dlerror(), false;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (!function) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    };
    find(init, "cuInit");
    find(device_get, "cuDeviceGet");
    find(retain, "cuDevicePrimaryCtxRetain");
    find(set_current, "cuCtxSetCurrent");
    find(allocate, "cuMemAlloc_v2");
    find(free, "cuMemFree_v2");
    find(upload, "cuMemcpyHtoD_v2");
    find(download, "cuMemcpyDtoH_v2");
    find(copy_async, "cuMemcpyDtoDAsync_v2");
    find(stream_create, "cuStreamCreate");
    find(stream_synchronize, "cuStreamSynchronize");
    find(begin_capture, "cuStreamBeginCapture_v2");
    find(end_capture, "cuStreamEndCapture");
    find(instantiate, "cuGraphInstantiateWithFlags");
    find(launch_graph, "cuGraphLaunch");
    find(destroy_graph, "cuGraphDestroy");
    find(destroy_executable, "cuGraphExecDestroy");
    int device = 0;
    Handle context = nullptr;
    if (init(0) || device_get(&device, 0)) return why = "the driver finds no GPU", false;
    check(retain(&context, device));
    check(set_current(context));
    return true;
  }

  static void check(int error) {
    if (error) throw std::runtime_error("CUDA error " + std::to_string(error));
  }
};

/// Device memory that its owner frees.
class DeviceMemory {
 public:
  DeviceMemory(const Cuda& cuda, std::size_t bytes) : cuda_(cuda) {
    Cuda::check(cuda.allocate(&at_, bytes > 0 ? bytes : 1));
  }
  ~DeviceMemory() { cuda_.free(at_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  Cuda::Pointer address() const { return at_; }
  void* get() const { return reinterpret_cast<void*>(at_); }

 private:
  const Cuda& cuda_;
  Cuda::Pointer at_ = 0;
};
