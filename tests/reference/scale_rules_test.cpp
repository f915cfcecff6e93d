// Scale bytes at thresholds, and the properties that define each rule.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

using Block = std::array<float, 32>;

std::uint8_t byte_for(double amax, ScaleRule rule) {
  Block block{};
  block[17] = static_cast<float>(-amax);
  block[3] = static_cast<float>(amax / 3);
  return scale_byte(block, rule);
}

constexpr ScaleRule kByAmax[] = {ScaleRule::floor, ScaleRule::even, ScaleRule::rceil,
                                 ScaleRule::ceil, ScaleRule::ts34};

double squared_error(const Block& block, int exponent) {
  double sum = 0;
  for (const float x : block) {
    const double value = static_cast<double>(x);
    const double q =
        std::ldexp(e2m1_value(encode(std::ldexp(value, -exponent), Rounding::rne, 0)), exponent);
    sum += (q - value) * (q - value);
  }
  return sum;
}

}  // namespace

TEST_CASE("scale.exponents of the rules at their thresholds, and one ulp to either side") {
  // Largest magnitude; then s of floor, even, rceil, ceil.
  struct Row {
    double amax;
    int floor, even, rceil, ceil;
  };
  const double ulp = 0x1p-23;
  const Row rows[] = {
      {1 - ulp / 2, -3, -2, -2, -2}, {1, -2, -2, -2, -2},    {1 + ulp, -2, -2, -2, -1},
      {1.5 - ulp, -2, -2, -2, -1},   {1.5, -2, -2, -2, -1},  {1.5 + ulp, -2, -2, -1, -1},
      {1.75 - ulp, -2, -2, -1, -1},  {1.75, -2, -1, -1, -1}, {1.75 + ulp, -2, -1, -1, -1},
      {2 - ulp, -2, -1, -1, -1},     {2, -1, -1, -1, -1},    {6, 0, 0, 0, 1},
      {6 + 4 * ulp, 0, 0, 1, 1},     {7, 0, 1, 1, 1},        {8, 1, 1, 1, 1},
  };
  for (const auto& row : rows)
    for (const int e : {-100, -1, 0, 1, 77, 120}) {
      INFO(row.amax << " * 2^" << e);
      const double amax = std::ldexp(row.amax, e);
      CHECK(byte_for(amax, ScaleRule::floor) == row.floor + e + 127);
      CHECK(byte_for(amax, ScaleRule::ts34) == row.floor + e + 127);
      CHECK(byte_for(amax, ScaleRule::even) == row.even + e + 127);
      CHECK(byte_for(amax, ScaleRule::rceil) == row.rceil + e + 127);
      CHECK(byte_for(amax, ScaleRule::ceil) == row.ceil + e + 127);
    }
}

TEST_CASE("scale.bytes are clamped at 0 below the range and never reach 254 above it") {
  for (const auto rule : kByAmax) {
    CHECK(byte_for(0x1p-149, rule) == 0);
    CHECK(byte_for(0x1p-127, rule) == 0);
    CHECK(byte_for(0x1.8p-126, rule) == 0);
  }
  const double most = std::numeric_limits<float>::max();
  CHECK(byte_for(most, ScaleRule::floor) == 252);
  CHECK(byte_for(most, ScaleRule::even) == 253);
  CHECK(byte_for(most, ScaleRule::rceil) == 253);
  CHECK(byte_for(most, ScaleRule::ceil) == 253);
}

TEST_CASE(
    "scale.rceil is the least scale that fits, ceil and ts34 fit too, floor and even may not") {
  Samples random(3);
  for (int n = 0; n < 100000; ++n) {
    const double amax =
        static_cast<float>(std::exp2(250 * random.uniform() - 124) * (1 + random.uniform()));
    if (!std::isfinite(amax)) continue;
    const double scale = e8m0_value(byte_for(amax, ScaleRule::rceil));
    REQUIRE(amax <= 6 * scale);
    REQUIRE(amax > 3 * scale);
    REQUIRE(amax <= 4 * e8m0_value(byte_for(amax, ScaleRule::ceil)));
    const double floor_scale = e8m0_value(byte_for(amax, ScaleRule::floor));
    REQUIRE(amax >= 4 * floor_scale);
    REQUIRE(amax < 8 * floor_scale);
    REQUIRE(0.75 * amax < 6 * e8m0_value(byte_for(amax, ScaleRule::ts34)));
    REQUIRE(amax < 7 * e8m0_value(byte_for(amax, ScaleRule::even)));
    REQUIRE(amax >= 3.5 * e8m0_value(byte_for(amax, ScaleRule::even)));
  }
}

