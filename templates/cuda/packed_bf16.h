// Permuted weights (permuted.h) as the bf16 elements of warp-group products (bf16.h), decoded in
// registers, for activations in bf16. The block's scale goes into the element, so there is no
// window.
//
// Many tokens bring activations as they lie, K in order: of every eight codes that neighbours hold,
// lane q of a quad then needs the two at 2q, so it reads its neighbours' words too (NaturalOrder).
// Few tokens have threads to spare that reorder activations on their way, so that a lane keeps to
// its own words (Decoder::half): of every 128 of K, element 8c + 2t + i is then element
// 2c + i of block t.
#ifndef QT_CUDA_PACKED_BF16_H
#define QT_CUDA_PACKED_BF16_H

#include "cuda/bf16.h"
#include "cuda/permuted.h"
#include "cuda/primitives_wgmma.h"

namespace qt::cuda::packed {

/// The scales of a thread's own block in the upper and in the lower row.
struct BlockScales {
  u32 row[2];
};
/// `scales`: the thread's own place.
QT_FN BlockScales block_scales(u32 scales) {
  const u32 bytes = load_shared_u16(scales);
  return {{bf16_scale(bytes & 0xffu), bf16_scale(bytes >> 8)}};
}

class Decoder {
 public:
  /// Four codes: magnitudes in the low four nibbles, signs in bit 7 of each byte, to two pairs.
  QT_FN void four(u32 magnitudes, u32 signs, u32 scale, u32& first, u32& second) const {
    constexpr u32 minus_zero = 0x80008000u;
    const u32 upper = permute_bytes(upper_, 0x40404040u, magnitudes) | (signs & 0x80808080u);
    const u32 lower = permute_bytes(lower_, 0xc0804000u, magnitudes);
    first = fma_bf16x2(permute_bytes(lower, upper, 0x5140u), scale, minus_zero);
    second = fma_bf16x2(permute_bytes(lower, upper, 0x7362u), scale, minus_zero);
  }
  /// Half of a thread's own blocks of a chunk, for reordered activations, as four products' A.
  /// `codes`: the thread's own place in that half.
  QT_FN void half(u32 codes, const BlockScales& scales, Words4 (&a)[4]) const {
    const Words4 words = load_shared_4(codes);
    QT_UNROLL
    for (u32 s = 0; s < 2u; ++s) {
      QT_UNROLL
      for (u32 row = 0; row < 2u; ++row) {
        const u32 word = words.word[2u * s + row];
        const u32 magnitudes = word & 0x77777777u;
        Words4& low = a[2u * s];
        Words4& high = a[2u * s + 1u];
        four(magnitudes, word, scales.row[row], low.word[row], low.word[2u + row]);
        four(magnitudes >> 16, word << 4, scales.row[row], high.word[row], high.word[2u + row]);
      }
    }
  }

 private:
  // The upper and lower bytes of bf16 0, 0.5, 1, 1.5 (then 2, 3, 4, 6), in registers.
  const u32 upper_ = in_register(0x3f3f3f00u), lower_ = in_register(0xc0800000u);
};

/// Decodes for activations whose K is in order: half a chunk (64 of K) as four products' A.
class NaturalOrder {
 public:
  /// `thread` of the warp group.
  QT_FN explicit NaturalOrder(u32 thread) {
    const u32 q = thread % 4u;
    quad_ = thread / 4u;
    own_ = thread % 32u;
    magnitudes_ = q * 0x11u + 0x40u;
    signs_ = q % 2u == 0 ? 0x5410u : 0x7632u;
    shift_ = q / 2u * 4u;
  }

  /// `codes` and `scales`: where the chunk's begin in shared memory.
  QT_FN void decode(u32 codes, u32 scales, u32 half, Words4 (&a)[4]) const {
    // Lane q makes byte q into a scale for its quad: two blocks, of each the upper row's, the
    // lower row's.
    const u32 bytes = load_shared_u32(scales + quad_ * 8u + half * 4u);
    const u32 mine = bf16_scale((bytes >> (own_ % 4u * 8u)) & 0xffu);
    u32 scale[4];
    QT_UNROLL
    for (u32 i = 0; i < 4u; ++i) scale[i] = shuffle_from(mine, (own_ & ~3u) + i);
    QT_UNROLL
    for (u32 s = 0; s < 4u; ++s) {
      const u32 holder = quad_ * 4u + half * 2u + s / 2u;
      const Words4 words = load_shared_4(codes + s % 2u * 2048u + holder * 16u);
      QT_UNROLL
      for (u32 row = 0; row < 2u; ++row) {
        const u32 first = words.word[row], second = words.word[2u + row];
        decoder_.four(permute_bytes(first, second, magnitudes_) & 0x7777u,
                      permute_bytes(first, second, signs_) << shift_, scale[s / 2u * 2u + row],
                      a[s].word[row], a[s].word[2u + row]);
      }
    }
  }

 private:
  Decoder decoder_;
  u32 quad_, own_;
  u32 magnitudes_, signs_, shift_;  // selectors of this lane's bytes of two words
};

/// Activations in bf16, [rows, k]: as the caller has them, or in layout bf16.
struct Activations {
  const u16* data;
  i64 ld, rows, k;
  bool aligned;  // every row starts at a multiple of 16 bytes

  template <class Config>
  QT_FN static Activations of(const Config&, const qt_args& args) {
    const i64 k = Config::k > 0 ? Config::k : args.k;
    const i64 padded = round_up(k, Config::k_unit);
    Activations x = {static_cast<const u16*>(args.a.data), args.a.ld, args.m, k, false};
    // Beyond k, layout bf16 holds zeros.
    if constexpr (!Config::given_a) x.ld = x.k = padded;
    x.aligned = ((reinterpret_cast<u64>(x.data) | u64(x.ld * 2)) & 15u) == 0;
    return x;
  }

  /// Eight elements from (row, at) on, zeros beyond the matrix.
  QT_FN Words4 eight(i64 row, i64 at) const {
    if (row >= rows || at >= k) return {};
    const u16* const from = data + row * ld + at;
    if (aligned && at + 8 <= k) return load_global(reinterpret_cast<const Words4*>(from));
    Words4 v = {};
    QT_UNROLL
    for (u32 i = 0; i < 8u; ++i)
      if (at + i < k) v.word[i / 2u] |= u32(from[i]) << (16u * (i % 2u));
    return v;
  }
};

/// Where piece `piece` of 16 (8 of K each) of row `row` of a chunk lies: two tiles of 64 of K under
/// the 128-byte swizzle.
QT_FN u32 piece_place(u32 tokens, u32 row, u32 piece) {
  return piece / 8u * tokens * 128u + row * 128u + ((piece % 8u ^ (row & 7u)) << 4);
}

}  // namespace qt::cuda::packed

#endif
