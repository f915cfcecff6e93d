// D [1, k] = the sums of X's columns in binary32, in the order of sum_order.h: the gradient of a
// bias, from the gradient that a layer got.
//
// A block has 64 columns and all rows: 16 threads read a row's 64 elements, four each, and 32 rows
// are read at once. A thread holds two of the 64 sums of each of its columns, which are then added
// in shared memory.
#ifndef QT_CUDA_COLUMN_SUMS_H
#define QT_CUDA_COLUMN_SUMS_H

#include "args.h"
#include "cuda/load.h"
#include "sum_order.h"

namespace qt::cuda {

/// Adds every 64th row from `lane` on to sums[0], and every 64th from 32 further on to sums[1];
/// `ahead` pairs of rows are loaded before the first is used.
template <int ahead, class Load>
QT_FN void add_rows(float (&sums)[2][4], i64 m, u32 lane, const Load& load) {
  constexpr u32 lanes = kSumLanes / 2;
  i64 row = lane;
  for (; row + (2 * ahead - 1) * lanes < m; row += 2 * ahead * lanes) {
    float v[2 * ahead][4];
    QT_UNROLL
    for (int i = 0; i < 2 * ahead; ++i) load(row + i * lanes, v[i]);
    QT_UNROLL
    for (int i = 0; i < 2 * ahead; ++i) {
      QT_UNROLL
      for (int e = 0; e < 4; ++e) sums[i % 2][e] = sums[i % 2][e] + v[i][e];
    }
  }
  for (int half = 0; row < m; row += lanes, half ^= 1) {
    float v[4];
    load(row, v);
    QT_UNROLL
    for (int e = 0; e < 4; ++e) {
      sums[0][e] = half == 0 ? sums[0][e] + v[e] : sums[0][e];
      sums[1][e] = half == 1 ? sums[1][e] + v[e] : sums[1][e];
    }
  }
}

/// 512 threads; grid: ceil(k / 64), 1, batch. Shared memory: half of kSumLanes rows of 68 floats.
template <class Config>
QT_FN void column_sums(const Config&, const qt_args& args) {
  constexpr DType type = Config::input;
  constexpr u32 lanes = kSumLanes / 2;  // rows at once
  constexpr u32 pitch = 68 * 4;
  constexpr int ahead = type == DType::f32 ? 4 : 8;
  const i64 batch = block_index_z();
  const u32 quad = thread_index() % 16u, lane = thread_index() / 16u;
  const i64 column = i64(block_index()) * 64 + 4 * quad;
  const i64 left = args.k - column;
  const u8* x =
      static_cast<const u8*>(args.a.data) + (batch * args.a.batch_stride + column) * bytes_of(type);
  const i64 step = args.a.ld * bytes_of(type);
  constexpr u64 mask = 4u * bytes_of(type) - 1u;
  const bool whole = left >= 4 && ((reinterpret_cast<u64>(x) | u64(step)) & mask) == 0;
  float sums[2][4] = {};
  if (whole) {
    add_rows<ahead>(sums, args.m, lane,
                    [&](i64 row, float(&v)[4]) { load_four<type>(x + row * step, v); });
  } else {
    add_rows<1>(sums, args.m, lane, [&](i64 row, float(&v)[4]) {
      QT_UNROLL
      for (int e = 0; e < 4; ++e) v[e] = e < left ? element<type>(x + row * step, e) : 0.0f;
    });
  }
  float sum[4];
  QT_UNROLL
  for (int e = 0; e < 4; ++e) sum[e] = sums[0][e] + sums[1][e];
  const u32 at = shared_base() + lane * pitch + quad * 16u;
  const auto keep = [&] {
    store_shared_4(at, {{bits_of(sum[0]), bits_of(sum[1]), bits_of(sum[2]), bits_of(sum[3])}});
  };
  keep();
  for (u32 half = lanes / 2; half > 0; half /= 2) {
    sync_block();
    if (lane >= half) continue;
    const Words4 other = load_shared_4(at + half * pitch);
    QT_UNROLL
    for (int e = 0; e < 4; ++e) sum[e] = sum[e] + float_of(other.word[e]);
    keep();
  }
  if (lane != 0) return;
  float* to = static_cast<float*>(args.d.data) + batch * args.d.batch_stride + column;
  QT_UNROLL
  for (int e = 0; e < 4; ++e)
    if (e < left) to[e] = sum[e];
}

}  // namespace qt::cuda

#endif
