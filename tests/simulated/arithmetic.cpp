// Arithmetic of the simulated machine that is worth compiling for speed, or needs other rounding.
#include "tests/simulated/arithmetic.hpp"

#include <cfenv>
#include <cmath>
#include <cstring>
#include <vector>

namespace quarterturn::simulated {

__attribute__((optimize("O3"))) void multiply(double* d, const float* a, const float* b,
                                              std::uint32_t m, std::uint32_t n, std::uint32_t k) {
  thread_local std::vector<double> columns;
  columns.resize(std::size_t(n) * k);
  for (std::uint32_t j = 0; j < n; ++j)
    for (std::uint32_t e = 0; e < k; ++e) columns[std::size_t(e) * n + j] = double(b[j * k + e]);
  for (std::uint32_t i = 0; i < m; ++i) {
    double* row = d + std::size_t(i) * n;
    for (std::uint32_t e = 0; e < k; ++e) {
      const double x = double(a[i * k + e]);
      const double* column = columns.data() + std::size_t(e) * n;
      for (std::uint32_t j = 0; j < n; ++j) row[j] += x * column[j];
    }
  }
}

float fused_toward_zero(float a, float b, float c) {
  const int before = std::fegetround();
  std::fesetround(FE_TOWARDZERO);
  // Not known at compile time, so computed under the rounding that is set.
  volatile float x = a, y = b, z = c;
  const volatile float result = std::fma(x, y, z);
  std::fesetround(before);
  return result;
}

float half_to_float(std::uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  float magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                    : exponent == 0 ? std::ldexp(float(fraction), -24)
                                    : std::ldexp(float(fraction + 1024), exponent - 25);
  return std::copysign(magnitude, half & 0x8000 ? -1.0f : 1.0f);
}

std::uint16_t float_to_half(float x) {
  if (std::isnan(x)) return 0x7fff;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(double(x));
  if (magnitude == 0) return sign;
  if (magnitude >= 65520) return std::uint16_t(sign | 0x7c00);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  if (exponent < -13 || magnitude == 0) exponent = -13;  // units of subnormals
  // Nearest even in units of the last place; a carry goes on into the exponent by itself.
  const double units = std::nearbyint(std::ldexp(magnitude, 11 - exponent));
  return std::uint16_t(sign + (exponent + 13) * 1024 + int(units));
}

}  // namespace quarterturn::simulated
