// What `quantize` may apply to X first, in binary32, bit for bit as the contract has it: RMSNorm
// along a row, SwiGLU of two elements. Written from the contract, not from the kernels' text.
#pragma once

#include <cstdint>
#include <vector>

namespace quarterturn::reference {

/// A row x[0..k) times 1 / sqrt(mean of squares + epsilon) and weight, in this order.
///
/// Squares: in each block of 32, x[i + 16]^2 joins the rounded x[i]^2 by one fused multiply-add,
/// and the 16 sums are halved four times, each of the lower half taking its partner. Blocks' sums
/// go into 64 sums, block b to sum b mod 64, in ascending order, which are halved in the same way.
/// The sum over k, plus epsilon, its square root and the reciprocal are each correctly rounded.
std::vector<float> rmsnorm(const float* x, const float* weight, std::int64_t k, float epsilon);

/// gate / (1 + exp(-gate)), by the contract's polynomials:
///   n = a / ln 2 to the nearest integer, ties to even, a = min(|gate|, 120), sign negative
///   r = -a - n ln 2, ln 2 in two parts; p = 1 + (r + r^2 q(r)), q of degree 4
///   exp(-a) = p 2^n; 1 / (1 + e) by a cubic in e and one cubic iteration
float silu32(float gate);

/// silu32(gate) * value, rounded.
float swiglu32(float gate, float value);

}  // namespace quarterturn::reference
