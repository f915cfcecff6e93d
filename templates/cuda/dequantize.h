// MXFP4 codes and scales back to high precision: code times 2^(byte - 127), rounded once to D's
// type. Rotation and TS34's factor are left in.
#ifndef QT_CUDA_DEQUANTIZE_H
#define QT_CUDA_DEQUANTIZE_H

#include "args.h"
#include "cuda/load.h"
#include "mxfp4/block.h"

namespace qt::cuda {

/// Stores 8 elements from `at` on, as far as there are `valid`.
template <DType type>
QT_FN void store_eight(void* data, i64 at, const float (&x)[8], i64 valid) {
  constexpr int per_store = 16 / bytes_of(type);
  u32 word[2 * bytes_of(type)];
  QT_UNROLL
  for (int w = 0; w < 2 * bytes_of(type); ++w) {
    if constexpr (type == DType::f32) {
      word[w] = bits_of(x[w]);
    } else if constexpr (type == DType::bf16) {
      word[w] = u32(bf16_from_f32(x[2 * w])) | u32(bf16_from_f32(x[2 * w + 1])) << 16;
    } else {
      word[w] = u32(f16_from_f32(x[2 * w])) | u32(f16_from_f32(x[2 * w + 1])) << 16;
    }
  }
  u8* const to = static_cast<u8*>(data) + at * bytes_of(type);
  if (valid >= 8 && (reinterpret_cast<u64>(to) & 15u) == 0) {
    QT_UNROLL
    for (int i = 0; i < 8 / per_store; ++i)
      store_global(reinterpret_cast<Words4*>(to) + i,
                   {{word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]}});
    return;
  }
  QT_UNROLL
  for (int e = 0; e < 8; ++e) {
    if (e >= valid) return;
    if constexpr (type == DType::f32) {
      reinterpret_cast<u32*>(to)[e] = word[e];
    } else {
      reinterpret_cast<u16*>(to)[e] = u16(word[e / 2] >> (16 * (e % 2)));
    }
  }
}

/// A thread writes eight elements, a quarter of a block; blocks take 256 such pieces in turn.
template <class Config>
QT_FN void dequantize(const Config&, const qt_args& args) {
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const i64 batch = block_index_z();
  const i64 pieces = (k + 7) / 8;  // of a row
  const i64 piece = i64(block_index()) * Config::threads + thread_index();
  if (piece >= args.m * pieces) return;
  const i64 row = piece / pieces, column = piece % pieces * 8;
  const u8* const codes = static_cast<const u8*>(args.a.data) +
                          (batch * args.a.batch_stride + row * args.a.ld + column) / 2;
  const u32 byte = static_cast<const u8*>(
      args.a.scales)[batch * args.a.scale_batch_stride + row * args.a.scale_ld + column / 32];
  u32 word = 0;
  QT_UNROLL
  for (u32 i = 0; i < 4u; ++i) word |= u32(codes[i]) << (8u * i);
  float x[8];
  QT_UNROLL
  for (u32 e = 0; e < 8u; ++e) x[e] = qt::dequantize((word >> (4u * e)) & 15u, byte);
  store_eight<Config::output>(args.d.data, batch * args.d.batch_stride + row * args.d.ld + column,
                              x, k - column);
}

}  // namespace qt::cuda

#endif
