// MXFP4 elements as bf16: an eighth of the value, exactly.
//
// E2M1 times a power of two has one mantissa bit, so bf16 holds it; an eighth keeps every scale
// byte from 0 to 254 inside its range, and 255 gives NaN. A product gives the eighths back. Layout
// bf16 is rows of such elements, in order, K padded with zeros as that of packed codes.
#ifndef QT_CUDA_BF16_H
#define QT_CUDA_BF16_H

#include "cuda/primitives_bf16.h"

namespace qt::cuda {

/// 2^(byte - 130) as a pair of equal bf16: exact for every byte, NaN for 255.
QT_FN u32 bf16_scale(u32 byte) {
  const u32 bits = byte == 255u ? 0x7fc0u : byte >= 4u ? (byte - 3u) << 7 : 8u << byte;
  return bits * 0x10001u;
}

/// Eight codes, the first in the low nibble, to four bf16 pairs (elements 2i and 2i + 1), times
/// `scale`.
QT_FN void decode_bf16(u32 codes, u32 scale, u32 (&pairs)[4]) {
  constexpr u32 minus_zero = 0x80008000u;
  const u32 magnitude = codes & 0x77777777u;
  QT_UNROLL
  for (int half = 0; half < 2; ++half) {
    const u32 selector = magnitude >> (16 * half);
    // The upper and lower bytes of bf16 0, 0.5, 1, 1.5, 2, 3, 4, 6.
    u32 upper = permute_bytes(0x3f3f3f00u, 0x40404040u, selector & 0xffffu);
    const u32 lower = permute_bytes(0xc0800000u, 0xc0804000u, selector & 0xffffu);
    const u32 spread = permute_bytes(codes, 0u, half == 0 ? 0x1100u : 0x3322u);
    upper |= ((spread << 4) & 0x00800080u) | (spread & 0x80008000u);
    pairs[2 * half] = fma_bf16x2(permute_bytes(lower, upper, 0x5140u), scale, minus_zero);
    pairs[2 * half + 1] = fma_bf16x2(permute_bytes(lower, upper, 0x7362u), scale, minus_zero);
  }
}

/// A block of 32 packed codes to its 64 bytes of bf16, which start at a multiple of 16.
QT_FN void store_block_bf16(u16* to, const u32 (&packed)[4], u32 byte) {
  const u32 scale = bf16_scale(byte);
  QT_UNROLL
  for (u32 w = 0; w < 4u; ++w) {
    u32 pairs[4];
    decode_bf16(packed[w], scale, pairs);
    store_global(reinterpret_cast<Words4*>(to) + w, {{pairs[0], pairs[1], pairs[2], pairs[3]}});
  }
}

}  // namespace qt::cuda

#endif
