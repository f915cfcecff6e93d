// E2M1: every code, every bf16, every tie, and the exact probabilities of stochastic rounding.
#include "mxfp4/e2m1.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "oracle.hpp"

using namespace qt;
using oracle::Tie;

namespace {

constexpr Rounding kNearest[] = {Rounding::rne, Rounding::half_away, Rounding::half_to_zero};

unsigned encode(Rounding rounding, float y, unsigned r = 0) {
  switch (rounding) {
    case Rounding::rne:
      return e2m1_encode<Rounding::rne>(y, r);
    case Rounding::half_away:
      return e2m1_encode<Rounding::half_away>(y, r);
    case Rounding::half_to_zero:
      return e2m1_encode<Rounding::half_to_zero>(y, r);
    case Rounding::sr16:
      return e2m1_encode<Rounding::sr16>(y, r);
    case Rounding::sr22:
      return e2m1_encode<Rounding::sr22>(y, r);
    case Rounding::sr8:
      return e2m1_encode<Rounding::sr8>(y, r);
    case Rounding::sr_cvt_rs:
    case Rounding::sr_cvt_scalef32:
      break;
  }
  return 99;
}

Tie tie_of(Rounding rounding) {
  return rounding == Rounding::rne         ? Tie::even
         : rounding == Rounding::half_away ? Tie::up
                                           : Tie::down;
}

// Values around everything that matters, full mantissas among them.
std::vector<float> interesting_magnitudes() {
  std::vector<float> values = {0.0f,       1e-3f,     1e-8f,     0x1p-22f, 0x1p-23f, 0x1p-24f,
                               0x1.8p-24f, 0x1p-149f, 0x1p-126f, 0.1f,     0.3f,     0.499f,
                               0.7f,       1.99f,     2.2f,      3.999f,   5.9f,     7.0f,
                               8.0f,       100.0f,    3.4e38f};
  for (const float v :
       {0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f}) {
    values.push_back(std::nextafter(v, 0.0f));
    values.push_back(v);
    values.push_back(std::nextafter(v, 100.0f));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 20; ++i)
    values.push_back(
        oracle::from_bits(u32((120u + random() % 10u) << 23 | (random() & 0x7fffffu))));
  return values;
}

}  // namespace

TEST_CASE("e2m1.values") {
  for (unsigned code = 0; code < 16; ++code) {
    const double magnitude = oracle::kGrid[code & 7u];
    CHECK(e2m1_value(code) == (code & 8u ? -magnitude : magnitude));
    CHECK(std::signbit(e2m1_value(code)) == (code >= 8));
    CHECK(e2m1_twice(code) == 2 * e2m1_value(code));
  }
}

TEST_CASE("e2m1.every code encodes to itself") {
  for (int rounding = 0; rounding < 6; ++rounding)
    for (unsigned code = 0; code < 16; ++code)
      for (const unsigned r : {0u, 0x20u, 0x200000u, 0x3fffffu})
        CHECK(encode(Rounding(rounding), e2m1_value(code), r) == code);
}

