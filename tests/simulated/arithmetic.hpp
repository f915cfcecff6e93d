// Arithmetic of the simulated machine that is compiled once, for its speed or its rounding.
#pragma once

#include <cstdint>

namespace quarterturn::simulated {

/// d[m x n] += a[m x k] b[n x k]^T; rows lie one behind the other.
void multiply(double* d, const float* a, const float* b, std::uint32_t m, std::uint32_t n,
              std::uint32_t k);
/// a * b + c with one rounding toward zero.
float fused_toward_zero(float a, float b, float c);
float half_to_float(std::uint16_t half);
/// Nearest even; NaN is 0x7fff, as cvt.rn.f16.f32 gives it.
std::uint16_t float_to_half(float x);

}  // namespace quarterturn::simulated
