// Quantising as many blocks at a time as a register has lanes, to the same bits as the scalar text.
//
// Two shortcuts keep that promise. The factor 1/sqrt(g) and the block's scale, a power of two, are
// multiplied first: the product with an element rounds as the element's own rotation did, as long
// as nothing is near the lower end of binary32's range. A code to nearest is what an addition
// rounds to when the other term is so large that its last place is the code's. Blocks near that end
// ("extreme") are done again by the scalar text.
#ifndef QT_CPU_QUANTIZE_LANES_H
#define QT_CPU_QUANTIZE_LANES_H

#include "cpu/lane_places.h"
#include "cpu/quantize_scalar.h"

namespace qt {
namespace cpu {

/// Below 2^-90 a block is extreme, unless it is zero. Nothing is at the other end: a finite amax of
/// a rotated block is below 2^128 / sqrt(g), and the factor is at least 2 / (sqrt(g) * amax), so it
/// is not below 2^-126.
constexpr u32 kLeastPlain = 37u << 23;

/// Sign bits to flip, an element each, for broadcasting.
struct SignFlips {
  alignas(64) u32 bit[256];
};

QT_FN SignFlips sign_flips(const SignMask& mask, int rotation) {
  SignFlips out;
  for (int j = 0; j < rotation; ++j) out.bit[j] = (mask.word[j / 32] >> (j % 32)) << 31;
  return out;
}

/// Stages of the rotation inside a block.
template <class Isa, int g>
QT_CPU_INLINE void rotate_lanes(typename Isa::F (&x)[kBlock]) {
  constexpr int last = g < kBlock ? g : kBlock;
  QT_CPU_UNROLL
  for (int h = 1; h < last; h *= 2) {
    QT_CPU_UNROLL
    for (int pair = 0; pair < kBlock / 2; ++pair) {
      const int j = pair / h * 2 * h + pair % h;
      const auto a = x[j], b = x[j + h];
      x[j] = Isa::add(a, b);
      x[j + h] = Isa::sub(a, b);
    }
  }
}

/// Stages of the rotation that span blocks, which wait in memory.
template <class Isa, int g>
QT_CPU_INLINE void rotate_blocks(float (*waiting)[kBlock][Isa::lanes]) {
  constexpr int blocks = g / kBlock;
  for (int j = 0; j < kBlock; ++j) {
    typename Isa::F x[blocks];
    QT_CPU_UNROLL
    for (int b = 0; b < blocks; ++b) x[b] = Isa::load(waiting[b][j]);
    QT_CPU_UNROLL
    for (int h = 1; h < blocks; h *= 2) {
      QT_CPU_UNROLL
      for (int pair = 0; pair < blocks / 2; ++pair) {
        const int i = pair / h * 2 * h + pair % h;
        const auto a = x[i], b = x[i + h];
        x[i] = Isa::add(a, b);
        x[i + h] = Isa::sub(a, b);
      }
    }
    QT_CPU_UNROLL
    for (int b = 0; b < blocks; ++b) Isa::store(waiting[b][j], x[b]);
  }
}

/// What a rule adds to the bits of amax before it takes the exponent, less 2, for the byte.
QT_FN u32 exponent_bias(ScaleRule rule) {
  return rule == ScaleRule::even    ? 0x200000u
         : rule == ScaleRule::rceil ? 0x3fffffu
         : rule == ScaleRule::ceil  ? 0x7fffffu
                                    : 0u;
}

/// What a block's largest magnitude decides.
template <class Isa>
struct LaneScales {
  typename Isa::U byte;
  typename Isa::U keep;    // all ones where codes count: neither zero nor NaN
  typename Isa::F factor;  // 1/sqrt(g) * 2^-(byte - 127)
  u32 extreme;             // a bit a lane
};

template <class Isa>
QT_CPU_INLINE LaneScales<Isa> lane_scales(typename Isa::U amax, ScaleRule rule, int rotation) {
  using U = typename Isa::U;
  const auto norm = Isa::splat_float(rotation > 0 ? hadamard_norm(rotation) : 1.0f);
  if (rotation > 0) amax = Isa::bits(Isa::mul(Isa::floats(amax), norm));
  const U exponent = Isa::template right<23>(Isa::plus(amax, Isa::splat(exponent_bias(rule))));
  const U two = Isa::splat(2u);
  const U byte = Isa::minus(Isa::greater(exponent, two), two);
  const U nan = Isa::below(Isa::splat(kInfinity - 1u), amax);
  const U keep = Isa::below(Isa::minus(amax, Isa::splat(1u)), Isa::splat(kInfinity - 1u));
  const U tiny = Isa::below(amax, Isa::splat(kLeastPlain));
  const U inverse = Isa::template left<23>(Isa::minus(Isa::splat(kScaleMax), byte));
  LaneScales<Isa> out;
  out.byte = Isa::both(Isa::either(byte, nan), Isa::splat(255u));
  out.keep = keep;
  out.factor = Isa::mul(Isa::floats(Isa::both(inverse, keep)), norm);
  out.extreme = Isa::lane_bits(Isa::both(keep, tiny));
  return out;
}

/// Eight codes to nearest, ties to even, of |y| < 8 (or at most 6, with `clip`).
template <class Isa>
QT_CPU_INLINE typename Isa::U nearest_codes(const typename Isa::F (&y)[8]) {
  using U = typename Isa::U;
  // Where e is the exponent of y, but at least 0, the last place of 2^e * magic is 2^e / 2. So the
  // sum with y ends in kOffset plus y in such units, rounded, and its exponent in 149 + e; the code
  // is that number plus 2e.
  constexpr u32 kOffset = 32768u - 2u * 149u;
  const auto magic = Isa::splat_float(4194304.0f + 0.5f * float(kOffset));
  U sum[8];
  QT_CPU_UNROLL
  for (int e = 0; e < 8; ++e) {
    const U power = Isa::both(Isa::bits(Isa::at_least_one(y[e])), Isa::splat(0xff800000u));
    sum[e] = Isa::bits(Isa::exact_mul_add(Isa::floats(power), magic, y[e]));
  }
  // Two at a time: (code + 32768) << 6, and << 10, less the sign << 15, and << 19.
  U pair[4];
  QT_CPU_UNROLL
  for (int i = 0; i < 4; ++i)
    pair[i] = Isa::template dot_halves<1024, 16>(Isa::template dot_halves<64, 1>(sum[2 * i]),
                                                 sum[2 * i + 1]);
  U out = Isa::both(Isa::template right<6>(pair[0]), Isa::splat(0x77u));
  out = Isa::merge(out, Isa::template left<2>(pair[1]), Isa::splat(0x7700u));
  out = Isa::merge(out, Isa::template left<10>(pair[2]), Isa::splat(0x770000u));
  out = Isa::merge(out, Isa::template left<18>(pair[3]), Isa::splat(0x77000000u));
  out = Isa::merge(out, Isa::template right<12>(pair[0]), Isa::splat(0x88u));
  out = Isa::merge(out, Isa::template right<4>(pair[1]), Isa::splat(0x8800u));
  out = Isa::merge(out, Isa::template left<4>(pair[2]), Isa::splat(0x880000u));
  out = Isa::merge(out, Isa::template left<12>(pair[3]), Isa::splat(0x88000000u));
  // The first sign borrows from the second.
  return Isa::flip(out, Isa::template left<4>(Isa::both(out, Isa::splat(0x08080808u))));
}

/// Eight codes of |y| < 8 by stochastic rounding; two draws of 16 bits in each of `noise`.
template <class Isa>
QT_CPU_INLINE typename Isa::U random_codes(const typename Isa::F (&y)[8],
                                           const typename Isa::U (&noise)[4]) {
  using U = typename Isa::U;
  const U field = Isa::splat(0x3fffc0u), rest = Isa::splat(0x20u - kFixedPointOffset);
  U code[8];  // in bits 24:22
  QT_CPU_UNROLL
  for (int e = 0; e < 8; ++e) {
    const U draw =
        e % 2 == 0 ? Isa::template left<6>(noise[e / 2]) : Isa::template right<10>(noise[e / 2]);
    code[e] = Isa::both(Isa::plus(Isa::fixed_point(y[e]), Isa::mask_or(draw, field, rest)),
                        Isa::splat(7u << 22));
  }
  U half[2];  // four codes from bit 6 on
  QT_CPU_UNROLL
  for (int i = 0; i < 2; ++i) {
    half[i] = Isa::template dot_halves<0, 1>(code[4 * i]);
    half[i] = Isa::template dot_halves<0, 16>(half[i], code[4 * i + 1]);
    half[i] = Isa::template dot_halves<0, 256>(half[i], code[4 * i + 2]);
    half[i] = Isa::template dot_halves<0, 4096>(half[i], code[4 * i + 3]);
  }
  U signs = Isa::both(Isa::bits(y[0]), Isa::splat(kSign));
  QT_CPU_UNROLL
  for (int place = 1; place < 8; ++place)
    signs = Isa::merge(Isa::template right<4>(signs), Isa::bits(y[place]), Isa::splat(kSign));
  const U low = Isa::merge(signs, Isa::template right<6>(half[0]), Isa::splat(0x7777u));
  return Isa::merge(low, Isa::template left<10>(half[1]), Isa::splat(0x77770000u));
}

/// Blocks b of all lanes, scaled and rounded: four words of codes a lane.
template <class Isa, class Config>
QT_CPU_INLINE void encode_lanes(const Config& config, const Noise& noise,
                                const u64 (&calls)[Isa::lanes], int b,
                                const typename Isa::F (&x)[kBlock], const LaneScales<Isa>& scales,
                                typename Isa::U (&words)[4]) {
  // TS34's own multiplication joins the other where 1/sqrt(g) does not round.
  const bool norm_rounds = config.rotation == 32 || config.rotation == 128;
  const bool ts34 = config.scale_rule == ScaleRule::ts34;
  const auto three_quarters = Isa::splat_float(0.75f);
  const auto factor =
      ts34 && !norm_rounds ? Isa::mul(scales.factor, three_quarters) : scales.factor;
  QT_CPU_UNROLL
  for (int w = 0; w < 4; ++w) {
    typename Isa::F y[8];
    QT_CPU_UNROLL
    for (int e = 0; e < 8; ++e) {
      y[e] = Isa::mul(x[8 * w + e], factor);
      if (ts34 && norm_rounds) y[e] = Isa::mul(y[e], three_quarters);
      if (clips(config.scale_rule)) y[e] = Isa::at_most_six(y[e]);
    }
    if (config.rounding == Rounding::sr16) {
      typename Isa::U draws[4];
      Isa::draw(noise, calls, u64(4 * b + w), draws);
      words[w] = random_codes<Isa>(y, draws);
    } else {
      words[w] = nearest_codes<Isa>(y);
    }
    words[w] = Isa::both(words[w], scales.keep);
  }
}

/// Blocks b of a group, from rotated values (but for 1/sqrt(g)) to memory; returns the lanes whose
/// blocks are extreme.
template <class Isa, class Config>
QT_CPU_INLINE u32 finish_lanes(const Config& config, const Copy& copy,
                               const LanePlaces<Isa>& places, const u64 (&calls)[Isa::lanes], int b,
                               const typename Isa::F (&x)[kBlock]) {
  typename Isa::U amax[4];  // four chains
  QT_CPU_UNROLL
  for (int i = 0; i < 4; ++i) amax[i] = Isa::splat(0u);
  QT_CPU_UNROLL
  for (int j = 0; j < kBlock; ++j) amax[j % 4] = Isa::larger_magnitude(amax[j % 4], x[j]);
  const auto scales =
      lane_scales<Isa>(Isa::greater(Isa::greater(amax[0], amax[1]), Isa::greater(amax[2], amax[3])),
                       config.scale_rule, config.rotation);
  typename Isa::U words[4];
  encode_lanes<Isa>(config, copy.noise, calls, b, x, scales, words);
  if (unlikely(places.count < Isa::lanes))
    store_some_lanes<Isa>(copy.to, places, b, scales.byte, words);
  else
    store_lanes<Isa>(copy.to, places, b, scales.byte, words);
  return scales.extreme;
}

/// Where modes are known only at run time, the stages of a group are functions of their own: all
/// modes of each, instead of each stage in every mode of the others.
template <class Isa, class Source>
QT_CPU_NOINLINE void load_apart(const Source& source, int b, typename Isa::F (&x)[kBlock]) {
  Source::load(source, b, x);
}
template <class Isa, int g>
QT_CPU_NOINLINE void rotate_apart(typename Isa::F (&x)[kBlock]) {
  rotate_lanes<Isa, g>(x);
}
template <class Isa, class Config>
QT_CPU_NOINLINE u32 finish_apart(const Config& config, const Copy& copy,
                                 const LanePlaces<Isa>& places, const u64 (&calls)[Isa::lanes],
                                 int b, const typename Isa::F (&x)[kBlock]) {
  return finish_lanes<Isa>(config, copy, places, calls, b, x);
}

/// Blocks b of a group, rotated as far as they are alone.
template <class Isa, int g, class Config, class Source>
QT_CPU_INLINE void begin_lanes(const Config& config, const SignFlips& flips, const Source& source,
                               int b, typename Isa::F (&x)[kBlock]) {
  if constexpr (is_constant<Config>)
    Source::load(source, b, x);
  else
    load_apart<Isa>(source, b, x);
  if (g > 0 && config.signs != Signs::none) {
    QT_CPU_UNROLL
    for (int j = 0; j < kBlock; ++j)
      x[j] = Isa::floats(
          Isa::flip(Isa::bits(x[j]), Isa::splat(flips.bit[(b * kBlock + j) % (g ? g : 1)])));
  }
  if constexpr (is_constant<Config>)
    rotate_lanes<Isa, g>(x);
  else
    rotate_apart<Isa, (g < kBlock ? g : kBlock)>(x);
}

/// The rest; returns the lanes whose blocks are extreme.
template <class Isa, class Config>
QT_CPU_INLINE u32 end_lanes(const Config& config, const Copy& copy, const LanePlaces<Isa>& places,
                            const u64 (&calls)[Isa::lanes], int b,
                            const typename Isa::F (&x)[kBlock]) {
  if constexpr (is_constant<Config>)
    return finish_lanes<Isa>(config, copy, places, calls, b, x);
  else
    return finish_apart<Isa>(config, copy, places, calls, b, x);
}

/// One segment in each lane. Source::load gives the elements of blocks b.
template <class Isa, int g, class Config, class Source>
QT_CPU_INLINE void quantize_group(const Config& config, const Copy& copy, const SignMask& mask,
                                  const SignFlips& flips, const Source& source,
                                  const LanePlaces<Isa>& places) {
  constexpr int blocks = segment_size(g) / kBlock;
  u64 calls[Isa::lanes] = {};
  if (config.rounding == Rounding::sr16)
    for (int i = 0; i < Isa::lanes; ++i)
      calls[i] = noise_position(copy, places.row[i], places.block[i] * kBlock) / 8u;
  u32 extreme = 0;
  if constexpr (blocks == 1) {
    typename Isa::F x[kBlock];
    begin_lanes<Isa, g>(config, flips, source, 0, x);
    extreme = end_lanes<Isa>(config, copy, places, calls, 0, x);
  } else {
    alignas(64) float waiting[blocks][kBlock][Isa::lanes];
    for (int b = 0; b < blocks; ++b) {
      typename Isa::F x[kBlock];
      begin_lanes<Isa, g>(config, flips, source, b, x);
      QT_CPU_UNROLL
      for (int j = 0; j < kBlock; ++j) Isa::store(waiting[b][j], x[j]);
    }
    rotate_blocks<Isa, g>(waiting);
    for (int b = 0; b < blocks; ++b) {
      typename Isa::F x[kBlock];
      QT_CPU_UNROLL
      for (int j = 0; j < kBlock; ++j) x[j] = Isa::load(waiting[b][j]);
      extreme |= end_lanes<Isa>(config, copy, places, calls, b, x);
    }
  }
  if (unlikely(extreme != 0u))
    for (int i = 0; i < places.count; ++i)
      if (extreme >> i & 1u)
        quantize_segment(config, copy, mask, places.row[i], places.block[i] / blocks);
}

}  // namespace cpu
}  // namespace qt

#endif