TEST_CASE("e2m1.nearest over all finite bf16 at several scales") {
  long wrong = 0, seen = 0;
  for (const unsigned byte :
       {0u, 1u, 2u, 60u, 120u, 126u, 127u, 128u, 130u, 200u, 252u, 253u, 254u}) {
    const float inverse = e8m0_inverse(byte);
    for (unsigned h = 0; h < 0x10000u; ++h) {
      if ((h & 0x7f80u) == 0x7f80u) continue;
      const float x = oracle::from_bits(h << 16);
      for (const auto rounding : kNearest) {
        const unsigned code = encode(rounding, mul(x, inverse));
        wrong += code != oracle::nearest(oracle::scaled(x, byte), h >= 0x8000u, tie_of(rounding));
        ++seen;
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(seen == 13L * 3 * 2 * 0x7f80);
}

TEST_CASE("e2m1.nearest over random binary32 at random scales") {
  std::mt19937 random(11);
  long wrong = 0;
  for (int i = 0; i < 500000; ++i) {
    const std::uint32_t bits = u32(random());
    if ((bits & kMagnitude) >= kInfinity) continue;
    const float x = oracle::from_bits(bits);
    // Around the element's own exponent, so that most quotients fall on the grid.
    const unsigned byte = oracle::clamp_byte(int((bits >> 23) & 255u) - 4 + int(random() % 8u));
    for (const auto rounding : kNearest)
      wrong += encode(rounding, mul(x, e8m0_inverse(byte))) !=
               oracle::nearest(oracle::scaled(x, byte), bits >> 31, tie_of(rounding));
  }
  CHECK(wrong == 0);
}

TEST_CASE("e2m1.ties and their neighbours") {
  struct Row {
    float middle;
    unsigned even, up, down;
  };
  const Row rows[] = {{0.25f, 0, 1, 0}, {0.75f, 2, 2, 1}, {1.25f, 2, 3, 2}, {1.75f, 4, 4, 3},
                      {2.5f, 4, 5, 4},  {3.5f, 6, 6, 5},  {5.0f, 6, 7, 6}};
  for (const auto& row : rows)
    for (const unsigned sign : {0u, 8u}) {
      const float y = sign ? -row.middle : row.middle;
      CHECK(encode(Rounding::rne, y) == (row.even | sign));
      CHECK(encode(Rounding::half_away, y) == (row.up | sign));
      CHECK(encode(Rounding::half_to_zero, y) == (row.down | sign));
      for (const auto rounding : kNearest) {
        CHECK(encode(rounding, std::nextafter(y, 0.0f)) == (row.down | sign));
        CHECK(encode(rounding, std::nextafter(y, sign ? -9.0f : 9.0f)) == (row.up | sign));
      }
    }
}

TEST_CASE("e2m1.the sign is copied, zero included") {
  for (const auto rounding : kNearest) {
    CHECK(encode(rounding, 0.0f) == 0u);
    CHECK(encode(rounding, -0.0f) == 8u);
    CHECK(encode(rounding, -1e-30f) == 8u);
    CHECK(encode(rounding, -0x1p-149f) == 8u);
  }
  CHECK(encode(Rounding::sr16, -1e-30f, 0x3fffe0u) == 8u);
}

TEST_CASE("e2m1.saturates at 6") {
  for (int rounding = 0; rounding < 6; ++rounding)
    for (const float y : {6.0f, 6.5f, 7.0f, 7.999f, 8.0f, 1e9f, 3.4e38f, HUGE_VALF})
      for (const unsigned r : {0u, 0x3fffffu}) {
        CHECK(encode(Rounding(rounding), y, r) == 7u);
        CHECK(encode(Rounding(rounding), -y, r) == 15u);
      }
}

TEST_CASE("e2m1.sr16 goes up for exactly the rounded number of its 2^16 draws") {
  for (const float a : interesting_magnitudes())
    for (const float y : {a, -a}) {
      const unsigned sign = std::signbit(y) ? 8u : 0u;
      const unsigned below = unsigned(oracle::code_below(a));
      long up = 0, other = 0;
      for (unsigned r16 = 0; r16 < 0x10000u; ++r16) {
        const unsigned code = encode(Rounding::sr16, y, (r16 << 6) | 0x20u);
        up += code == ((below + 1) | sign);
        other += code != (below | sign) && code != ((below + 1) | sign);
      }
      INFO("a = ", a);
      CHECK(other == 0);
      CHECK(up == long(std::floor(std::ldexp(oracle::fraction(a), 16) + 0.5)));
    }
}

TEST_CASE("e2m1.sr8 goes up for exactly the truncated number of its 2^8 draws") {
  for (const float a : interesting_magnitudes()) {
    const unsigned below = unsigned(oracle::code_below(a));
    long up = 0;
    for (unsigned r8 = 0; r8 < 256u; ++r8) {
      const unsigned code = encode(Rounding::sr8, a, r8 << 14);
      REQUIRE((code == below || code == below + 1));
      up += code == below + 1;
    }
    INFO("a = ", a);
    CHECK(up == long(std::floor(std::ldexp(oracle::fraction(a), 8))));
  }
}

TEST_CASE("e2m1.sr22 goes up from one draw on, and the draws above it are the probability") {
  for (const float a : interesting_magnitudes()) {
    const unsigned below = unsigned(oracle::code_below(a));
    const auto chance = std::uint32_t(std::floor(std::ldexp(oracle::fraction(a), 22)));
    const std::uint32_t first_up = 0x400000u - chance;
    long wrong = 0;
    const auto check = [&](std::uint32_t r) {
      wrong += encode(Rounding::sr22, a, r) != below + (r >= first_up ? 1u : 0u);
    };
    for (std::uint32_t r = 0; r < 0x400000u; r += 61) check(r);
    for (std::uint32_t r = first_up < 100 ? 0 : first_up - 100; r < first_up + 100; ++r)
      if (r < 0x400000u) check(r);
    check(0x3fffffu);
    INFO("a = ", a);
    CHECK(wrong == 0);
  }
}
