// The part of the HIP runtime that we use, declared here so that building needs no ROCm, and
// resolved at run time. Constants are those of hip_runtime_api.h, the same from ROCm 6 on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "generator/status.hpp"
#include "runtime/vendor_library.hpp"

namespace quarterturn::hip {

using hipError = int;
using hipStream = struct ihipStream_t*;
using hipEvent = struct ihipEvent_t*;
using hipModule = struct ihipModule_t*;
using hipFunction = struct ihipModuleSymbol_t*;
using hipGraph = struct ihipGraph*;
using hipGraphExec = struct hipGraphExec_t*;

constexpr hipError kSuccess = 0;
constexpr hipError kOutOfMemory = 2;
constexpr hipError kNoDevice = 100, kInvalidDevice = 101;
constexpr hipError kCaptureUnsupported = 900, kCaptureLast = 908;
constexpr int kCopyToDevice = 1, kCopyToHost = 2, kCopyOnDevice = 3;
constexpr int kCaptureRelaxed = 2;
constexpr int kCaptureNone = 0;
constexpr unsigned int kStreamNonBlocking = 1;
constexpr unsigned int kEventDefault = 0;
constexpr int kFunctionRegisters = 4;

// hipDeviceAttribute_t
constexpr int kDeviceL2Bytes = 19;
constexpr int kDeviceUnits = 63;
constexpr int kDeviceSharedBytes = 74;

/// hipDeviceProp_t of the R0600 entry takes 1472 bytes, the architecture's name begins at 1160; of
/// the entry before, 792 and 396.
constexpr std::size_t kPropertyBytes = 4096;
constexpr std::size_t kArchName = 1160, kArchNameBefore = 396, kArchNameBytes = 256;

// X(name, parameters): every entry returns hipError but for the two that name errors.
#define QTURN_HIP_ENTRIES(X)                                                                      \
  X(hipInit, (unsigned int flags))                                                                \
  X(hipRuntimeGetVersion, (int* version))                                                         \
  X(hipGetDeviceCount, (int* count))                                                              \
  X(hipGetDevice, (int* device))                                                                  \
  X(hipSetDevice, (int device))                                                                   \
  X(hipDeviceGetAttribute, (int* value, int attribute, int device))                               \
  X(hipDeviceGetName, (char* name, int length, int device))                                       \
  X(hipDeviceTotalMem, (std::size_t * bytes, int device))                                         \
  X(hipDeviceSynchronize, ())                                                                     \
  X(hipMalloc, (void** memory, std::size_t bytes))                                                \
  X(hipFree, (void* memory))                                                                      \
  X(hipMemcpy, (void* to, const void* from, std::size_t bytes, int kind))                         \
  X(hipMemcpyAsync, (void* to, const void* from, std::size_t bytes, int kind, hipStream stream))  \
  X(hipMemsetAsync, (void* memory, int value, std::size_t bytes, hipStream stream))               \
  X(hipModuleLoadData, (hipModule * module, const void* image))                                   \
  X(hipModuleUnload, (hipModule module))                                                          \
  X(hipModuleGetFunction, (hipFunction * function, hipModule module, const char* name))           \
  X(hipModuleLaunchKernel,                                                                        \
    (hipFunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,         \
     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, \
     hipStream stream, void** parameters, void** extra))                                          \
  X(hipFuncGetAttribute, (int* value, int attribute, hipFunction function))                       \
  X(hipStreamCreateWithFlags, (hipStream * stream, unsigned int flags))                           \
  X(hipStreamSynchronize, (hipStream stream))                                                     \
  X(hipStreamDestroy, (hipStream stream))                                                         \
  X(hipStreamIsCapturing, (hipStream stream, int* state))                                         \
  X(hipStreamBeginCapture, (hipStream stream, int mode))                                          \
  X(hipStreamEndCapture, (hipStream stream, hipGraph * graph))                                    \
  X(hipThreadExchangeStreamCaptureMode, (int* mode))                                              \
  X(hipGraphInstantiate,                                                                          \
    (hipGraphExec * exec, hipGraph graph, void** node, char* log, std::size_t log_bytes))         \
  X(hipGraphLaunch, (hipGraphExec exec, hipStream stream))                                        \
  X(hipGraphExecDestroy, (hipGraphExec exec))                                                     \
  X(hipGraphDestroy, (hipGraph graph))                                                            \
  X(hipEventCreateWithFlags, (hipEvent * event, unsigned int flags))                              \
  X(hipEventRecord, (hipEvent event, hipStream stream))                                           \
  X(hipEventSynchronize, (hipEvent event))                                                        \
  X(hipEventElapsedTime, (float* milliseconds, hipEvent begin, hipEvent end))                     \
  X(hipEventDestroy, (hipEvent event))

struct RuntimeApi {
#define X(name, parameters) hipError(*name) parameters = nullptr;
  QTURN_HIP_ENTRIES(X)
#undef X
  const char* (*hipGetErrorName)(hipError) = nullptr;
  const char* (*hipGetErrorString)(hipError) = nullptr;
  /// The R0600 entry (ROCm 6 and later), or the one before; both fill kPropertyBytes at most.
  hipError (*properties)(void* out, int device) = nullptr;
  std::size_t arch_name_at = kArchName;
  int version = 0;  ///< 70100000 for 7.1
  VendorLibrary library;

  /// "hipErrorNoDevice (no ROCm-capable device is detected)".
  std::string describe(hipError error) const;
  Status check(hipError error, const char* what) const;
};

/// libamdhip64, opened once a process and never closed: `override_path` (of the first call) alone
/// where it is not empty. `no_driver`: there is none, or it is too old; `no_device`: it sees no GPU
/// (errors 100 and 101).
Result<const RuntimeApi*> runtime_api(const std::string& override_path = {});

/// "gfx950" of "gfx950:sramecc+:xnack-", in a properties structure.
std::string arch_of(const RuntimeApi& api, int device);

}  // namespace quarterturn::hip
