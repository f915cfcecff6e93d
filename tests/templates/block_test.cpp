// Whole blocks, segments and tiles: order of steps, the format's edges, NaN anywhere, packing.
#include "mxfp4/block.h"

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "oracle.hpp"

using namespace qt;

namespace {

const Noise kNoise{0x1234567890abcdefull, 3u, noise_lane(1, 0)};

struct Quantized {
  unsigned byte = 0;
  std::vector<unsigned> codes;
  bool operator==(const Quantized&) const = default;
};

void append_codes(const u32* packed, int words, std::vector<unsigned>& codes) {
  for (int w = 0; w < words; ++w)
    for (int e = 0; e < 8; ++e) codes.push_back(packed[w] >> (4 * e) & 15u);
}

template <ScaleRule rule, Rounding rounding>
Quantized quantize(const std::vector<float>& values, u64 position = 64) {
  float x[32];
  u32 packed[4];
  std::copy(values.begin(), values.end(), x);
  Quantized out;
  out.byte = quantize_block<rule, rounding>(x, kNoise, position, packed);
  append_codes(packed, 4, out.codes);
  return out;
}

using Quantizer = Quantized (*)(const std::vector<float>&, u64);

template <ScaleRule rule>
void append_rule(std::vector<Quantizer>& out) {
  out.insert(out.end(),
             {quantize<rule, Rounding::rne>, quantize<rule, Rounding::sr16>,
              quantize<rule, Rounding::sr22>, quantize<rule, Rounding::sr8>,
              quantize<rule, Rounding::half_away>, quantize<rule, Rounding::half_to_zero>});
}

// Every rule under every rounding.
std::vector<Quantizer> all_modes() {
  std::vector<Quantizer> out;
  append_rule<ScaleRule::floor>(out);
  append_rule<ScaleRule::even>(out);
  append_rule<ScaleRule::rceil>(out);
  append_rule<ScaleRule::ceil>(out);
  append_rule<ScaleRule::ts34>(out);
  append_rule<ScaleRule::quest>(out);
  append_rule<ScaleRule::quest_qutlass>(out);
  append_rule<ScaleRule::search>(out);
  return out;
}

template <ScaleRule rule>
int wrong_codes(const std::vector<float>& x) {
  float amax = 0;
  for (const float v : x) amax = std::max(amax, std::fabs(v));
  const unsigned byte = oracle::amax_byte(rule, amax);
  const auto rne = quantize<rule, Rounding::rne>(x);
  const auto away = quantize<rule, Rounding::half_away>(x);
  const auto to_zero = quantize<rule, Rounding::half_to_zero>(x);
  int wrong = (rne.byte != byte) + (away.byte != byte) + (to_zero.byte != byte);
  for (size_t j = 0; j < x.size(); ++j) {
    const float pre_scaled = rule == ScaleRule::ts34 ? x[j] * 0.75f : x[j];
    const double y = oracle::scaled(pre_scaled, byte);
    const bool negative = std::signbit(x[j]);
    wrong += rne.codes[j] != oracle::nearest(y, negative, oracle::Tie::even);
    wrong += away.codes[j] != oracle::nearest(y, negative, oracle::Tie::up);
    wrong += to_zero.codes[j] != oracle::nearest(y, negative, oracle::Tie::down);
  }
  return wrong;
}

int wrong_under_every_amax_rule(const std::vector<float>& x) {
  return wrong_codes<ScaleRule::floor>(x) + wrong_codes<ScaleRule::even>(x) +
         wrong_codes<ScaleRule::rceil>(x) + wrong_codes<ScaleRule::ceil>(x) +
         wrong_codes<ScaleRule::ts34>(x);
}

std::vector<float> normal_block(unsigned seed, float unit) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(32);
  for (auto& v : x) v = normal(random) * unit;
  return x;
}

}  // namespace

TEST_CASE("block.codes and bytes at every exponent an amax can have") {
  int wrong = 0;
  for (int e = -149; e <= 127; ++e)
    for (const float mantissa : {1.0f, 1.5f, 1.75f}) {
      const float edge = std::ldexp(mantissa, e);  // rounds at the subnormal end, which is fine
      for (const float amax : {std::nextafter(edge, 0.0f), edge, std::nextafter(edge, HUGE_VALF)}) {
        if (amax == 0 || std::isinf(amax)) continue;
        std::vector<float> x(32);
        for (int j = 0; j < 32; ++j) x[size_t(j)] = amax * (float(j % 2 ? -j : j) / 31.0f);
        x[31] = -amax;
        x[5] = -0.0f;
        wrong += wrong_under_every_amax_rule(x);
      }
    }
  CHECK(wrong == 0);
}

TEST_CASE("block.random data of every size") {
  int wrong = 0;
  for (int i = 0; i < 3000; ++i)
    wrong +=
        wrong_under_every_amax_rule(normal_block(unsigned(i), std::ldexp(1.0f, i % 270 - 148)));
  CHECK(wrong == 0);
}

