// Scale bytes where they step: every exponent from the least subnormal to the largest finite
// number, at every threshold of every rule and 1 ulp beside, and every bf16 number as the largest
// of a block.
#include <array>

#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

reference::QuantizeSpec spec_of(reference::ScaleRule rule, reference::Rounding rounding) {
  reference::QuantizeSpec spec;
  spec.rule = rule;
  spec.rounding = rounding;
  spec.noise = {0x0123456789abcdef, 7, 1, 0};
  return spec;
}

}  // namespace

TEST_CASE("scale_amax.thresholds at every exponent, at either end and in the middle of a block") {
  Random random(3);
  Differences differences;
  std::size_t turn = 0;
  std::array<float, 32> block{};
  for (int exponent = -149; exponent <= 127; ++exponent)
    for (const float amax : thresholds(exponent))
      for (const std::size_t where : {0, 15, 16, 31})
        for (const auto rule : kRules) {
          fill_around(block, amax, where, random);
          differences.block(block, spec_of(rule, kRoundings[turn++ % 6]));
        }
  differences.check(100000);
}

TEST_CASE("scale_amax.thresholds of the extreme bytes, under every rounding") {
  Random random(4);
  Differences differences;
  std::array<float, 32> block{};
  for (const int exponent : {-149, -148, -140, -128, -127, -126, -125, -124, -123, 125, 126, 127})
    for (const float amax : thresholds(exponent))
      for (const auto rule : kRules)
        for (const auto rounding : kRoundings)
          for (int repeat = 0; repeat < 6; ++repeat) {
            fill_around(block, amax, random() % 32, random);
            differences.block(block, spec_of(rule, rounding));
          }
  differences.check(40000);
}

TEST_CASE("scale_amax.every bf16 number as the largest magnitude, among its own fractions") {
  Random random(5);
  Differences differences;
  std::array<float, 32> block{};
  for (std::uint32_t pattern = 1; pattern < 0x7f80u; ++pattern) {
    const float amax = from_bits(pattern << 16);
    for (std::size_t j = 0; j < 32; ++j) {
      const float fraction = amax * static_cast<float>(j + 1) / 32;
      block[j] = from_bits(to_bits(fraction) ^ static_cast<std::uint32_t>(random() % 2 << 31));
    }
    for (const auto rule : kRules) differences.block(block, spec_of(rule, kRoundings[pattern % 6]));
  }
  differences.check(250000);
}

TEST_CASE("scale_amax.every bf16 number under every rounding, 32 neighbours in a block") {
  Differences differences;
  std::array<float, 32> block{};
  for (const auto rule : {reference::ScaleRule::rceil, reference::ScaleRule::ts34})
    for (const auto rounding : kRoundings)
      for (std::uint32_t first = 0; first < 65536; first += 32) {
        for (std::uint32_t j = 0; j < 32; ++j) block[j] = from_bits((first + j) << 16);
        differences.block(block, spec_of(rule, rounding));
      }
  differences.check(24576);
}
