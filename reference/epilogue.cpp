#include "reference/epilogue.hpp"

#include <cmath>
#include <cstddef>
#include <numbers>

namespace quarterturn::reference {
namespace {

constexpr double kCubic = 0.044715;  // of the tanh form

// sqrt(2 / pi): the slope of the tanh form's argument at 0.
double slope() { return std::sqrt(2 / std::numbers::pi); }

struct Places {
  std::size_t gate, value;
};

Places places(std::size_t i, std::size_t outputs, GateLayout layout) {
  return layout == GateLayout::split ? Places{i, outputs + i} : Places{2 * i, 2 * i + 1};
}

}  // namespace

double gelu(double x, GeluForm form) {
  // erfc keeps the digits of the left tail, which 1 + erf cancels.
  if (form == GeluForm::erf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x * (1 + std::tanh(slope() * (x + kCubic * x * x * x)));
}

double gelu_derivative(double x, GeluForm form) {
  if (form == GeluForm::erf) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  const double t = std::tanh(slope() * (x + kCubic * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope() * (1 + 3 * kCubic * x * x);
}

double silu(double x) { return x / (1 + std::exp(-x)); }

double silu_derivative(double x) {
  const double sigmoid = 1 / (1 + std::exp(-x));
  return sigmoid * (1 + x * (1 - sigmoid));
}

std::vector<double> swiglu(std::span<const double> row, GateLayout layout) {
  std::vector<double> out(row.size() / 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto at = places(i, out.size(), layout);
    out[i] = silu(row[at.gate]) * row[at.value];
  }
  return out;
}

std::vector<double> swiglu_gradient(std::span<const double> row, std::span<const double> gradient,
                                    GateLayout layout) {
  std::vector<double> out(row.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const auto at = places(i, gradient.size(), layout);
    out[at.gate] = gradient[i] * row[at.value] * silu_derivative(row[at.gate]);
    out[at.value] = gradient[i] * silu(row[at.gate]);
  }
  return out;
}

}  // namespace quarterturn::reference
