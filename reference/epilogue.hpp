// Activations that a GEMM's epilogue may apply, and their derivatives, in double.
#pragma once

#include <span>
#include <vector>

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

}  // namespace quarterturn::reference
