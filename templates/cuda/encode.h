// From 32 rotated values to a scale byte and 32 codes, in few instructions: the same bits as
// qt::quantize_block, by another way.
//
// With y = |x| / scale in [0, 6], and codes 0..7 for 0, 0.5, 1, 1.5, 2, 3, 4, 6:
// * nearest: let 2^e be y's power of two, at least 1. In 2^(e+22) + y the last place is 2^(e-1),
// the
//   step of codes there, so one addition rounds to nearest even and leaves q in the mantissa's
//   lowest bits; the code is q + 2e.
// * stochastic: from 1 on, the bits of y are linear in the code, 22 fraction bits each. Below,
//   0.5 y + 0.5, rounded toward zero, has the same property and is the larger of the two. So the
//   larger one's bits plus the noise, cut at bit 22, are the code.
// Either way one multiplication moves the code to the top of a word, the sign joins it, and a
// funnel shift appends the nibble.
#ifndef QT_CUDA_ENCODE_H
#define QT_CUDA_ENCODE_H

#include "cuda/primitives.h"
#include "mxfp4/block.h"

namespace qt::cuda {

/// Whether this file knows a short way; the others take the defining text.
QT_FN constexpr bool has_fast_encoding(Rounding rounding) {
  return rounding == Rounding::rne || rounding == Rounding::sr16;
}

/// amax_bits, where any NaN may stand for another.
QT_FN u32 amax_of(const float (&x)[32]) {
  float amax[4];
  QT_UNROLL
  for (int j = 0; j < 4; ++j) amax[j] = magnitude(x[j]);
  QT_UNROLL
  for (int j = 4; j < 32; ++j) amax[j % 4] = max_or_nan(amax[j % 4], magnitude(x[j]));
  return bits_of(max_or_nan(max_or_nan(amax[0], amax[1]), max_or_nan(amax[2], amax[3])));
}

/// y's nearest code in bits 30:28; bit 31 is 0, the rest is of no meaning.
QT_FN u32 nearest_code_on_top(float y) {
  const float power = float_of(max_u32(bits_of(y) & kInfinity, 0x3f800000u));
  const u32 sum = bits_of(fma_rn(power, 4194304.0f, y));  // 2^22
  // sum = (e + 149) << 23 | q, so the top nibble of sum * (2^28 + 2^6) is q + 2e + 298 modulo 16.
  return sum * 0x10000040u + 0x60000000u;
}

/// The code of y under 16 bits of noise, likewise.
QT_FN u32 stochastic_code_on_top(float y, u32 r16) {
  const float linear = max_number(y, fma_rz(y, 0.5f, 0.5f));
  // (bits + (r16 << 6 | 0x20)) << 6; 252 = 12 modulo 16 is the code that the bits of 1.0 begin
  // with.
  return (r16 << 12) + (bits_of(linear) * 64u + 0x40000800u);
}

template <ScaleRule rule>
QT_FN float scaled_magnitude(float x, float inverse) {
  if constexpr (rule == ScaleRule::ts34) x = mul(x, 0.75f);
  const float y = mul(magnitude(x), inverse);
  return clips(rule) ? min_number(y, 6.0f) : y;
}

/// qt::encode_block for a block that has codes (neither zero nor NaN).
template <ScaleRule rule, Rounding rounding>
QT_FN void encode_finite(const float (&x)[32], u32 byte, const Noise& noise, u64 position,
                         u32 (&packed)[4]) {
  const float inverse = e8m0_inverse(byte);
  QT_UNROLL
  for (int w = 0; w < 4; ++w) {
    u32 word = 0;
    Philox call = {};
    if constexpr (rounding == Rounding::sr16) call = noise_call(noise, position / 8u + u32(w));
    QT_UNROLL
    for (int e = 7; e >= 0; --e) {
      const float value = x[8 * w + e];
      const float y = scaled_magnitude<rule>(value, inverse);
      u32 code;
      if constexpr (rounding == Rounding::sr16) {
        const u32 half = permute_bytes(call.word[e / 2], 0u, e % 2 == 0 ? 0x4410u : 0x4432u);
        code = stochastic_code_on_top(y, half);
      } else {
        code = nearest_code_on_top(y);
      }
      word = funnel_left(code | (bits_of(value) & kSign), word, 4u);
    }
    packed[w] = word;
  }
}

/// One 1x32 block of rotated values; returns its byte. Equals qt::quantize_block.
template <ScaleRule rule, Rounding rounding>
QT_FN u32 quantize_fast(const float (&x)[32], const Noise& noise, u64 position, u32 (&packed)[4]) {
  if constexpr (!has_fast_encoding(rounding)) {
    return quantize_block<rule, rounding>(x, noise, position, packed);
  } else {
    const u32 amax = amax_of(x);
    const u32 byte = scale_byte<rule>(x, amax);
    const bool has_codes = !is_zero_block(amax) && !is_nan_block(amax);
    encode_finite<rule, rounding>(x, has_codes ? byte : 0u, noise, position, packed);
    QT_UNROLL
    for (int w = 0; w < 4; ++w) packed[w] = has_codes ? packed[w] : 0u;
    return byte;
  }
}

}  // namespace qt::cuda

#endif
