// The rotation of mxfp4/hadamard.h spread over lanes: each lane holds 32 elements, and neighbouring
// lanes (by their index's bits from `lane_step` on) the next 32. Same stages in the same order, so
// the same bits.
#ifndef QT_CUDA_ROTATE_H
#define QT_CUDA_ROTATE_H

#include "args.h"
#include "cuda/encode.h"
#include "mxfp4/hadamard.h"

namespace qt::cuda {

/// The signs that a kernel's Config asks for.
template <class Config>
QT_FN SignMask signs_of(const qt_args& args) {
  SignMask mask = {};
  if constexpr (Config::signs == Signs::per_call) {
    constexpr int words = Config::rotation > 32 ? Config::rotation / 32 : 1;
    const SignMask all = sign_mask_from_seed(args.sign_seed);
    QT_UNROLL
    for (int i = 0; i < words; ++i) mask.word[i] = words > 2 ? all.word[i] : kept(all.word[i]);
  }
  if constexpr (Config::signs == Signs::fixed) {
    QT_UNROLL
    for (int i = 0; i < 8; ++i) mask.word[i] = args.sign_mask[i];
  }
  return mask;
}

/// The 32 sign bits for block `block` of a row, given all 256.
template <int g>
QT_FN u32 block_signs(const SignMask& mask, u32 block) {
  if constexpr (g == 16) {
    return (mask.word[0] & 0xffffu) | (mask.word[0] << 16);
  } else if constexpr (g <= 32) {
    return mask.word[0];
  } else {
    u32 word = mask.word[0];
    QT_UNROLL
    for (u32 i = 1; i < u32(g / 32); ++i) word = block % u32(g / 32) == i ? mask.word[i] : word;
    return word;
  }
}

/// Signs and stages; hadamard_norm(g) is left to the caller. Returns the largest magnitude of the
/// sums, or a NaN. Of a + b and a - b it is |a| + |b|, rounding included.
template <int g, bool has_signs>
QT_FN float rotate_over_lanes(float (&x)[32], u32 signs, u32 lane, u32 lane_step) {
  if constexpr (g < 2) {
    return amax_of(x);
  } else {
    if constexpr (has_signs) {
      QT_UNROLL
      for (int j = 0; j < 32; ++j) x[j] = float_of(bits_of(x[j]) ^ ((signs << (31 - j)) & kSign));
    }
    // Counted by stage and pair, because the compiler unrolls no loops whose bounds are other
    // loops'.
    constexpr int stages = g == 16 ? 4 : 5;
    float largest[16];
    QT_UNROLL
    for (int stage = 0; stage < stages; ++stage) {
      QT_UNROLL
      for (int pair = 0; pair < 16; ++pair) {
        const int j = ((pair >> stage) << (stage + 1)) | (pair & ((1 << stage) - 1));
        const float a = x[j];
        const float b = x[j | 1 << stage];
        if (stage == stages - 1) largest[pair] = magnitude(a) + magnitude(b);
        x[j] = a + b;
        x[j | 1 << stage] = a - b;
      }
    }
    if constexpr (g <= 32) return amax_of(largest);
    QT_UNROLL
    for (int h = 32; h < g; h *= 2) {
      const u32 step = u32(h / 32) * lane_step;
      // The lower lane keeps a + b, the upper one a - b: its own times +-1 plus the other's.
      const float sign = (lane & step) ? -1.0f : 1.0f;
      QT_UNROLL
      for (int j = 0; j < 32; ++j) x[j] = fma_rn(x[j], sign, shuffle_xor(x[j], step));
    }
    return amax_of(x);
  }
}

}  // namespace qt::cuda

#endif