TEST_CASE("block.a block of zeros of either sign is byte 0 and codes 0") {
  std::vector<float> x(32, 0.0f);
  for (size_t j = 0; j < 32; j += 3) x[j] = -0.0f;
  for (const auto mode : all_modes()) CHECK(mode(x, 0) == Quantized{0, std::vector<unsigned>(32)});
}

TEST_CASE("block.any NaN or Inf anywhere is byte 255 and codes 0") {
  for (const std::uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu,
                                   0xffffffffu, 0x7f800000u, 0xff800000u})
    for (const size_t at : {0, 15, 16, 31}) {
      auto x = normal_block(4, 1.0f);
      x[at] = oracle::from_bits(bits);
      for (const auto mode : all_modes())
        CHECK(mode(x, 0) == Quantized{255, std::vector<unsigned>(32)});
      x.assign(32, 0.0f);
      x[at] = oracle::from_bits(bits);
      for (const auto mode : all_modes())
        CHECK(mode(x, 0) == Quantized{255, std::vector<unsigned>(32)});
    }
}

TEST_CASE("block.negatives that round to zero and -0 are code 8 beside a larger element") {
  std::vector<float> x(32, 0.0f);
  x[0] = 1.0f;
  x[1] = -0.0f;
  x[2] = -1e-20f;
  x[3] = 1e-20f;
  const auto q = quantize<ScaleRule::rceil, Rounding::rne>(x);
  CHECK(q.codes[1] == 8u);
  CHECK(q.codes[2] == 8u);
  CHECK(q.codes[3] == 0u);
  CHECK(q.codes[4] == 0u);
}

TEST_CASE("block.stochastic codes use the draw of their place") {
  const auto x = normal_block(5, 1.0f);
  for (const u64 position : {0ull, 32ull, 0x123456789a0ull * 32ull}) {
    const auto q = quantize<ScaleRule::rceil, Rounding::sr16>(x, position);
    const auto other = quantize<ScaleRule::rceil, Rounding::sr16>(x, position + 32);
    for (u32 j = 0; j < 32; ++j) {
      const double a = std::fabs(oracle::scaled(x[j], q.byte));
      const u32 r = noise_at<Rounding::sr16>(kNoise, position + j);
      const double below = oracle::code_below(a);
      const double up = std::ldexp(oracle::fraction(a), 22);
      const double code = std::floor(up) + r >= 0x400000 ? below + 1 : below;
      CHECK(double(q.codes[j] & 7u) == code);
    }
    CHECK(q.byte == other.byte);
    CHECK(q.codes != other.codes);
  }
}

TEST_CASE("block.ts34 equals rceil of 0.75 x, except where amax is a power of two") {
  int same = 0, powers = 0;
  for (unsigned i = 0; i < 400; ++i) {
    auto x = normal_block(i, 1.0f);
    for (auto& v : x) v = f32_from_bf16(bf16_from_f32(v));  // so that 0.75 x is exact
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::fabs(v));
    if (i % 4 == 0) {
      x[0] = std::ldexp(1.0f, std::ilogb(amax) + 1);
      amax = x[0];
    }
    auto smaller = x;
    for (auto& v : smaller) v *= 0.75f;
    const bool equal = quantize<ScaleRule::ts34, Rounding::rne>(x) ==
                       quantize<ScaleRule::rceil, Rounding::rne>(smaller);
    const bool is_power = std::ldexp(1.0f, std::ilogb(amax)) == amax;
    CHECK(equal != is_power);
    same += equal;
    powers += is_power;
  }
  CHECK(same > 200);
  CHECK(powers > 50);
}

TEST_CASE("block.quest saturates at 6 what lies beyond its scale") {
  std::vector<float> x(32, 0.25f);
  for (size_t j = 0; j < 32; j += 2) x[j] = -0.25f;
  x[10] = -60.0f;
  x[11] = 50.0f;
  const auto q = quantize<ScaleRule::quest, Rounding::rne>(x);
  CHECK(oracle::scaled(50.0f, q.byte) > 6);
  CHECK(q.codes[10] == 15u);
  CHECK(q.codes[11] == 7u);
  const auto constant = quantize<ScaleRule::quest, Rounding::rne>(std::vector<float>(32, -3e38f));
  CHECK(constant.byte == 254u);  // the sum overflows, so the deviation is not a number
  const auto flat = quantize<ScaleRule::quest, Rounding::sr16>(std::vector<float>(32, -5.0f));
  CHECK(flat.byte == 0u);
  CHECK(flat.codes == std::vector<unsigned>(32, 15u));
}

TEST_CASE("block.dequantize") {
  for (unsigned byte = 0; byte < 255; ++byte)
    for (unsigned code = 0; code < 16; ++code)
      CHECK(dequantize(code, byte) == float(double(e2m1_value(code)) * oracle::scale_of(byte)));
  for (unsigned code = 0; code < 16; ++code) CHECK(std::isnan(dequantize(code, 255)));
}

