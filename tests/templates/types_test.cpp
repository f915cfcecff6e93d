// bf16, f16 and E8M0 at every value, and the square root against the machine's.
#include "mxfp4/types.h"

#include <doctest/doctest.h>

#include <random>

#include "mxfp4/e8m0.h"
#include "mxfp4/sqrt.h"
#include "oracle.hpp"

using namespace qt;

namespace {

// An f16 by the meaning of its fields.
double f16_value(unsigned h) {
  const int exponent = int(h >> 10 & 31u), mantissa = int(h & 1023u);
  const double magnitude =
      exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
  return h & 0x8000u ? -magnitude : magnitude;
}

}  // namespace

TEST_CASE("types.every f16 decodes exactly and encodes back") {
  long wrong = 0;
  for (unsigned h = 0; h < 0x10000u; ++h) {
    const float x = f32_from_f16(u16(h));
    if ((h & 0x7fffu) > 0x7c00u) {
      wrong += !std::isnan(x) || f16_from_f32(x) != 0x7e00u;
    } else {
      const double value =
          (h & 0x7fffu) == 0x7c00u ? (h >> 15 ? -HUGE_VAL : HUGE_VAL) : f16_value(h);
      wrong += x != value || std::signbit(x) != (h >> 15 != 0) || f16_from_f32(x) != h;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("types.f16 rounds to nearest even between every pair of neighbours") {
  long wrong = 0;
  for (unsigned h = 0; h < 0x7c00u; ++h) {  // the last pair is 65504 and 65536, which is Inf
    const double low = f16_value(h), high = h == 0x7bffu ? 65536.0 : f16_value(h + 1);
    const float middle = float((low + high) / 2);
    wrong += f16_from_f32(middle) != (h % 2 ? h + 1 : h);
    wrong += f16_from_f32(std::nextafter(middle, 0.0f)) != h;
    wrong += f16_from_f32(std::nextafter(middle, 1e30f)) != h + 1;
    wrong += f16_from_f32(-middle) != (0x8000u | (h % 2 ? h + 1 : h));
  }
  CHECK(wrong == 0);
  CHECK(f16_from_f32(1e30f) == 0x7c00u);
  CHECK(f16_from_f32(-HUGE_VALF) == 0xfc00u);
  CHECK(f16_from_f32(0x1p-149f) == 0u);
}

TEST_CASE("types.every bf16 decodes exactly and encodes back") {
  long wrong = 0;
  for (unsigned h = 0; h < 0x10000u; ++h) {
    const float x = f32_from_bf16(u16(h));
    wrong += oracle::to_bits(x) != h << 16;
    wrong += bf16_from_f32(x) != ((h & 0x7fffu) > 0x7f80u ? 0x7fc0u : h);
  }
  CHECK(wrong == 0);
}

TEST_CASE("types.bf16 rounds to nearest even") {
  CHECK(bf16_from_f32(oracle::from_bits(0x3f808000u)) == 0x3f80u);
  CHECK(bf16_from_f32(oracle::from_bits(0x3f818000u)) == 0x3f82u);
  CHECK(bf16_from_f32(oracle::from_bits(0x3f808001u)) == 0x3f81u);
  CHECK(bf16_from_f32(oracle::from_bits(0x3f807fffu)) == 0x3f80u);
  CHECK(bf16_from_f32(oracle::from_bits(0x7f7fffffu)) == 0x7f80u);
  CHECK(bf16_from_f32(oracle::from_bits(0xff7fffffu)) == 0xff80u);
  CHECK(bf16_from_f32(oracle::from_bits(0x00008000u)) == 0u);
  CHECK(bf16_from_f32(oracle::from_bits(0x7f800001u)) == 0x7fc0u);
  CHECK(bf16_from_f32(oracle::from_bits(0xffffffffu)) == 0x7fc0u);
}

TEST_CASE("e8m0.every byte") {
  for (unsigned b = 0; b < 255; ++b) {
    CHECK(double(e8m0_value(b)) == std::ldexp(1.0, int(b) - 127));
    CHECK(double(e8m0_inverse(b)) == std::ldexp(1.0, 127 - int(b)));
  }
  CHECK(std::isnan(e8m0_value(255)));
  CHECK(e8m0_clamp(-1) == 0u);
  CHECK(e8m0_clamp(-300) == 0u);
  CHECK(e8m0_clamp(7) == 7u);
  CHECK(e8m0_clamp(255) == 254u);
}

TEST_CASE("sqrt.is correctly rounded") {
  std::mt19937 random(3);
  long wrong = 0;
  const auto check = [&](std::uint32_t bits) {
    const float x = oracle::from_bits(bits);
    wrong += oracle::to_bits(sqrt_rn(x)) != oracle::to_bits(std::sqrt(x));
  };
  for (int i = 0; i < 400000; ++i) check(u32(random() % 0x7f800000u));
  for (std::uint32_t e = 0; e < 255; ++e)
    for (std::uint32_t m = 0; m < 300; ++m) {
      check((e << 23) + m);
      check((e << 23) + 0x7fffffu - m);
    }
  for (int i = 1; i < 5000; ++i) check(oracle::to_bits(float(i) * float(i)));
  check(0u);
  check(0x80000000u);
  check(0x7f800000u);
  CHECK(wrong == 0);
  CHECK(std::isnan(sqrt_rn(NAN)));
}
