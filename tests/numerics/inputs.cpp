#include "tests/numerics/inputs.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace quarterturn::numerics {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

float with_random_sign(float magnitude, Random& random) {
  return random() % 2 == 0 ? magnitude : -magnitude;
}

// A value at most 1 ulp away, finite.
float nudge(float value, Random& random) {
  const float to = random() % 2 == 0 ? kInf : -kInf;
  if (random() % 2 == 0) return value;
  const float moved = std::nextafter(value, to);
  return std::isfinite(moved) ? moved : value;
}

float normal(Random& random) {
  const double u = static_cast<double>((random() >> 11) + 1) * 0x1p-53;
  const double v = static_cast<double>(random() >> 11) * 0x1p-53;
  return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
}

int exponent_between(int low, int high, Random& random) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

float finite(double value) {
  return std::clamp(static_cast<float>(std::clamp(value, -3.5e38, 3.5e38)), -kLargest, kLargest);
}

}  // namespace

float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

float any_finite(Random& random) {
  for (;;) {
    const float value = from_bits(static_cast<std::uint32_t>(random()));
    if (std::isfinite(value)) return value;
  }
}

void fill_any_exponent(std::span<float> block, Random& random) {
  for (float& v : block) v = any_finite(random);
}

void fill_normal(std::span<float> block, Random& random) {
  const double unit = std::ldexp(1.0 + static_cast<double>(random() % 1000) / 1000,
                                 exponent_between(-149, 125, random));
  for (float& v : block) v = finite(static_cast<double>(normal(random)) * unit);
}

void fill_thresholds(std::span<float> block, Random& random) {
  const auto amax = thresholds(exponent_between(-149, 127, random));
  fill_around(block, amax[random() % amax.size()], random() % block.size(), random);
}

void fill_outliers(std::span<float> block, Random& random) {
  for (float& v : block) {
    v = normal(random) * 0.02f;
    if (random() % 16 == 0) v *= 40;
    if (random() % 16 == 0) v = with_random_sign(0.0f, random);
  }
}

void fill_tiny(std::span<float> block, Random& random) {
  const auto top = static_cast<std::uint32_t>(random() % 7 + 1) << 23;
  for (float& v : block)
    v = with_random_sign(from_bits(static_cast<std::uint32_t>(random() % top)), random);
  block[random() % block.size()] = with_random_sign(0.0f, random);
}

void fill_huge(std::span<float> block, Random& random) {
  const bool halves = random() % 2 == 0;  // sums of both infinities: their sum is NaN
  for (std::size_t i = 0; i < block.size(); ++i) {
    const float v = kLargest * (1 - static_cast<float>(random() % 64) / 256);
    block[i] = halves ? (i < block.size() / 2 ? v : -v) : with_random_sign(v, random);
  }
}

void fill_constant(std::span<float> block, Random& random) {
  const auto bits = static_cast<std::uint32_t>(random() % 0x7f000000u) & ~7u;
  const bool exact = random() % 4 == 0;
  const bool alternate = random() % 2 == 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    block[i] = from_bits(bits | (exact ? 0u : static_cast<std::uint32_t>(random() % 8)));
    if (alternate && i % 2 == 1) block[i] = -block[i];
  }
}

void fill_bf16(std::span<float> block, Random& random) {
  for (float& v : block) v = from_bits(to_bits(any_finite(random)) & 0xffff0000u);
}

void fill_around(std::span<float> block, float amax, std::size_t where, Random& random) {
  // 1/3 and its kind are ties after TS34's 0.75.
  static constexpr double ties[] = {0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 0.5, 1, 4};
  const int e = std::ilogb(amax);
  for (float& v : block) {
    double tie = std::ldexp(ties[random() % std::size(ties)], e - exponent_between(1, 4, random));
    if (random() % 4 == 0) tie = tie * 4 / 3;
    const float nudged = nudge(static_cast<float>(tie), random);
    v = with_random_sign(nudged <= amax ? nudged : 0.0f, random);
  }
  block[where] = with_random_sign(amax, random);
}

std::vector<float> thresholds(int exponent) {
  std::vector<float> out;
  for (const double mantissa : {1.0, 1.25, 4.0 / 3, 1.5, 1.75, 1.9999999}) {
    const float at = finite(std::ldexp(mantissa, exponent));
    for (const float v : {std::nextafter(at, 0.0f), at, std::nextafter(at, kInf)})
      if (v > 0 && std::isfinite(v)) out.push_back(v);
  }
  return out;
}

std::vector<float> mixed_matrix(std::int64_t rows, std::int64_t k, Random& random) {
  std::vector<float> out(static_cast<std::size_t>(rows * k));
  std::size_t turn = random();
  for (std::size_t start = 0; start < out.size(); start += 32) {
    const std::span block(out.data() + start, std::min<std::size_t>(32, out.size() - start));
    std::array<float, 32> full;
    kFills[turn++ % std::size(kFills)](full, random);
    std::copy_n(full.begin(), block.size(), block.begin());
    switch (random() % 64) {
      case 0:
        std::ranges::fill(block, 0.0f);
        break;
      case 1:
        for (float& v : block) v = with_random_sign(0.0f, random);
        break;
      case 2:
        block[random() % block.size()] = std::numeric_limits<float>::quiet_NaN();
        break;
      case 3:
        block[random() % block.size()] = with_random_sign(kInf, random);
        break;
      default:
        break;
    }
  }
  return out;
}

}  // namespace quarterturn::numerics
