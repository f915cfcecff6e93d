// One number for each mode of the arithmetic over a large made-up input, so that two builds of the
// same text can be compared: x86-64 and aarch64 now, and kernels, since it includes templates/
// only.
#ifndef QT_TESTS_DIGEST_H
#define QT_TESTS_DIGEST_H

#include "mxfp4/block.h"

namespace qt {

/// Element j of made-up case c; cases go through eight kinds of data.
QT_FN float digest_input(u32 c, u32 j) {
  const Philox draw = philox4x32<7>(c, j, 0x64696765u, 0u, 1u, 2u);
  const u32 raw = draw.word[0];
  const u32 sign = raw & kSign;
  const u32 mantissa = raw & 0x7fffffu;
  const u32 special = philox4x32<7>(c, 0xffffffffu, 0x64696765u, 0u, 1u, 2u).word[0] % 32u;
  switch (c % 8u) {
    case 0:  // moderate values
      return float_of(sign | ((122u + draw.word[1] % 8u) << 23) | mantissa);
    case 1:  // any finite value
      return float_of(sign | ((draw.word[1] % 255u) << 23) | mantissa);
    case 2:  // subnormals and what is just above
      return float_of(sign | ((draw.word[1] % 4u) << 23) | (mantissa >> (draw.word[2] % 24u)));
    case 3:  // bf16 values, many of which are ties
      return float_of(sign | ((125u + draw.word[1] % 4u) << 23) | (mantissa & 0x700000u));
    case 4:  // mostly zeros of both signs, some blocks entirely
      return float_of(sign | (draw.word[1] % 64u == 0u ? (127u << 23) | mantissa : 0u));
    case 5:  // moderate with one NaN or Inf in the first 32
      return float_of(j == special ? sign | kInfinity | (draw.word[1] & 1u) * mantissa
                                   : sign | ((126u + draw.word[1] % 3u) << 23) | mantissa);
    case 6:  // small integers
      return float(i32(draw.word[1] % 13u) - 6);
    default:  // near the top, where sums overflow
      return float_of(sign | ((250u + draw.word[1] % 5u) << 23) | mantissa);
  }
}

QT_FN u64 digest_fold(u64 h, u64 value) { return (h ^ value) * 0x100000001b3ull + (h >> 47); }

/// NaNs differ in sign and payload between machines, so all are one here.
QT_FN u32 digest_bits(float x) {
  const u32 bits = bits_of(x);
  return (bits & kMagnitude) > kInfinity ? 1u : bits;
}

QT_FN Noise digest_noise(u32 c) {
  return {0x9876543210abcdefull + c, 77u, noise_lane(c & 1u, c >> 1 & 1u)};
}

template <ScaleRule rule, Rounding rounding>
QT_FN u64 digest_block(u32 c) {
  float x[32];
  u32 packed[4];
  for (u32 j = 0; j < 32u; ++j) x[j] = digest_input(c, j);
  const u64 position = 32ull * c + 0xffffff00ull;
  u64 h = digest_fold(c, quantize_block<rule, rounding>(x, digest_noise(c), position, packed));
  for (u32 w = 0; w < 4u; ++w) h = digest_fold(h, packed[w]);
  // Bytes and codes hide the last bits of what decided them.
  if (rule == ScaleRule::quest) h = digest_fold(h, digest_bits(block_variance(x)));
  if (rule == ScaleRule::search) h = digest_fold(h, digest_bits(search_error(x, 120u, 121u)));
  return h;
}

template <int g, Signs signs>
QT_FN u64 digest_rotation(u32 c) {
  constexpr int n = segment_size(g);
  float x[n];
  u8 bytes[n / 32];
  u32 packed[n / 8];
  for (int j = 0; j < n; ++j) x[j] = digest_input(c, u32(j));
  SignMask mask = sign_mask_from_seed(c);
  if (signs == Signs::fixed)
    mask = {{0xd7e8u, 0x12345678u, 0u, ~0u, 0xdeadbeefu, 1u, 0x80000000u, 5u}};
  quantize_segment<g, signs, ScaleRule::even, Rounding::rne>(x, mask, digest_noise(c), 0, bytes,
                                                             packed);
  u64 h = c;
  for (int j = 0; j < n; ++j) h = digest_fold(h, digest_bits(x[j]));
  for (int b = 0; b < n / 32; ++b) h = digest_fold(h, bytes[b]);
  for (int w = 0; w < n / 8; ++w) h = digest_fold(h, packed[w]);
  return h;
}

[[maybe_unused]] constexpr int kDigestRules = 8;
[[maybe_unused]] constexpr int kDigestRoundings = 6;
[[maybe_unused]] constexpr int kDigestBlocks = kDigestRules * kDigestRoundings;
[[maybe_unused]] constexpr int kDigestModes = kDigestBlocks + 18;

/// Modes 0..47: every rule under every rounding; 48..65: every rotation under every kind of signs.
template <int mode>
QT_FN u64 digest_mode(u32 c) {
  if constexpr (mode < kDigestBlocks) {
    return digest_block<ScaleRule(mode / kDigestRoundings), Rounding(mode % kDigestRoundings)>(c);
  } else {
    constexpr int index = (mode - kDigestBlocks) / 3;
    constexpr int g = index == 0 ? 0 : 8 << index;
    return digest_rotation<g, Signs((mode - kDigestBlocks) % 3)>(c);
  }
}

/// One case of a mode known only at run time. A mode's digest is the sum over its cases.
template <int first = 0>
QT_FN u64 digest_case(int mode, u32 c) {
  if constexpr (first < kDigestModes) {
    return mode == first ? digest_mode<first>(c) : digest_case<first + 1>(mode, c);
  } else {
    return 0;
  }
}

}  // namespace qt

#endif
