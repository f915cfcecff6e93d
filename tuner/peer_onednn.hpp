// oneDNN's bf16 matrix product as a peer of benchmarks, opened at run time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

/// D [m, n] f32 = A [m, k] B [n, k]^T in bf16, with B in the layout that oneDNN prefers, as an
/// inference or training engine would hold it. Runs on all OpenMP threads of this process.
class OneDnnMatmul {
 public:
  /// `no_driver` when libdnnl is not there, is of another major version than the header this was
  /// built with, or this program was built without that header; the message says which.
  static Result<std::unique_ptr<OneDnnMatmul>> create(std::int64_t m, std::int64_t n,
                                                      std::int64_t k);
  virtual ~OneDnnMatmul() = default;

  virtual Status run() = 0;
};

}  // namespace quarterturn
