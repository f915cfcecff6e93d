// cuBLASLt as a peer of benchmarks, opened at run time: D [m, n] bf16 = A [m, k] B [n, k]^T with
// operands in bf16 or in FP8 E4M3.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "generator/status.hpp"
#include "runtime/vendor_library.hpp"

namespace quarterturn {

/// One handle in the context that was current at `open`. Not thread-safe.
class CublasPeer {
 public:
  enum class Input { bf16, e4m3 };
  /// `fast` leaves FP8 sums in the tensor core's accumulator; `exact` promotes them.
  enum class Sums { exact, fast };

  /// `no_driver` where libcublasLt 13 or 12 is not there; the message says what was tried.
  static Result<std::unique_ptr<CublasPeer>> open();
  ~CublasPeer();
  CublasPeer(const CublasPeer&) = delete;
  CublasPeer& operator=(const CublasPeer&) = delete;

  /// 130100 for 13.1.0.
  std::size_t version() const { return version_; }

  /// A product as cuBLASLt's heuristic wants to compute it.
  class Plan {
   public:
    Plan() = default;
    ~Plan();
    Plan(Plan&& other) noexcept { *this = std::move(other); }
    Plan& operator=(Plan&& other) noexcept;

   private:
    friend class CublasPeer;
    const CublasPeer* peer_ = nullptr;
    void *operation_ = nullptr, *a_ = nullptr, *b_ = nullptr, *d_ = nullptr;
    std::array<std::uint64_t, 8> algorithm_{};
    std::size_t workspace_ = 0;
  };

  /// `one`: a float of 1 on the device, the scale of FP8 operands. At most `workspace` bytes of
  /// workspace are used.
  Result<Plan> plan(Input input, Sums sums, std::int64_t m, std::int64_t n, std::int64_t k,
                    const void* one, std::size_t workspace) const;

  /// Enqueues on `stream`. All operands tight and row-major.
  Status run(const Plan& plan, const void* a, const void* b, void* d, void* workspace,
             void* stream) const;

 private:
  struct Api;
  explicit CublasPeer(VendorLibrary library);

  VendorLibrary library_;
  std::unique_ptr<Api> api_;
  void* handle_ = nullptr;
  std::size_t version_ = 0;
};

}  // namespace quarterturn
