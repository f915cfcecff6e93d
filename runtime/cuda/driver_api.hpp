// The part of the CUDA driver API that we use, declared here so that building needs no CUDA
// toolkit, and resolved at run time by versioned entry point. Constants are those of cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generator/status.hpp"
#include "runtime/vendor_library.hpp"

namespace quarterturn::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUlibrary = struct CUlib_st*;
using CUkernel = struct CUkern_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;

struct alignas(64) CUtensorMap {
  std::uint64_t opaque[16];
};

/// CUlaunchAttribute: an id, then a union of 64 bytes.
struct CUlaunchAttribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned int cluster[3];
    int flag;
  } value;
};

struct CUlaunchConfig {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
  CUstream stream;
  CUlaunchAttribute* attributes;
  unsigned int attribute_count;
};

constexpr CUresult kSuccess = 0;
constexpr CUresult kNoDevice = 100;
constexpr int kAttributeClusterDimension = 4;
constexpr int kAttributeProgrammaticStart = 6;
constexpr int kFunctionMaxDynamicShared = 8;
constexpr int kFunctionNonPortableCluster = 14;
constexpr int kStreamCaptureNone = 0;
constexpr int kCaptureRelaxed = 2;
constexpr CUresult kInvalidContext = 201;
constexpr CUresult kCaptureUnsupported = 900, kCaptureLast = 908;

// CUdevice_attribute
constexpr int kDeviceSmCount = 16;
constexpr int kDeviceClockRate = 13;
constexpr int kDeviceL2Bytes = 38;
constexpr int kDeviceCapabilityMajor = 75;
constexpr int kDeviceCapabilityMinor = 76;
constexpr int kDeviceSharedOptIn = 97;

// X(result, name, exported versioned name for cuGetProcAddress, parameters). The version asked for
// is 12000.
#define QTURN_CUDA_ENTRIES(X)                                                                      \
  X(cuInit, (unsigned int flags))                                                                  \
  X(cuDriverGetVersion, (int* version))                                                            \
  X(cuGetErrorName, (CUresult error, const char** name))                                           \
  X(cuGetErrorString, (CUresult error, const char** text))                                         \
  X(cuDeviceGetCount, (int* count))                                                                \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                                 \
  X(cuDeviceGetName, (char* name, int length, CUdevice device))                                    \
  X(cuDeviceGetAttribute, (int* value, int attribute, CUdevice device))                            \
  X(cuDeviceTotalMem, (std::size_t * bytes, CUdevice device))                                      \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                              \
  X(cuDevicePrimaryCtxRelease, (CUdevice device))                                                  \
  X(cuCtxGetCurrent, (CUcontext * context))                                                        \
  X(cuCtxGetDevice, (CUdevice * device))                                                           \
  X(cuCtxPushCurrent, (CUcontext context))                                                         \
  X(cuCtxPopCurrent, (CUcontext * context))                                                        \
  X(cuCtxSynchronize, ())                                                                          \
  X(cuLibraryLoadData,                                                                             \
    (CUlibrary * library, const void* code, int* jit_options, void** jit_values,                   \
     unsigned int jit_count, int* options, void** values, unsigned int count))                     \
  X(cuLibraryUnload, (CUlibrary library))                                                          \
  X(cuLibraryGetKernel, (CUkernel * kernel, CUlibrary library, const char* name))                  \
  X(cuLibraryGetGlobal,                                                                            \
    (CUdeviceptr * memory, std::size_t * bytes, CUlibrary library, const char* name))              \
  X(cuKernelSetAttribute, (int attribute, int value, CUkernel kernel, CUdevice device))            \
  X(cuKernelGetAttribute, (int* value, int attribute, CUkernel kernel, CUdevice device))           \
  X(cuKernelGetFunction, (CUfunction * function, CUkernel kernel))                                 \
  X(cuFuncGetAttribute, (int* value, int attribute, CUfunction function))                          \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                                \
  X(cuLaunchKernelEx,                                                                              \
    (const CUlaunchConfig* config, CUkernel kernel, void** parameters, void** extra))              \
  X(cuMemAlloc, (CUdeviceptr * memory, std::size_t bytes))                                         \
  X(cuMemFree, (CUdeviceptr memory))                                                               \
  X(cuMemAllocHost, (void** memory, std::size_t bytes))                                            \
  X(cuMemFreeHost, (void* memory))                                                                 \
  X(cuMemcpyHtoD, (CUdeviceptr to, const void* from, std::size_t bytes))                           \
  X(cuMemcpyDtoH, (void* to, CUdeviceptr from, std::size_t bytes))                                 \
  X(cuMemcpyDtoHAsync, (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream))           \
  X(cuMemsetD8Async,                                                                               \
    (CUdeviceptr memory, unsigned char value, std::size_t bytes, CUstream stream))                 \
  X(cuMemcpyDtoDAsync, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream))     \
  X(cuStreamCreate, (CUstream * stream, unsigned int flags))                                       \
  X(cuStreamDestroy, (CUstream stream))                                                            \
  X(cuStreamSynchronize, (CUstream stream))                                                        \
  X(cuStreamIsCapturing, (CUstream stream, int* state))                                            \
  X(cuStreamBeginCapture, (CUstream stream, int mode))                                             \
  X(cuStreamEndCapture, (CUstream stream, CUgraph * graph))                                        \
  X(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))    \
  X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                            \
  X(cuGraphExecDestroy, (CUgraphExec exec))                                                        \
  X(cuGraphDestroy, (CUgraph graph))                                                               \
  X(cuEventCreate, (CUevent * event, unsigned int flags))                                          \
  X(cuEventDestroy, (CUevent event))                                                               \
  X(cuEventRecord, (CUevent event, CUstream stream))                                               \
  X(cuEventSynchronize, (CUevent event))                                                           \
  X(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end))                         \
  X(cuTensorMapEncodeTiled,                                                                        \
    (CUtensorMap * map, int type, std::uint32_t rank, void* address, const std::uint64_t* sizes,   \
     const std::uint64_t* strides, const std::uint32_t* box, const std::uint32_t* element_strides, \
     int interleave, int swizzle, int promotion, int fill))

/// Entry points of one loaded libcuda: immutable after load, shared by all threads.
struct DriverApi {
#define X(name, parameters) CUresult(*name) parameters = nullptr;
  QTURN_CUDA_ENTRIES(X)
#undef X
  VendorLibrary library;
  int version = 0;  ///< 13000 for CUDA 13.0

  /// "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"
  std::string describe(CUresult error) const;

  /// Ok, or `what` and the driver's words under a code that fits.
  Status check(CUresult error, const char* what) const;
};

/// Opens and initialises libcuda once a process; later calls return the same answer. `no_driver`:
/// it is not installed, or older than 12.0; `no_device`: installed, but no GPU is visible. An
/// override path is honoured by the first call.
Result<const DriverApi*> driver_api(const std::string& override_path = {});

}  // namespace quarterturn::cuda
