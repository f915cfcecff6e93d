// What the sections of speed_cuda share: how a call is timed, and the data.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "tests/cuda/device.hpp"
#include "tuner/nvml.hpp"
#include "tuner/peer_cublas.hpp"

namespace quarterturn::cuda_test {

/// Burst and sustained times of a call, with the clock and the power that the latter ran at.
class Meter {
 public:
  explicit Meter(Device& device) : device_(device) {
    if (auto nvml = Nvml::open(0); nvml.ok()) nvml_ = std::move(*nvml);
    device.check(device.api().cuEventCreate(&start_, 0), "event");
    device.check(device.api().cuEventCreate(&stop_, 0), "event");
  }
  struct Reading {
    double burst = 0, sustained = 0;  // seconds a call
    unsigned clock = 0, watts = 0;
  };
  Reading read(const std::function<void(int)>& launch, double seconds) {
    Reading out;
    for (int i = 0; i < 2; ++i) launch(i);
    device_.synchronize();
    const double guess = time(launch, 4) / 4;
    out.burst = time(launch, std::max(4, static_cast<int>(0.03 / guess))) /
                std::max(4, static_cast<int>(0.03 / guess));
    const int half = std::max(4, static_cast<int>(seconds / 2 / guess));
    for (int i = 0; i < half; ++i) launch(i);
    device_.check(device_.api().cuEventRecord(start_, device_.stream()), "record");
    for (int i = 0; i < half; ++i) launch(i);
    device_.check(device_.api().cuEventRecord(stop_, device_.stream()), "record");
    device_.check(device_.api().cuEventSynchronize(start_), "wait");
    if (nvml_) {
      const auto state = nvml_->state();
      out.clock = static_cast<unsigned>(state.clock_mhz);
      out.watts = static_cast<unsigned>(state.watts);
    }
    device_.check(device_.api().cuEventSynchronize(stop_), "wait");
    float ms = 0;
    device_.check(device_.api().cuEventElapsedTime(&ms, start_, stop_), "time");
    out.sustained = double(ms) * 1e-3 / half;
    return out;
  }

 private:
  double time(const std::function<void(int)>& launch, int count) {
    device_.check(device_.api().cuEventRecord(start_, device_.stream()), "record");
    for (int i = 0; i < count; ++i) launch(i);
    device_.check(device_.api().cuEventRecord(stop_, device_.stream()), "record");
    device_.check(device_.api().cuEventSynchronize(stop_), "wait");
    float ms = 0;
    device_.check(device_.api().cuEventElapsedTime(&ms, start_, stop_), "time");
    return double(ms) * 1e-3;
  }
  Device& device_;
  std::unique_ptr<Nvml> nvml_;
  cuda::CUevent start_ = nullptr, stop_ = nullptr;
};

struct Shape {
  std::int64_t m, n, k;
};
/// Of large products.
extern const std::vector<Shape> kShapes;

std::unique_ptr<CublasPeer> open_peer();

/// `bytes` of device memory that repeat 32 MB of `pattern`.
std::unique_ptr<Memory> repeated(Device& device, const std::vector<unsigned char>& pattern,
                                 std::int64_t bytes);

std::vector<unsigned char> gaussian_bf16();
/// E4M3 of gaussian values, by way of the magnitudes below 448 in steps of three mantissa bits.
std::vector<unsigned char> gaussian_e4m3(const std::vector<unsigned char>& bf16);

Problem quantize_problem(std::int64_t m, std::int64_t k, std::int32_t g, Signs signs,
                         Rounding rounding, Copies copies, Layout layout);
Problem gemm_problem(const Shape& s, Layout layout);

/// bf16 [n, k] to permuted weights.
void permute_weights(Device& device, const Memory& b16, std::int64_t n, std::int64_t k,
                     std::unique_ptr<Memory>& codes, std::unique_ptr<Memory>& scales);

// ---- sections: each prints its lines

using Pattern = std::vector<unsigned char>;
void quantize_speeds(Device& device, Meter& meter, const Pattern& pattern);
void gemm_speeds(Device& device, Meter& meter, const Pattern& pattern);
/// Few tokens in bf16 against packed weights: quantising them and the product, from bf16 to bf16.
void packed_speeds(Device& device, Meter& meter, const Pattern& pattern);
/// Whole products from bf16: both operands rotated and rounded on the fly, beside cuBLAS's bf16.
void plan_speeds(Device& device, Meter& meter, const Pattern& pattern);
/// Products in bf16: of expanded operands, and of activations as they are with packed weights,
/// beside cuBLAS's bf16 of the same sizes.
void bf16_speeds(Device& device, Meter& meter, const Pattern& pattern);
/// A SwiGLU layer's forward and backward products with the activation in their epilogues and
/// without; and what prologues and sums add to quantising.
void epilogue_speeds(Device& device, Meter& meter, const Pattern& pattern);
/// Products of experts beside one dense product of as many tokens.
void grouped_speeds(Device& device, Meter& meter, const Pattern& pattern);

}  // namespace quarterturn::cuda_test
