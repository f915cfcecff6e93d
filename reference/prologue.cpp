#include "reference/prologue.hpp"

#include <array>
#include <cmath>
#include <cstddef>

namespace quarterturn::reference {
namespace {

// Adds the upper half of the first `count` to the lower until one is left.
template <std::size_t size>
float halved(std::array<float, size> sums) {
  for (std::size_t count = size; count > 1; count /= 2)
    for (std::size_t i = 0; i < count / 2; ++i) sums[i] += sums[i + count / 2];
  return sums[0];
}

float squares_of_block(const float* x, std::int64_t left) {
  const auto at = [&](std::int64_t i) { return i < left ? x[i] : 0.0f; };
  std::array<float, 16> sums{};
  for (std::int64_t i = 0; i < 16; ++i)
    sums[static_cast<std::size_t>(i)] = std::fma(at(i + 16), at(i + 16), at(i) * at(i));
  return halved(sums);
}

// Of a polynomial with the highest coefficient first, by Horner's rule in fused steps.
template <std::size_t size>
float polynomial(const std::array<float, size>& coefficients, float x) {
  float out = coefficients[0];
  for (std::size_t i = 1; i < size; ++i) out = std::fma(out, x, coefficients[i]);
  return out;
}

}  // namespace

std::vector<float> rmsnorm(const float* x, const float* weight, std::int64_t k, float epsilon) {
  std::array<float, 64> sums{};
  for (std::int64_t block = 0; 32 * block < k; ++block)
    sums[static_cast<std::size_t>(block % 64)] += squares_of_block(x + 32 * block, k - 32 * block);
  const float mean = halved(sums) / static_cast<float>(k);
  const float factor = 1.0f / std::sqrt(mean + epsilon);
  std::vector<float> out;
  for (std::int64_t i = 0; i < k; ++i) out.push_back(x[i] * factor * weight[i]);
  return out;
}

float silu32(float gate) {
  if (std::isnan(gate)) return gate;
  const float a = std::fmin(std::fabs(gate), 120.0f);
  // The product is exact in double, and so is its sum with what binary32 rounds to integers.
  const float n = static_cast<float>(
      std::nearbyint(static_cast<double>(-a) * static_cast<double>(1.44269502f)));
  const float r = std::fma(n, -1.42860677e-06f, std::fma(n, -0.693145752f, -a));
  const float q =
      polynomial<5>({0.00139416358f, 0.00836347789f, 0.0416663699f, 0.166665748f, 0.5f}, r);
  const float p = 1.0f + std::fma(r * r, q, r);
  const auto scaled = [&](float y) {
    return static_cast<float>(std::ldexp(static_cast<double>(y), static_cast<int>(n)));
  };
  const float e = scaled(p);
  const float guess = polynomial<4>({-0.221837088f, 0.665511250f, -0.942807615f, 0.998266876f}, e);
  const float error = std::fma(-e, guess, 1.0f - guess);
  const float reciprocal = std::fma(guess, std::fma(error, error, error), guess);
  if (gate >= 0.0f) return gate * reciprocal;
  return scaled(-a * reciprocal * p);
}

float swiglu32(float gate, float value) { return silu32(gate) * value; }

}  // namespace quarterturn::reference
