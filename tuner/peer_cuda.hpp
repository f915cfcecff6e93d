// What kernels are compared with on an NVIDIA device: cuBLASLt's products, a copy of the same
// bytes, and the device's own word about its clock and power.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend.hpp"
#include "tuner/nvml.hpp"

namespace quarterturn {

/// Something that can be timed: seconds of `repeats` calls, back to back over rotating buffers.
struct Peer {
  std::string name;
  std::function<Result<double>(std::int64_t repeats)> run;
};

/// Peers keep what they need alive, but not the back end. The device's primary context is made
/// current on the calling thread for as long as this object lives.
class CudaPeers {
 public:
  static Result<std::unique_ptr<CudaPeers>> open(Backend& backend);
  virtual ~CudaPeers() = default;

  /// D bf16 [m, n] = A [m, k] B [n, k]^T: "cublas_bf16", "cublas_fp8_fast", "cublas_fp8", as far as
  /// cuBLASLt computes them. `notes` gets the reasons for what is missing.
  virtual std::vector<Peer> products(std::int64_t m, std::int64_t n, std::int64_t k,
                                     std::vector<std::string>& notes) = 0;

  /// A copy that reads and writes `bytes` together.
  virtual Result<Peer> copy(std::int64_t bytes) = 0;

  /// Zeros where NVML is not there.
  virtual GpuState state() const = 0;
};

}  // namespace quarterturn
