#include "reference/gemm.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quarterturn::reference {
namespace {

// Adds C and bias to alpha times the sum.
Product finish(double sum, double magnitude, std::int64_t row, std::int64_t column,
               const GemmSpec& spec) {
  Product out{spec.alpha * sum, std::fabs(spec.alpha) * magnitude};
  if (spec.beta != 0 && spec.c) {
    const double c = spec.beta * static_cast<double>(spec.c[row * spec.ldc + column]);
    out.value += c;
    out.magnitude += std::fabs(c);
  }
  if (spec.bias) {
    out.value += static_cast<double>(spec.bias[column]);
    out.magnitude += std::fabs(static_cast<double>(spec.bias[column]));
  }
  return out;
}

// Values of one row; NaN in every element of a block with byte 255.
std::vector<double> values(const Quantized& q, std::int64_t row) {
  std::vector<double> out(static_cast<std::size_t>(q.k));
  for (std::int64_t i = 0; i < q.k; ++i) out[static_cast<std::size_t>(i)] = q.value(row, i);
  return out;
}

Product dot(const std::vector<double>& a, const std::vector<double>& b, std::int64_t row,
            std::int64_t column, const GemmSpec& spec) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  if (a.size() != b.size()) return {nan, nan};
  double sum = 0, magnitude = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double product = a[i] * b[i];
    sum += product;
    magnitude += std::fabs(product);
  }
  return finish(sum, magnitude, row, column, spec);
}

}  // namespace

Product gemm_at(const Quantized& a, const Quantized& b, std::int64_t row, std::int64_t column,
                const GemmSpec& spec) {
  return dot(values(a, row), values(b, column), row, column, spec);
}

Product weight_only_at(const float* a_row, std::int64_t k, const Quantized& b, std::int64_t column,
                       std::int64_t row, const GemmSpec& spec) {
  std::vector<double> a(static_cast<std::size_t>(b.k), 0.0);
  std::copy(a_row, a_row + std::min(k, b.k), a.begin());
  return dot(a, values(b, column), row, column, spec);
}

std::vector<Product> gemm(const Quantized& a, const Quantized& b, const GemmSpec& spec) {
  std::vector<std::vector<double>> columns;
  for (std::int64_t j = 0; j < b.rows; ++j) columns.push_back(values(b, j));
  std::vector<Product> out;
  out.reserve(static_cast<std::size_t>(a.rows * b.rows));
  for (std::int64_t i = 0; i < a.rows; ++i) {
    const auto row = values(a, i);
    for (std::int64_t j = 0; j < b.rows; ++j)
      out.push_back(dot(row, columns[static_cast<std::size_t>(j)], i, j, spec));
  }
  return out;
}

double ts34_factor(ScaleRule rule) { return rule == ScaleRule::ts34 ? 4.0 / 3.0 : 1.0; }

}  // namespace quarterturn::reference
