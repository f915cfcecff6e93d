// Scale bytes of the amax rules by their meaning in real numbers, at every edge of the format.
#include "mxfp4/scale_rules.h"

#include <doctest/doctest.h>

#include <random>

#include "oracle.hpp"

using namespace qt;

namespace {

constexpr ScaleRule kAmaxRules[] = {ScaleRule::floor, ScaleRule::even, ScaleRule::rceil,
                                    ScaleRule::ceil, ScaleRule::ts34};

unsigned byte_of(ScaleRule rule, std::uint32_t amax) {
  switch (rule) {
    case ScaleRule::floor:
      return scale_byte_of_amax<ScaleRule::floor>(amax);
    case ScaleRule::even:
      return scale_byte_of_amax<ScaleRule::even>(amax);
    case ScaleRule::rceil:
      return scale_byte_of_amax<ScaleRule::rceil>(amax);
    case ScaleRule::ceil:
      return scale_byte_of_amax<ScaleRule::ceil>(amax);
    case ScaleRule::ts34:
      return scale_byte_of_amax<ScaleRule::ts34>(amax);
    default:
      return 999;
  }
}

}  // namespace

TEST_CASE("scale_rules.every exponent at the mantissas that decide") {
  long wrong = 0;
  for (std::uint32_t e = 0; e < 255; ++e)
    for (const std::uint32_t m : {0u, 1u, 2u, 0x200000u, 0x3fffffu, 0x400000u, 0x400001u, 0x5fffffu,
                                  0x600000u, 0x600001u, 0x7ffffeu, 0x7fffffu}) {
      const std::uint32_t amax = e << 23 | m;
      if (amax == 0) continue;
      for (const auto rule : kAmaxRules)
        wrong += byte_of(rule, amax) != oracle::amax_byte(rule, oracle::from_bits(amax));
    }
  CHECK(wrong == 0);
}

TEST_CASE("scale_rules.random amax") {
  std::mt19937 random(17);
  long wrong = 0;
  for (int i = 0; i < 100000; ++i) {
    const std::uint32_t amax = u32(1 + random() % 0x7f7fffffu);
    for (const auto rule : kAmaxRules)
      wrong += byte_of(rule, amax) != oracle::amax_byte(rule, oracle::from_bits(amax));
  }
  CHECK(wrong == 0);
}

TEST_CASE("scale_rules.known bytes") {
  struct Row {
    float amax;
    unsigned floor, even, rceil, ceil;
  };
  const Row rows[] = {{1.0f, 125, 125, 125, 125},
                      {std::nextafter(1.0f, 2.0f), 125, 125, 125, 126},
                      {1.5f, 125, 125, 125, 126},
                      {std::nextafter(1.5f, 2.0f), 125, 125, 126, 126},
                      {std::nextafter(1.75f, 1.0f), 125, 125, 126, 126},
                      {1.75f, 125, 126, 126, 126},
                      {6.0f, 127, 127, 127, 128},
                      {8.0f, 128, 128, 128, 128},
                      {0x1p127f, 252, 252, 252, 252},
                      {3.402823466e38f, 252, 253, 253, 253},
                      {0x1p-125f, 0, 0, 0, 0},
                      {0x1p-124f, 1, 1, 1, 1},
                      {0x1.8p-125f, 0, 0, 0, 1},
                      {std::nextafter(0x1.8p-125f, 1.0f), 0, 0, 1, 1},
                      {0x1p-126f, 0, 0, 0, 0},
                      {0x1p-149f, 0, 0, 0, 0},
                      {0x1.fffffcp-127f, 0, 0, 0, 0},
                      {0x1p-1f, 124, 124, 124, 124}};
  for (const auto& row : rows) {
    const auto amax = oracle::to_bits(row.amax);
    INFO("amax ", row.amax);
    CHECK(byte_of(ScaleRule::floor, amax) == row.floor);
    CHECK(byte_of(ScaleRule::ts34, amax) == row.floor);
    CHECK(byte_of(ScaleRule::even, amax) == row.even);
    CHECK(byte_of(ScaleRule::rceil, amax) == row.rceil);
    CHECK(byte_of(ScaleRule::ceil, amax) == row.ceil);
  }
}

TEST_CASE("scale_rules.zero, NaN and Inf") {
  for (const auto rule : kAmaxRules) {
    CHECK(byte_of(rule, 0u) == 0u);
    CHECK(byte_of(rule, 0x7f7fffffu) < 254u);
    CHECK(byte_of(rule, 0x7f800000u) == 255u);
    CHECK(byte_of(rule, 0x7f800001u) == 255u);
    CHECK(byte_of(rule, 0x7fffffffu) == 255u);
  }
}

TEST_CASE("scale_rules.a rule clips exactly where some amax exceeds 6 scales") {
  for (const auto rule : kAmaxRules) {
    bool over = false;
    for (std::uint32_t m = 0; m < 0x800000u; m += 0x1000u) {
      const std::uint32_t amax = 127u << 23 | m;
      const double pre_scale = rule == ScaleRule::ts34 ? 0.75 : 1.0;
      over |= pre_scale * oracle::scaled(oracle::from_bits(amax), byte_of(rule, amax)) > 6;
    }
    CHECK(clips(rule) == over);
  }
  CHECK(clips(ScaleRule::quest));
  CHECK(clips(ScaleRule::quest_qutlass));
  CHECK(clips(ScaleRule::search));
}

TEST_CASE("scale_rules.amax takes NaN over Inf over finite, whatever the sign") {
  float x[4] = {-0.0f, 0.0f, -0.0f, 0.0f};
  CHECK(is_zero_block(amax_bits(x)));
  x[2] = -3.0f;
  CHECK(amax_bits(x) == oracle::to_bits(3.0f));
  x[0] = -HUGE_VALF;
  CHECK(amax_bits(x) == 0x7f800000u);
  x[1] = oracle::from_bits(0xff800001u);
  CHECK(is_nan_block(amax_bits(x)));
  CHECK(amax_bits(x) == 0x7f800001u);
}
