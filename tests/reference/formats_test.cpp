// Number formats against their tables and, for the 16-bit ones, against every pattern.
#include "reference/formats.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <initializer_list>
#include <limits>

using namespace quarterturn::reference;

TEST_CASE("e2m1.values of the 16 codes") {
  const double expected[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (std::uint8_t code = 0; code < 8; ++code) {
    CHECK(e2m1_value(code) == expected[code]);
    CHECK(e2m1_value(static_cast<std::uint8_t>(code + 8)) == -expected[code]);
  }
  CHECK(std::signbit(e2m1_value(8)));
  CHECK_FALSE(std::signbit(e2m1_value(0)));
}

TEST_CASE("e8m0.values at both ends and in the middle") {
  CHECK(e8m0_value(0) == 0x1p-127);
  CHECK(e8m0_value(1) == 0x1p-126);
  CHECK(e8m0_value(127) == 1);
  CHECK(e8m0_value(254) == 0x1p127);
  CHECK(std::isnan(e8m0_value(255)));
}

TEST_CASE("e8m0.bytes are clamped to the finite ones") {
  for (int byte = 0; byte < 255; ++byte) CHECK(e8m0_byte(byte - 127) == byte);
  CHECK(e8m0_byte(-128) == 0);
  CHECK(e8m0_byte(-200) == 0);
  CHECK(e8m0_byte(128) == 254);
}

namespace {

struct Format {
  float (*value)(std::uint16_t);
  std::uint16_t (*bits)(float);
  std::uint16_t infinity;
};

constexpr Format kFormats[] = {{bf16_value, bf16_bits, 0x7f80}, {f16_value, f16_bits, 0x7c00}};

}  // namespace

TEST_CASE("16-bit formats.known values") {
  CHECK(bf16_value(0x3f80) == 1.0f);
  CHECK(bf16_value(0xc049) == -3.140625f);
  CHECK(bf16_value(0x0001) == 0x1p-133f);
  CHECK(f16_value(0x3c00) == 1.0f);
  CHECK(f16_value(0xc248) == -3.140625f);
  CHECK(f16_value(0x0001) == 0x1p-24f);
  CHECK(f16_value(0x03ff) == 1023 * 0x1p-24f);
  CHECK(f16_value(0x0400) == 0x1p-14f);
  CHECK(f16_value(0x7bff) == 65504.0f);
}

TEST_CASE("16-bit formats.every pattern survives a round trip, and NaN stays NaN") {
  for (const auto& format : kFormats)
    for (std::uint32_t p = 0; p < 65536; ++p) {
      const auto bits = static_cast<std::uint16_t>(p);
      const float value = format.value(bits);
      const bool nan = (bits & 0x7fff) > format.infinity;
      REQUIRE(std::isnan(value) == nan);
      if (nan)
        REQUIRE((format.bits(value) & 0x7fff) > format.infinity);
      else
        REQUIRE(format.bits(value) == bits);
    }
}

TEST_CASE("16-bit formats.rounding to nearest, ties to even, around every midpoint") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& format : kFormats)
    for (const auto sign : {std::uint16_t{0}, std::uint16_t{0x8000}})
      for (std::uint32_t p = 0; p < format.infinity; ++p) {
        const auto low = static_cast<std::uint16_t>(p | sign);
        const auto high = static_cast<std::uint16_t>((p + 1) | sign);
        const double a = static_cast<double>(format.value(low));
        // Beyond the largest value the midpoint is with what would be the next one.
        const bool last = p + 1 == format.infinity;
        const double b =
            last ? 2 * a - static_cast<double>(format.value(static_cast<std::uint16_t>(low - 1)))
                 : static_cast<double>(format.value(high));
        const auto middle = static_cast<float>((a + b) / 2);
        const float outward = std::nextafter(middle, sign != 0 ? -kInfinity : kInfinity);
        const bool right = static_cast<double>(middle) == (a + b) / 2 &&
                           format.bits(middle) == (p % 2 == 0 ? low : high) &&
                           format.bits(std::nextafter(middle, 0.0f)) == low &&
                           format.bits(outward) == high;
        REQUIRE_MESSAGE(right, "pattern " << low << " of " << format.infinity);
      }
}
