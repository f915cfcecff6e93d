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

// Beyond it all results are their limits to the last digit of binary32.
constexpr double kFar = 1e3;

// The tanh form is x * sigmoid of this: 1 + tanh would cancel in the left tail.
double tanh_argument(double x) { return 2 * slope() * (x + kCubic * x * x * x); }

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

double limit(double x) { return x > 0 ? x : -0.0; }
double limit_of_slope(double x) { return x > 0 ? 1 : 0; }

}  // namespace

double gelu(double x, GeluForm form) {
  if (std::fabs(x) > kFar) return limit(x);
  // erfc keeps the digits of the left tail, which 1 + erf cancels.
  if (form == GeluForm::erf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return x * sigmoid(tanh_argument(x));
}

double gelu_derivative(double x, GeluForm form) {
  if (std::fabs(x) > kFar) return limit_of_slope(x);
  if (form == GeluForm::erf) {
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * density;
  }
  const double w = tanh_argument(x);
  return sigmoid(w) + x * sigmoid(w) * sigmoid(-w) * 2 * slope() * (1 + 3 * kCubic * x * x);
}

double silu(double x) { return std::fabs(x) > kFar ? limit(x) : x * sigmoid(x); }

double silu_derivative(double x) {
  if (std::fabs(x) > kFar) return limit_of_slope(x);
  return sigmoid(x) * (1 + x * sigmoid(-x));
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

Sources sources_of(Epilogue epilogue, std::int64_t column, std::int64_t n) {
  switch (epilogue) {
    case Epilogue::swiglu_split:
      return {column, n / 2 + column};
    case Epilogue::swiglu_interleaved:
      return {2 * column, 2 * column + 1};
    case Epilogue::dswiglu:
      return {column % n};
    case Epilogue::dswiglu_interleaved:
      return {column / 2};
    default:
      return {column};
  }
}

namespace {

constexpr double kSteepest = 1.13;  // the largest slope of all activations
constexpr double kTerms = 2.2;      // of a derivative: the largest sum of magnitudes

// What a kernel may lose: of an activation's value or a derivative's terms, and below binary32's
// normal numbers.
struct Loss {
  double relative, least;
};
Loss loss_of(Means means) {
  return means == Means::exact ? Loss{6 * 0x1p-23, 0x1p-147} : Loss{0x1p-16, 0x1p-140};
}

Activated times_slope(const Product& z, double ez, double slope, const Loss& loss) {
  return {z.value * slope,
          std::fabs(z.value) * (kTerms * loss.relative + loss.least) + kSteepest * ez + loss.least};
}

Activated pair_gradient(const Product& z, double ez, double gate, double value, bool of_gate,
                        const Loss& loss) {
  if (of_gate) {
    const Activated d = times_slope(z, ez, silu_derivative(gate), loss);
    return {d.value * value, d.error * std::fabs(value) + std::fabs(d.value * value) * 0x1p-23};
  }
  const double s = silu(gate);
  return {z.value * s, std::fabs(s) * (ez + std::fabs(z.value) * loss.relative) +
                           (std::fabs(z.value) + 1) * loss.least};
}

}  // namespace

Activated activate(Epilogue epilogue, std::int64_t column, std::int64_t n, const Product& first,
                   const Product& second, double relative,
                   const std::function<double(std::int64_t)>& aux, Means means) {
  const Loss loss = loss_of(means);
  const double e1 = relative * first.magnitude, e2 = relative * second.magnitude;
  const auto of_one = [&](double value) -> Activated {
    return {value, kSteepest * e1 + std::fabs(value) * loss.relative + loss.least};
  };
  switch (epilogue) {
    case Epilogue::none:
      return {first.value, e1};
    case Epilogue::gelu:
      return of_one(gelu(first.value, GeluForm::erf));
    case Epilogue::gelu_tanh:
      return of_one(gelu(first.value, GeluForm::tanh));
    case Epilogue::swiglu_split:
    case Epilogue::swiglu_interleaved: {
      const Activated s = of_one(silu(first.value));
      return {s.value * second.value, s.error * (std::fabs(second.value) + e2) +
                                          std::fabs(s.value) * e2 +
                                          std::fabs(s.value * second.value) * 0x1p-23 + loss.least};
    }
    case Epilogue::dgelu:
      return times_slope(first, e1, gelu_derivative(aux(column), GeluForm::erf), loss);
    case Epilogue::dgelu_tanh:
      return times_slope(first, e1, gelu_derivative(aux(column), GeluForm::tanh), loss);
    case Epilogue::dswiglu: {
      const auto i = column % n;
      return pair_gradient(first, e1, aux(i), aux(n + i), column < n, loss);
    }
    case Epilogue::dswiglu_interleaved: {
      const auto i = column / 2 * 2;
      return pair_gradient(first, e1, aux(i), aux(i + 1), column % 2 == 0, loss);
    }
  }
  return {};
}

}  // namespace quarterturn::reference
