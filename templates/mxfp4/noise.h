// Noise of stochastic rounding: from an element's place in the whole operand to its 22-bit draw.
//
// Philox4x32-7, key = the caller's 64-bit seed (low word first), counter = (call low, call high,
// stream, operand + 4 * transposed). For position p:
//   sr16: call p/8,  word (p%8)/2, low half first;                   r = half << 6 | 0x20
//   sr22: call p/4,  word p%4;                                       r = its top 22 bits
//   sr8:  call p/16, byte p%16, words in order and low byte first;   r = byte << 14
// Instructions of hardware take whole words: cvt.rs (sr_cvt_rs) for four elements, word (p%16)/4 of
// call p/16; v_cvt_scalef32_sr_pk_fp4_f32 (sr_cvt_scalef32) for two, word (p%8)/2 of call p/8.
// So it depends on no tile shape, variant, device, sharding or recomputation.
#ifndef QT_MXFP4_NOISE_H
#define QT_MXFP4_NOISE_H

#include "args.h"
#include "mxfp4/e2m1.h"
#include "mxfp4/philox.h"

namespace qt {

struct Noise {
  u64 seed;
  u32 stream;  // the caller's layer, step and microbatch
  u32 lane;    // noise_lane(operand, transposed)
};

/// operand 0 is A, 1 is B; transposed is 1 for the column-wise copy, whose noise is independent.
QT_FN u32 noise_lane(u32 operand, u32 transposed) { return operand + 4u * transposed; }

/// The noise of this call, as its arguments and the memory that they point to say.
QT_FN Noise noise_of(const qt_args& args, u32 operand, u32 transposed) {
  return {args.noise_seed_at ? u64(*args.noise_seed_at) : u64(args.noise_seed),
          args.stream + (args.noise_stream_at ? *args.noise_stream_at : 0u),
          noise_lane(operand, transposed)};
}

/// Where element (i, k) of this call lies in the copy being written: k_global is the whole
/// operand's K, row0 and k0 this call's place in it. k0 is a multiple of 32, as blocks do not
/// straddle shards.
QT_FN u64 noise_position(i64 i, i64 k, i64 row0, i64 k0, i64 k_global) {
  const u64 k32 = (u64(k_global) + 31u) / 32u * 32u;
  return u64(row0 + i) * k32 + u64(k0 + k);
}

QT_FN Philox noise_call(const Noise& noise, u64 call) {
  return philox4x32<7>(u32(call), u32(call >> 32), noise.stream, noise.lane, u32(noise.seed),
                       u32(noise.seed >> 32));
}

/// Draws in one call.
QT_FN constexpr u32 draws_per_call(Rounding rounding) {
  return rounding == Rounding::sr22 ? 4u : rounding == Rounding::sr8 ? 16u : 8u;
}

/// Draw j of a call.
template <Rounding rounding>
QT_FN u32 noise_draw(const Philox& call, u32 j) {
  static_assert(is_stochastic(rounding) && !is_of_hardware(rounding),
                "only stochastic roundings draw noise, and instructions take words of it");
  if constexpr (rounding == Rounding::sr22) {
    return call.word[j] >> 10;
  } else if constexpr (rounding == Rounding::sr8) {
    return ((call.word[j / 4u] >> (j % 4u * 8u)) & 0xffu) << 14;
  } else {
    return ((call.word[j / 2u] >> (j % 2u * 16u)) & 0xffffu) << 6 | 0x20u;
  }
}

/// The draw of one element: what a block's draws are measured against, and for odd places.
template <Rounding rounding>
QT_FN u32 noise_at(const Noise& noise, u64 position) {
  constexpr u32 draws = draws_per_call(rounding);
  return noise_draw<rounding>(noise_call(noise, position / draws), u32(position % draws));
}

/// The draws of the 32 elements from `position` on, a multiple of 16.
template <Rounding rounding>
QT_FN void noise_block(const Noise& noise, u64 position, u32 (&r)[32]) {
  constexpr u32 draws = draws_per_call(rounding);
  QT_UNROLL
  for (u32 c = 0; c < 32u / draws; ++c) {
    const Philox call = noise_call(noise, position / draws + c);
    QT_UNROLL
    for (u32 j = 0; j < draws; ++j) r[c * draws + j] = noise_draw<rounding>(call, j);
  }
}

}  // namespace qt

#endif