TEST_CASE("scale.ts34 of x is 4/3 of rceil of 0.75 x, but where the largest magnitude is 2^k") {
  Samples random(4);
  int powers = 0, others = 0;
  for (int n = 0; n < 20000; ++n) {
    std::vector<float> x = sample(32, [&] { return random.normal(); }), scaled(32);
    for (std::size_t i = 0; i < 32; ++i) {
      x[i] = bf16_value(bf16_bits(x[i]));
      scaled[i] = 0.75f * x[i];
    }
    QuantizeSpec ts34, rceil;
    ts34.rule = ScaleRule::ts34;
    const auto a = quantize(x.data(), 1, 32, 32, ts34);
    const auto b = quantize(scaled.data(), 1, 32, 32, rceil);
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::fabs(v));
    int exponent = 0;
    const bool power = std::frexp(amax, &exponent) == 0.5f;
    (power ? powers : others) += 1;
    REQUIRE((a.scales == b.scales && a.codes == b.codes) == !power);
  }
  CHECK(powers > 50);
  CHECK(others > 10000);
}

TEST_CASE("scale.quest follows the deviation, not the largest magnitude") {
  // Half +d and half -d has deviation d: t = 0.48707976 d.
  const auto byte = [](float d, ScaleRule rule) {
    Block block;
    for (std::size_t i = 0; i < 32; ++i) block[i] = i % 2 == 0 ? d : -d;
    return int{scale_byte(block, rule)};
  };
  CHECK(byte(1, ScaleRule::quest) == 127 - 2);
  CHECK(byte(4.125f, ScaleRule::quest) == 127 + 1);
  CHECK(byte(4.0625f, ScaleRule::quest) == 127);
  CHECK(byte(0x1p-120f, ScaleRule::quest) == 0);  // the square is below the subnormals
  CHECK(byte(0x1p-60f, ScaleRule::quest) == 127 - 62);
  CHECK(byte(0x1p100f, ScaleRule::quest) == 254);  // the square overflows
  // 1e-8 is 1.34 * 2^-27: it hides small deviations and none of the large.
  CHECK(byte(0x1p-60f, ScaleRule::quest_qutlass) == 127 - 27);
  CHECK(byte(1, ScaleRule::quest_qutlass) == 127 - 2);
  // A constant has none, whatever its size.
  Block constant;
  constant.fill(3);
  CHECK(scale_byte(constant, ScaleRule::quest) == 0);
  CHECK(scale_byte(constant, ScaleRule::quest_qutlass) == 127 - 27);
}

TEST_CASE("scale.search takes the least error of three") {
  Samples random(5);
  int chosen[3] = {0, 0, 0};
  for (int n = 0; n < 20000; ++n) {
    Block block;
    const bool spiked = n % 2 == 0;
    for (float& x : block) x = static_cast<float>(spiked ? random.spiked(0.1, 8) : random.normal());
    const int rceil = scale_byte(block, ScaleRule::rceil) - 127;
    const int found = scale_byte(block, ScaleRule::search) - 127;
    REQUIRE(std::abs(found - rceil) <= 1);
    ++chosen[found - rceil + 1];
    // Float sums of 32 squares may prefer another candidate where two are equal but for rounding.
    for (int s = rceil - 1; s <= rceil + 1; ++s)
      REQUIRE(squared_error(block, found) <= squared_error(block, s) * (1 + 1e-5));
  }
  CHECK(chosen[0] > 1000);
  CHECK(chosen[1] > 1000);
  // Below 6 every value of the coarser grid is one of the finer, so rceil + 1 only ever wins ties.
  CHECK(chosen[2] == 0);
}

TEST_CASE("scale.search prefers the larger byte where errors are equal") {
  // 2 and 1 are exact under 2^-1, 2^0 and 2^1 alike; rceil alone would take 2^-1.
  Block block{};
  block[0] = 2;
  block[9] = -1;
  CHECK(scale_byte(block, ScaleRule::rceil) == 127 - 1);
  CHECK(scale_byte(block, ScaleRule::search) == 127);
}

TEST_CASE("scale.clipping rules are those that can leave more than 6") {
  for (const auto rule : {ScaleRule::rceil, ScaleRule::ceil, ScaleRule::ts34})
    CHECK_FALSE(clips(rule));
  for (const auto rule : {ScaleRule::floor, ScaleRule::even, ScaleRule::quest,
                          ScaleRule::quest_qutlass, ScaleRule::search})
    CHECK(clips(rule));
}
