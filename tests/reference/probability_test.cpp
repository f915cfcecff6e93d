// What 8 and 16 random bits can and cannot represent, and that the test of unbiasedness tells sound
// noise from a known fault.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "reference/statistics.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

constexpr std::int64_t kDraws = 16384;

struct Cell {
  double low = 0, high = 0, fraction = 0;
};

// The grid cell of a magnitude below 6, and how far into it the magnitude lies.
Cell cell_of(double a) {
  int low = 0;
  while (low < 6 && kMagnitudes[low + 1] <= a) ++low;
  const double below = kMagnitudes[low], above = kMagnitudes[low + 1];
  return {below, above, (a - below) / (above - below)};
}

// The probability of rounding up, by trying every draw.
double probability_up(double a, Rounding rounding) {
  const int bits = rounding == Rounding::sr8 ? 8 : 16;
  const int below = encode(a, Rounding::sr22, 0);
  std::int64_t ups = 0;
  for (std::uint32_t n = 0; n < 1u << bits; ++n)
    ups += encode(a, rounding, rounding == Rounding::sr8 ? n << 14 : n << 6 | 0x20) - below;
  return std::ldexp(static_cast<double>(ups), -bits);
}

std::vector<double> full_mantissas(std::uint64_t seed, int count) {
  Samples random(seed);
  std::vector<double> out;
  for (int i = 0; i < count; ++i)
    out.push_back(static_cast<double>(static_cast<float>(6 * random.uniform())));
  return out;
}

// Mean of the rounded value over kDraws draws of the contract's noise; positions vary by element.
double mean_of(double a, Rounding rounding, std::uint64_t position) {
  double sum = 0;
  for (std::uint32_t n = 0; n < kDraws; ++n)
    sum += e2m1_value(encode(a, rounding, draw(rounding, {42, n, 0, 0}, position)));
  return sum / static_cast<double>(kDraws);
}

// Against the value itself, or against the nearest lower k / 256 that eight bits can mean.
enum class Truth { value, of_256 };

BiasTest test_of(const std::vector<double>& values, Rounding rounding, Truth truth) {
  BiasTest test(kDraws);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Cell cell = cell_of(values[i]);
    const double k = std::floor(256 * cell.fraction) / 256;
    const double mean = truth == Truth::of_256 ? cell.low + k * (cell.high - cell.low) : values[i];
    test.add(mean, cell.low, cell.high, mean_of(values[i], rounding, i));
  }
  return test;
}

}  // namespace

TEST_CASE("probability.bf16 values are exact in sr16 from 2^-10 on and in sr8 from 2^-2 on") {
  int sr16 = 0, sr8 = 0;
  for (std::uint32_t bits = std::bit_cast<std::uint32_t>(0x1p-10f) >> 16; bits < 0x40c0; ++bits) {
    const double a = static_cast<double>(bf16_value(static_cast<std::uint16_t>(bits)));
    const double fraction = cell_of(a).fraction;
    if (bits % 8 == 1) {
      CHECK(probability_up(a, Rounding::sr16) == fraction);
      ++sr16;
    }
    if (a >= 0.25) {
      CHECK(probability_up(a, Rounding::sr8) == fraction);
      ++sr8;
    }
  }
  CHECK(sr16 > 100);
  CHECK(sr8 > 500);
}

TEST_CASE("probability.sr8 is short by half of 1/256 of a step on average, sr16 by nothing") {
  double sr8 = 0, sr16 = 0;
  const auto values = full_mantissas(1, 4000);
  for (const double a : values)
    sr8 += (probability_up(a, Rounding::sr8) - cell_of(a).fraction) / 4000;
  CHECK(sr8 == doctest::Approx(-0x1p-9).epsilon(0.05));
  for (std::size_t i = 0; i < 200; ++i)
    sr16 += (probability_up(values[i], Rounding::sr16) - cell_of(values[i]).fraction) / 200;
  CHECK(std::fabs(sr16) < 0x1p-19);  // four deviations of 200 errors uniform within 2^-17
}

TEST_CASE("probability.the bias test rejects sr8 on full mantissas, not on bf16, nor by k / 256") {
  const auto values = full_mantissas(2, 256);
  CHECK(test_of(values, Rounding::sr16, Truth::value).unbiased());
  CHECK(!test_of(values, Rounding::sr8, Truth::value).unbiased());
  CHECK(test_of(values, Rounding::sr8, Truth::of_256).unbiased());
  auto narrow = values;
  for (double& a : narrow) {
    a = static_cast<double>(bf16_value(bf16_bits(static_cast<float>(a))));
    if (a < 0.25 || a >= 6) a = 0.25;
  }
  CHECK(test_of(narrow, Rounding::sr8, Truth::value).unbiased());
}

TEST_CASE("probability.the bias test rejects one word for two elements, the second by word >> 16") {
  // Rounding by a word's top 22 bits leaves the second element of each pair with noise below 2^-16
  // of a step: it is truncated. The first elements alone are sound.
  const auto values = full_mantissas(3, 256);
  BiasTest first(kDraws), all(kDraws);
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    double mean = 0;
    for (std::uint32_t n = 0; n < kDraws; ++n) {
      const std::uint32_t word = philox4x32({i / 2, 0, n, 0}, {42, 0}, 7)[0];
      const std::uint32_t noise = i % 2 == 0 ? word : word >> 16;
      mean += e2m1_value(encode(values[i], Rounding::sr22, noise >> 10));
    }
    mean /= static_cast<double>(kDraws);
    const Cell cell = cell_of(values[i]);
    if (i % 2 == 0) first.add(values[i], cell.low, cell.high, mean);
    all.add(values[i], cell.low, cell.high, mean);
  }
  CHECK(first.unbiased());
  CHECK(!all.unbiased());
}
