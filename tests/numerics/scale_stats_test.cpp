// QUEST and SEARCH where their binary32 sums decide: steps of the byte, overflow, underflow, ties.
#include <array>
#include <cmath>

#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;
using reference::ScaleRule;

namespace {

constexpr ScaleRule kStatRules[] = {ScaleRule::quest, ScaleRule::quest_qutlass, ScaleRule::search};

reference::QuantizeSpec spec_of(ScaleRule rule) {
  reference::QuantizeSpec spec;
  spec.rule = rule;
  return spec;
}

int byte_of(ScaleRule rule, std::span<const float> block) {
  return block_by_text(block, spec_of(rule)).byte;
}

}  // namespace

TEST_CASE("scale_stats.every kind of block") {
  Random random(6);
  Differences differences;
  std::array<float, 32> block{};
  for (const Fill fill : kFills)
    for (int repeat = 0; repeat < 20000; ++repeat) {
      fill(block, random);
      for (const auto rule : kStatRules) differences.block(block, spec_of(rule));
    }
  differences.check(480000);
}

TEST_CASE("scale_stats.deviations at and beside every power of two") {
  Random random(7);
  Differences differences;
  int below = 0, above = 0;
  std::array<float, 32> block{};
  for (int exponent = -140; exponent <= 126; ++exponent) {
    const double edge = std::ldexp(6 / 2.92247856, exponent);
    if (edge > 3e38) continue;
    const std::uint32_t middle = to_bits(static_cast<float>(edge));
    for (std::uint32_t bits = middle < 40 ? 0 : middle - 40; bits <= middle + 40; ++bits) {
      // Half of the block +s, half -s: the deviation is s, but for roundings.
      for (std::size_t j = 0; j < 32; ++j)
        block[j] = from_bits(bits | static_cast<std::uint32_t>(j % 2 << 31));
      differences.block(block, spec_of(ScaleRule::quest));
      differences.block(block, spec_of(ScaleRule::quest_qutlass));
      const int byte = byte_of(ScaleRule::quest, block);
      below += byte == exponent + 126;
      above += byte == exponent + 127;
    }
  }
  differences.check(40000);
  CHECK(below > 1000);
  CHECK(above > 1000);
}

TEST_CASE("scale_stats.quest at its ends: no deviation is byte 0, an overflowed one 254") {
  const auto both = [](const std::vector<float>& block, int byte) {
    CHECK(byte_of(ScaleRule::quest, block) == byte);
    CHECK(int(block_by_reference(block, spec_of(ScaleRule::quest)).byte) == byte);
  };
  both(std::vector<float>(32, 5.0f), 0);
  std::vector<float> tiny(32, 1e-40f);
  tiny[3] = -1e-40f;
  both(tiny, 0);  // the squares underflow
  std::vector<float> least(32, 0x1p-126f);
  for (std::size_t j = 0; j < 32; j += 2) least[j] = -least[j];
  both(least, 0);
  both(std::vector<float>(32, 3e38f), 254);  // the sum is Inf
  std::vector<float> halves(32, 3e38f);
  std::fill(halves.begin(), halves.begin() + 16, -3e38f);
  both(halves, 254);  // the sum is NaN
  std::vector<float> turns(32, 1e30f);
  for (std::size_t j = 0; j < 32; j += 2) turns[j] = -turns[j];
  both(turns, 254);  // the squares are Inf
}

TEST_CASE("scale_stats.search chooses each of its candidates, alike") {
  Random random(8);
  Differences differences;
  int chosen[3] = {};
  std::array<float, 32> block{};
  reference::QuantizeSpec rceil;
  for (int repeat = 0; repeat < 20000; ++repeat) {
    kFills[repeat % 2 == 0 ? 1 : 3](block, random);
    differences.block(block, spec_of(ScaleRule::search));
    const int step = byte_of(ScaleRule::search, block) - int(block_by_text(block, rceil).byte);
    REQUIRE(std::abs(step) <= 1);
    ++chosen[step + 1];
  }
  differences.check(20000);
  for (const int count : chosen) CHECK(count > 100);
}

TEST_CASE("scale_stats.search takes the larger of equal errors, by both sides") {
  // All on the grid of 2^0 and of 2^1: 6 asks for 2^0, and 4, 2, 1 are codes of both.
  std::vector<float> block(32, 2.0f);
  block[9] = 6.0f;
  CHECK(byte_of(ScaleRule::search, block) == 128);
  CHECK(int(block_by_reference(block, spec_of(ScaleRule::search)).byte) == 128);
  block[10] = 0.5f;  // not a code of 2^1
  CHECK(byte_of(ScaleRule::search, block) == 127);
  CHECK(int(block_by_reference(block, spec_of(ScaleRule::search)).byte) == 127);
}

TEST_CASE(
    "scale_stats.search reaches byte 254, which rules of the largest magnitude alone do not") {
  // 1.75 * 2^127 is half a step of rceil's scale away, and of twice that: the larger wins.
  const std::vector<float> block(32, 0x1.cp127f);
  CHECK(byte_of(ScaleRule::rceil, block) == 253);
  CHECK(byte_of(ScaleRule::search, block) == 254);
  CHECK(int(block_by_reference(block, spec_of(ScaleRule::search)).byte) == 254);
  const std::vector<float> most(32, 0x1.fffffep127f);
  for (const auto rule :
       {ScaleRule::floor, ScaleRule::even, ScaleRule::rceil, ScaleRule::ceil, ScaleRule::ts34})
    CHECK(byte_of(rule, most) <= 253);
}
