// What a GEMM does with a warp's finished sums: D = factor * sums + beta * C + bias, rounded once
// to D's type and stored in whole sectors, for any stride and alignment of C and D.
#ifndef QT_CUDA_EPILOGUE_H
#define QT_CUDA_EPILOGUE_H

#include "args.h"
#include "cuda/load.h"
#include "mxfp4/types.h"

namespace qt::cuda {

/// Two neighbours as D's 16-bit type.
template <DType type>
QT_FN u32 pack_pair(float low, float high) {
  if constexpr (type == DType::bf16) return pack_bf16(low, high);
  return pack_f16(low, high);
}

/// The part of D that a call writes.
struct Destination {
  i64 batch;
  i64 m, n;
};

/// beta * C + bias for element (row, column), inside D.
template <class Config>
QT_FN float addend(const qt_args& args, const Destination& d, i64 row, i64 column, float bias) {
  float sum = bias;
  if constexpr (Config::accumulate)
    if (args.beta != 0.0f)
      sum = fma_rn(args.beta,
                   element<Config::output>(
                       args.c.data, d.batch * args.c.batch_stride + row * args.c.ld + column),
                   bias);
  return sum;
}

/// Stores four values of a tensor-core fragment directly: (row, column), (row, column + 1), and the
/// same 8 rows below, where both row and column are wanted.
template <class Config>
QT_FN void store_fragment(const qt_args& args, const Destination& d, i64 row, i64 column,
                          const float (&v)[4], const bool (&rows)[2], const bool (&columns)[2]) {
  QT_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (!rows[half]) continue;
    const i64 at = d.batch * args.d.batch_stride + (row + 8 * half) * args.d.ld + column;
    QT_UNROLL
    for (int e = 0; e < 2; ++e)
      if (columns[e]) static_cast<float*>(args.d.data)[at + e] = v[2 * half + e];
  }
}

/// 16 rows and 64 columns of 16-bit results from a warp's 2 KB of shared memory (rows of 128 bytes,
/// 16-byte piece p of row r at p ^ r % 8) to D at (row, column). With `choosy`, only elements whose
/// row and column `wanted` answers for are stored.
template <class Config, class Wanted>
QT_FN void store_staged(const qt_args& args, const Destination& d, u32 staged, i64 row, i64 column,
                        u32 lane, bool aligned, bool choosy, const Wanted& wanted) {
  const u32 piece = lane % 8u;
  const i64 first = column + piece * 8;
  QT_UNROLL
  for (u32 i = 0; i < 4u; ++i) {
    const u32 r = i * 4u + lane / 8u;
    if (row + r >= d.m || first >= d.n) continue;
    const Words4 v = load_shared_4(staged + r * 128u + ((piece ^ (r & 7u)) << 4));
    u16* to = static_cast<u16*>(args.d.data) + d.batch * args.d.batch_stride +
              (row + r) * args.d.ld + first;
    if (aligned && first + 8 <= d.n && !choosy) {
      store_global(reinterpret_cast<Words4*>(to), v);
    } else {
      QT_UNROLL
      for (int e = 0; e < 8; ++e)
        if (first + e < d.n && (!choosy || wanted(row + r, first + e)))
          to[e] = u16(v.word[e / 2] >> (16 * (e % 2)));
    }
  }
}

}  // namespace qt::cuda

#endif
