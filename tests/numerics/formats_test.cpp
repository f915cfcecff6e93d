// The number formats of the text against the reference's: every code, every 16-bit pattern, and
// binary32 values at every rounding threshold of bf16 and f16.
#include "reference/formats.hpp"

#include "mxfp4/block.h"
#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

bool same(float a, float b) { return (a != a && b != b) || to_bits(a) == to_bits(b); }

void compare_narrowing(Differences& bf16, Differences& f16, std::uint32_t bits) {
  const float x = from_bits(bits);
  const auto input = [&] { return fmt::format("{:08x}", bits); };
  bf16.count(qt::bf16_from_f32(x) == reference::bf16_bits(x), input);
  f16.count(qt::f16_from_f32(x) == reference::f16_bits(x), input);
}

}  // namespace

TEST_CASE("formats.every code and every scale byte has one value") {
  for (unsigned code = 0; code < 16; ++code) {
    const double value = reference::e2m1_value(static_cast<std::uint8_t>(code));
    CHECK(same(qt::e2m1_value(code), static_cast<float>(value)));
    CHECK(qt::e2m1_twice(code) == static_cast<int>(2 * value));
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    CHECK(same(qt::e8m0_value(byte),
               static_cast<float>(reference::e8m0_value(static_cast<std::uint8_t>(byte)))));
}

TEST_CASE("formats.dequantised values are equal, or Inf where binary32 ends") {
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned code = 0; code < 16; ++code) {
      const double value = reference::e2m1_value(static_cast<std::uint8_t>(code)) *
                           reference::e8m0_value(static_cast<std::uint8_t>(byte));
      CHECK(same(qt::dequantize(code, byte), static_cast<float>(value)));
    }
}

TEST_CASE("formats.every bf16 and f16 pattern widens alike") {
  Differences bf16, f16;
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<std::uint16_t>(bits);
    const auto input = [&] { return fmt::format("{:04x}", bits); };
    bf16.count(same(qt::f32_from_bf16(h), reference::bf16_value(h)), input);
    f16.count(same(qt::f32_from_f16(h), reference::f16_value(h)), input);
  }
  bf16.check(65536);
  f16.check(65536);
}

TEST_CASE("formats.binary32 narrows alike at ties, beside them and between") {
  Differences bf16, f16;
  // Every upper half of the bits, with lower halves round the ties of bf16 and of f16.
  for (std::uint32_t upper = 0; upper < 65536; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u,
                                      0xefffu, 0xf000u, 0xf001u, 0xffffu})
      compare_narrowing(bf16, f16, upper << 16 | lower);
  for (std::uint32_t bits = 0, i = 0; i < 500000; ++i, bits += 8589u)
    compare_narrowing(bf16, f16, bits);
  bf16.check(1000000);
  f16.check(1000000);
}
