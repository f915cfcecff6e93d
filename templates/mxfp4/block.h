// Quantising: from binary32 values to E8M0 bytes and E2M1 codes, a block, a segment or a tile at a
// time.
//
// Order: signs, rotation, amax (NaN and Inf are judged here, on the rotated block), scale byte,
// TS34's 0.75, exact scaling by a power of two, rounding. Codes are packed eight to a word, element
// 8w+e in bits 4e+3:4e of word w: on a little-endian machine the even element is in a byte's low
// nibble.
#ifndef QT_MXFP4_BLOCK_H
#define QT_MXFP4_BLOCK_H

#include "mxfp4/hadamard.h"
#include "mxfp4/noise.h"
#include "mxfp4/scale_stats.h"

namespace qt {

/// What a code stands for: exact, except that 2^b times a code overflows to Inf beyond binary32.
QT_FN float dequantize(u32 code, u32 byte) { return mul(e2m1_value(code), e8m0_value(byte)); }

/// The code of one rotated element under a finite block's byte; r is its draw, if the rounding
/// draws.
template <ScaleRule rule, Rounding rounding>
QT_FN u32 encode_element(float x, u32 byte, u32 r) {
  if constexpr (rule == ScaleRule::ts34) x = mul(x, 0.75f);
  return e2m1_encode<rounding>(mul(x, e8m0_inverse(byte)), r);
}

/// The codes of a block, given its byte and the amax of what shares that byte (block or tile): zero
/// and NaN blocks have codes 0, a -0 in a zero block included. `position` is that of its first
/// element.
template <ScaleRule rule, Rounding rounding>
QT_FN void encode_block(const float (&x)[32], u32 amax, u32 byte, const Noise& noise, u64 position,
                        u32 (&packed)[4]) {
  const bool has_codes = !is_zero_block(amax) && !is_nan_block(amax);
  u32 r[32] = {};
  if constexpr (is_stochastic(rounding)) noise_block<rounding>(noise, position, r);
  const u32 finite_byte = has_codes ? byte : 0u;
  QT_UNROLL
  for (int w = 0; w < 4; ++w) {
    u32 word = 0;
    QT_UNROLL
    for (int e = 0; e < 8; ++e)
      word |= encode_element<rule, rounding>(x[8 * w + e], finite_byte, r[8 * w + e]) << (4 * e);
    packed[w] = has_codes ? word : 0u;
  }
}

/// One 1x32 block of rotated values; returns its byte.
template <ScaleRule rule, Rounding rounding>
QT_FN u32 quantize_block(const float (&x)[32], const Noise& noise, u64 position, u32 (&packed)[4]) {
  const u32 amax = amax_bits(x);
  const u32 byte = scale_byte<rule>(x, amax);
  encode_block<rule, rounding>(x, amax, byte, noise, position, packed);
  return byte;
}

/// Elements of one segment: the least stretch that both rotation and blocks divide.
QT_FN constexpr int segment_size(int g) { return g < 32 ? 32 : g; }

/// One segment of max(g, 32) loaded values, which are rotated in place; `bytes` gets one byte for
/// each of its blocks, `packed` four words.
template <int g, Signs signs, ScaleRule rule, Rounding rounding, int n>
QT_FN void quantize_segment(float (&x)[n], const SignMask& mask, const Noise& noise, u64 position,
                            u8 (&bytes)[n / 32], u32 (&packed)[n / 8]) {
  static_assert(is_rotation(g), "the rotation is 0, 16, 32, 64, 128 or 256");
  static_assert(n == segment_size(g), "a segment holds max(g, 32) elements");
  rotate<g, signs>(x, mask);
  QT_UNROLL
  for (int block = 0; block < n / 32; ++block) {
    float y[32];
    u32 words[4];
    QT_UNROLL
    for (int j = 0; j < 32; ++j) y[j] = x[32 * block + j];
    bytes[block] = u8(quantize_block<rule, rounding>(y, noise, position + u64(32 * block), words));
    QT_UNROLL
    for (int w = 0; w < 4; ++w) packed[4 * block + w] = words[w];
  }
}

/// One 32x32 tile of an unrotated weight, under one byte, so that its transpose has the same codes
/// under roundings to nearest. Row i's noise starts at position + i * row_pitch. Returns the byte.
template <ScaleRule rule, Rounding rounding>
QT_FN u32 quantize_tile(const float (&x)[32][32], const Noise& noise, u64 position, u64 row_pitch,
                        u32 (&packed)[32][4]) {
  static_assert(is_tile_rule(rule), "32x32 scale blocks take FLOOR, EVEN, RCEIL or CEIL");
  u32 amax = 0;
  for (int i = 0; i < 32; ++i) amax = max_u32(amax, amax_bits(x[i]));
  const u32 byte = scale_byte_of_amax<rule>(amax);
  for (int i = 0; i < 32; ++i)
    encode_block<rule, rounding>(x[i], amax, byte, noise, position + u64(i) * row_pitch, packed[i]);
  return byte;
}

}  // namespace qt

#endif