namespace {

template <int g>
void check_segment() {
  constexpr int n = segment_size(g);
  static_assert(n % 32 == 0 && n >= g);
  std::mt19937 random(g + 1);
  std::normal_distribution<float> normal;
  const SignMask mask = sign_mask_from_seed(77);
  for (int i = 0; i < 20; ++i) {
    float x[n], rotated[n];
    for (auto& v : x) v = normal(random);
    if (i == 7) x[n - 1] = NAN;
    if (i == 8) x[0] = HUGE_VALF;
    std::copy(x, x + n, rotated);
    rotate<g, Signs::per_call>(rotated, mask);
    u8 bytes[n / 32];
    u32 packed[n / 8];
    const u64 position = 4096 + 256 * u64(i);
    quantize_segment<g, Signs::per_call, ScaleRule::rceil, Rounding::sr16>(x, mask, kNoise,
                                                                           position, bytes, packed);
    for (int block = 0; block < n / 32; ++block) {
      const auto expected = quantize<ScaleRule::rceil, Rounding::sr16>(
          {rotated + 32 * block, rotated + 32 * block + 32}, position + u64(32 * block));
      Quantized got{bytes[block], {}};
      append_codes(packed + 4 * block, 4, got.codes);
      CHECK(got == expected);
      // A NaN or Inf reaches its whole rotation segment and nothing else.
      const int at = i == 7 ? n - 1 : 0;
      const bool reached = (i == 7 || i == 8) && (g > 32 || at / 32 == block);
      CHECK((got.byte == 255u) == reached);
    }
  }
}

}  // namespace

TEST_CASE("block.segments are rotated, then quantised block by block") {
  check_segment<0>();
  check_segment<16>();
  check_segment<32>();
  check_segment<64>();
  check_segment<128>();
  check_segment<256>();
}

TEST_CASE("block.finite data whose rotation overflows are a NaN block") {
  float x[32];
  for (auto& v : x) v = 3e38f;
  u8 bytes[1];
  u32 packed[4];
  quantize_segment<32, Signs::none, ScaleRule::rceil, Rounding::rne>(x, {}, kNoise, 0, bytes,
                                                                     packed);
  CHECK(bytes[0] == 255u);
  CHECK((packed[0] | packed[1] | packed[2] | packed[3]) == 0u);
}

namespace {

template <ScaleRule rule>
void check_tile(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  float x[32][32], transposed[32][32];
  float amax = 0;
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < 32; ++j) {
      x[i][j] = i == 5 ? -0.0f : normal(random) * float(i);
      transposed[j][i] = x[i][j];
      amax = std::max(amax, std::fabs(x[i][j]));
    }
  u32 packed[32][4], packed_transposed[32][4];
  const unsigned byte = quantize_tile<rule, Rounding::rne>(x, kNoise, 0, 32, packed);
  CHECK(byte == oracle::amax_byte(rule, amax));
  CHECK(quantize_tile<rule, Rounding::rne>(transposed, kNoise, 0, 32, packed_transposed) == byte);
  int wrong = 0;
  for (int i = 0; i < 32; ++i)
    for (int j = 0; j < 32; ++j) {
      const unsigned code = packed[i][j / 8] >> (4 * (j % 8)) & 15u;
      wrong += code != oracle::nearest(oracle::scaled(x[i][j], byte), std::signbit(x[i][j]),
                                       oracle::Tie::even);
      wrong += code != (packed_transposed[j][i / 8] >> (4 * (i % 8)) & 15u);
    }
  CHECK(wrong == 0);

  x[31][31] = NAN;
  CHECK(quantize_tile<rule, Rounding::rne>(x, kNoise, 0, 32, packed) == 255u);
  u32 any = 0;
  for (const auto& row : packed)
    for (const u32 word : row) any |= word;
  CHECK(any == 0u);
}

}  // namespace

TEST_CASE("block.a 32x32 tile shares one byte and its codes with its transpose") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    check_tile<ScaleRule::floor>(seed);
    check_tile<ScaleRule::even>(seed);
    check_tile<ScaleRule::rceil>(seed);
    check_tile<ScaleRule::ceil>(seed);
  }
}

TEST_CASE("block.a 32x32 tile draws noise by rows") {
  float x[32][32];
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (auto& row : x)
    for (auto& v : row) v = normal(random);
  x[9][9] = 5.5f;
  u32 packed[32][4];
  const unsigned byte =
      quantize_tile<ScaleRule::rceil, Rounding::sr16>(x, kNoise, 640, 4096, packed);
  int wrong = 0;
  for (u32 i = 0; i < 32; ++i)
    for (u32 j = 0; j < 32; ++j) {
      const u32 r = noise_at<Rounding::sr16>(kNoise, 640 + 4096ull * i + j);
      wrong += (packed[i][j / 8] >> (4 * (j % 8)) & 15u) !=
               e2m1_encode<Rounding::sr16>(x[i][j] * e8m0_inverse(byte), r);
    }
  CHECK(wrong == 0);
}
