// Activations that a GEMM's epilogue may apply, and their derivatives, in double; at infinities
// their limits.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reference/gemm.hpp"

namespace quarterturn::reference {

/// GELU (Hendrycks and Gimpel, arXiv:1606.08415): x Phi(x) itself, or its tanh approximation.
enum class GeluForm { erf, tanh };

double gelu(double x, GeluForm form);
double gelu_derivative(double x, GeluForm form);

/// x / (1 + exp(-x)), the gate of SwiGLU (Shazeer, arXiv:2002.05202).
double silu(double x);
double silu_derivative(double x);

/// Where the gate and the value of one SwiGLU output lie in a row of 2n: elements i and n + i, or
/// 2i and 2i + 1.
enum class GateLayout { split, interleaved };

/// silu(gate) * value: a row of 2n to n.
std::vector<double> swiglu(std::span<const double> row, GateLayout layout);

/// The gradient of the row of 2n, in the row's own layout, from the gradient of the n outputs.
std::vector<double> swiglu_gradient(std::span<const double> row, std::span<const double> gradient,
                                    GateLayout layout);

/// The spelling and the order are those of the generator's Epilogue.
enum class Epilogue {
  none,
  gelu,
  gelu_tanh,
  swiglu_split,
  swiglu_interleaved,
  dgelu,
  dgelu_tanh,
  dswiglu,
  dswiglu_interleaved
};

/// Columns of z that output `column` of D depends on, z having n: one, or a gate and a value.
struct Sources {
  std::int64_t first = 0, second = -1;  ///< second -1: none
};
Sources sources_of(Epilogue epilogue, std::int64_t column, std::int64_t n);

/// An output of D before its rounding, and how far a kernel may be from it.
struct Activated {
  double value = 0, error = 0;
};

/// How a kernel works out an activation: to binary32's last digits, or by the hardware's
/// approximations.
enum class Means { exact, approximate };

/// Output `column` from the products of its sources, each known to within `relative` of its
/// magnitude, and from the elements of aux's row. Kernels' activations may err by 6 units in the
/// last place, those of derivatives by 6 of their terms' sum; approximate ones by 2^-16 of that.
Activated activate(Epilogue epilogue, std::int64_t column, std::int64_t n, const Product& first,
                   const Product& second, double relative,
                   const std::function<double(std::int64_t)>& aux, Means means = Means::exact);

}  // namespace quarterturn::reference
