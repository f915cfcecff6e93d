// A CUDA kernel as loaded: context-independent library, entry, and the tensor maps of its last
// launch.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "generator/family.hpp"
#include "runtime/backend.hpp"
#include "runtime/cuda/driver_api.hpp"

namespace quarterturn::cuda {

/// Loaded by cuLibraryLoadData, so that one object serves every context of the device. Immutable
/// but for a cache of encoded tensor maps, which never blocks: a thread that finds it taken encodes
/// on its stack.
class LoadedKernel final : public Kernel {
 public:
  static Result<std::shared_ptr<const Kernel>> load(const DriverApi& api, CUdevice device,
                                                    const std::string& cubin, const Source& source);
  ~LoadedKernel() override;
  LoadedKernel(const LoadedKernel&) = delete;
  LoadedKernel& operator=(const LoadedKernel&) = delete;

  /// Enqueues on `stream` in the calling thread's current context. No allocation, lock or
  /// synchronisation.
  Status launch(const Launch& launch, const qt_args& args, CUstream stream) const;

  /// A 64-bit counter that the kernel's text declares, in the calling thread's current context.
  /// Waits for the device; for statistics, never for dispatch.
  Result<std::uint64_t> counter(const char* name) const;

 private:
  LoadedKernel(const DriverApi& api) : api_(api) {}

  using Maps = std::array<CUtensorMap, std::tuple_size_v<decltype(Launch::maps)>>;
  struct EncodedMaps {
    std::array<TensorMap, std::tuple_size_v<decltype(Launch::maps)>> specs{};
    std::array<void*, std::tuple_size_v<decltype(Launch::maps)>> addresses{};
    std::uint32_t count = 0;
    Maps maps{};
  };

  Status encode(const Launch& launch, const qt_args& args, EncodedMaps& into) const;
  Status enqueue(const Launch& launch, const qt_args& args, CUstream stream,
                 const Maps& maps) const;

  const DriverApi& api_;
  CUlibrary library_ = nullptr;
  CUkernel kernel_ = nullptr;
  std::string entry_;
  bool waits_ = false;
  std::int64_t max_dynamic_shared_ = 0;
  mutable std::atomic_flag cache_taken_ = ATOMIC_FLAG_INIT;
  mutable EncodedMaps cache_;
};

}  // namespace quarterturn::cuda
