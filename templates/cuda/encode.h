// From 32 rotated values to a scale byte and 32 codes, in few instructions: the same bits as
// qt::quantize_block, by another way.
//
// With y = |x| / scale in [0, 6], and codes 0..7 for 0, 0.5, 1, 1.5, 2, 3, 4, 6:
// * nearest: let 2^e be y's power of two, at least 1. In 2^(e+22) + y the last place is 2^(e-1),
// the
//   step of codes there, so one addition rounds to nearest even and leaves q in the mantissa's
//   lowest bits; the code is q + 2e.
// * stochastic: y * 2^-126, rounded toward zero, has its first power of two at the smallest normal
//   number, so its bits are linear in the code, subnormals included: 22 fraction bits each. They
//   plus the noise, cut at bit 22, are the code.
// * by an instruction of the hardware: eight values and the words of a noise call go in, eight
// codes
//   come out.
// The first two ways, one multiplication moves the code to the top of a word, the sign joins it,
// and a funnel shift appends the nibble.
#ifndef QT_CUDA_ENCODE_H
#define QT_CUDA_ENCODE_H

#include "cuda/primitives.h"
#include "mxfp4/block.h"

namespace qt::cuda {

/// Whether this file knows a short way; the others take the defining text.
QT_FN constexpr bool has_fast_encoding(Rounding rounding) {
  return rounding == Rounding::rne || rounding == Rounding::sr16 || is_of_hardware(rounding);
}

/// The largest magnitude, or a NaN.
template <int n>
QT_FN float amax_of(const float (&x)[n]) {
  float amax[4];
  QT_UNROLL
  for (int j = 0; j < 4; ++j) amax[j] = magnitude(x[j]);
  QT_UNROLL
  for (int j = 4; j < n; ++j) amax[j % 4] = max_or_nan(amax[j % 4], magnitude(x[j]));
  return max_or_nan(max_or_nan(amax[0], amax[1]), max_or_nan(amax[2], amax[3]));
}

/// y's nearest code in bits 30:28; bit 31 is 0, the rest is of no meaning.
QT_FN u32 nearest_code_on_top(float y) {
  const float power = float_of(max_u32(bits_of(y) & kInfinity, 0x3f800000u));
  const u32 sum = bits_of(fma_rn(power, 4194304.0f, y));  // 2^22
  // sum = (e + 149) << 23 | q, so the top nibble of sum * (2^28 + 2^6) is q + 2e + 298 modulo 16.
  return sum * 0x10000040u + 0x60000000u;
}

/// Draw j of a noise call, j in 0..7, as its 16 bits.
QT_FN u32 draw_of(const Philox& call, int j) {
  return permute_bytes(call.word[j / 2], 0u, j % 2 == 0 ? 0x4410u : 0x4432u);
}

/// The code of y under 16 bits of noise, likewise.
QT_FN u32 stochastic_code_on_top(float y, u32 r16) {
  const u32 linear = bits_of(mul_rz(y, float_of(0x00800000u)));  // 2^-126
  // (linear + (r16 << 6 | 0x20)) << 6
  return (linear + r16 * 64u) * 64u + 0x800u;
}

/// qt::noise_call, with products that take one instruction each.
QT_FN Philox noise_call_fast(const Noise& noise, u32 call_low, u32 call_high) {
  u32 c0 = call_low, c1 = call_high, c2 = noise.stream, c3 = noise.lane;
  u32 key0 = u32(noise.seed), key1 = u32(noise.seed >> 32);
  QT_UNROLL
  for (int i = 0; i < 7; ++i) {
    const Words2 p0 = multiply_wide(0xd2511f53u, c0), p1 = multiply_wide(0xcd9e8d57u, c2);
    // In this order, because the first round's p1 and the keys are the same in all threads.
    c0 = (p1.word[1] ^ key0) ^ c1;
    c1 = p1.word[0];
    c2 = p0.word[1] ^ (c3 ^ key1);
    c3 = p0.word[0];
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Whether the rotation's factor is a power of two.
QT_FN constexpr bool norm_is_exact(int g) { return g < 2 || g == 16 || g == 64 || g == 256; }

/// The factor that takes 32 rotated sums, not yet multiplied by `norm`, to the grid of codes under
/// `byte`; sums that need it are changed first. The contract rounds after the norm, and after
/// TS34's 0.75. Between bytes 24 and 248 a power of two commutes with those roundings, except for
/// elements that are code 0 either way (below 2^-23 of a step), so one product does.
template <ScaleRule rule, int g>
QT_FN float factor_of(float (&x)[32], u32 byte) {
  const float inverse = e8m0_inverse(byte);
  const float norm = g > 1 ? hadamard_norm(g) : 1.0f;
  const auto multiply_all = [&x](float by) {
    QT_UNROLL
    for (int j = 0; j < 32; ++j) x[j] = mul(x[j], by);
  };
  if (byte - 24u <= 224u) {
    if constexpr (rule != ScaleRule::ts34) return mul(norm, inverse);
    if constexpr (norm_is_exact(g)) return mul(mul(norm, 0.75f), inverse);
    multiply_all(norm);
    return mul(0.75f, inverse);
  }
  if constexpr (g > 1) multiply_all(norm);
  if constexpr (rule == ScaleRule::ts34) multiply_all(0.75f);
  return inverse;
}

/// What rounds so in hardware, defined by the text of a family that does (quantize_cvt_rs.h):
///   elements_of_call       a multiple of 8 that share a noise call
///   codes(y, call, part)   of eight values, the part'th of the call, low nibble first
template <Rounding rounding>
struct Instruction;

/// encode_scaled by it; it saturates.
template <Rounding rounding>
QT_FN void encode_by_instruction(const float (&x)[32], float factor, const Noise& noise,
                                 u64 position, u32 (&packed)[4]) {
  constexpr u32 parts = Instruction<rounding>::elements_of_call / 8u;
  const u64 first = position / Instruction<rounding>::elements_of_call;
  QT_UNROLL
  for (u32 w = 0; w < 4u; w += parts) {
    const Philox call = noise_call_fast(noise, u32(first) | (w / parts), u32(first >> 32));
    QT_UNROLL
    for (u32 part = 0; part < parts; ++part) {
      float y[8];
      QT_UNROLL
      for (u32 e = 0; e < 8u; ++e) y[e] = mul(x[8u * (w + part) + e], factor);
      packed[w + part] = Instruction<rounding>::codes(y, call, part);
    }
  }
}

/// Codes of 32 values once multiplied by `factor`; `position`, that of the first, is a multiple of
/// 32.
template <ScaleRule rule, Rounding rounding>
QT_FN void encode_scaled(const float (&x)[32], float factor, const Noise& noise, u64 position,
                         u32 (&packed)[4]) {
  if constexpr (is_of_hardware(rounding)) {
    encode_by_instruction<rounding>(x, factor, noise, position, packed);
    return;
  }
  // The four calls differ in the counter's lowest bits alone.
  const u32 call_low = u32(position >> 3), call_high = u32(position >> 35);
  QT_UNROLL
  for (u32 w = 0; w < 4u; ++w) {
    u32 word = 0;
    Philox call = {};
    if constexpr (rounding == Rounding::sr16)
      call = noise_call_fast(noise, call_low | w, call_high);
    QT_UNROLL
    for (int e = 7; e >= 0; --e) {
      const float value = x[8 * w + u32(e)];
      float y = mul(magnitude(value), factor);
      if constexpr (clips(rule)) y = min_number(y, 6.0f);
      u32 code;
      if constexpr (rounding == Rounding::sr16) {
        code = stochastic_code_on_top(y, draw_of(call, e));
      } else {
        code = nearest_code_on_top(y);
      }
      word = funnel_left(code | (bits_of(value) & kSign), word, 4u);
    }
    packed[w] = word;
  }
}

/// One 1x32 block of rotated sums, without the rotation's factor, and their largest magnitude;
/// returns its byte. Equals qt::quantize_block of the sums times hadamard_norm(g).
template <ScaleRule rule, Rounding rounding, int g>
QT_FN u32 quantize_sums(float (&x)[32], float largest, const Noise& noise, u64 position,
                        u32 (&packed)[4]) {
  const float norm = g > 1 ? hadamard_norm(g) : 1.0f;
  constexpr bool by_amax = is_amax_rule(rule) && has_fast_encoding(rounding);
  if constexpr (g > 1 && !by_amax) {
    QT_UNROLL
    for (int j = 0; j < 32; ++j) x[j] = mul(x[j], norm);
  }
  if constexpr (!has_fast_encoding(rounding)) {
    return quantize_block<rule, rounding>(x, noise, position, packed);
  } else {
    const u32 amax = bits_of(g > 1 ? mul(largest, norm) : largest);  // rounding keeps the order
    u32 byte;
    if constexpr (by_amax) {
      byte = scale_byte_of_amax<rule>(amax);
    } else {
      byte = scale_byte<rule>(x, amax);
    }
    const bool has_codes = !is_zero_block(amax) && !is_nan_block(amax);
    const u32 finite_byte = has_codes ? byte : 127u;
    float factor;
    if constexpr (by_amax) {
      factor = factor_of<rule, g>(x, finite_byte);
    } else {
      factor = e8m0_inverse(finite_byte);
    }
    encode_scaled<rule, rounding>(x, factor, noise, position, packed);
    QT_UNROLL
    for (int w = 0; w < 4; ++w) packed[w] = has_codes ? packed[w] : 0u;
    return byte;
  }
}

}  // namespace qt::cuda

#endif
