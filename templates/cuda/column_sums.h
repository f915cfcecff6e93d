// D [1, k] = the sums of X's columns in binary32, in the order of sum_order.h: the gradient of a
// bias, from the gradient that a layer got.
//
// A block has 32 columns and all rows: 16 threads read a row's 32 elements, two each, and 64 rows
// are read at once, one for each of the sums that are then added in shared memory.
#ifndef QT_CUDA_COLUMN_SUMS_H
#define QT_CUDA_COLUMN_SUMS_H

#include "cuda/epilogue.h"
#include "sum_order.h"

namespace qt::cuda {

/// 1024 threads; grid: ceil(k / 32), 1, batch. Shared memory: kSumLanes rows of 33 floats.
template <class Config>
QT_FN void column_sums(const Config&, const qt_args& args) {
  constexpr u32 pitch = 33 * 4;
  constexpr int ahead = 8;  // rows in flight, a thread
  const i64 batch = block_index_z();
  const u32 pair = thread_index() % 16u, lane = thread_index() / 16u;
  const i64 column = i64(block_index()) * 32 + 2 * pair;
  float low = 0.0f, high = 0.0f;
  i64 row = lane;
  for (; row + (ahead - 1) * kSumLanes < args.m; row += ahead * kSumLanes) {
    Pair x[ahead];
    QT_UNROLL
    for (int i = 0; i < ahead; ++i)
      x[i] = load_pair<Config::input>(args.a, batch, row + i * kSumLanes, column, args.k);
    QT_UNROLL
    for (int i = 0; i < ahead; ++i) {
      low = low + x[i].low;
      high = high + x[i].high;
    }
  }
  for (; row < args.m; row += kSumLanes) {
    const Pair x = load_pair<Config::input>(args.a, batch, row, column, args.k);
    low = low + x.low;
    high = high + x.high;
  }
  const u32 at = shared_base() + lane * pitch + pair * 8u;
  store_shared_f32(at, low);
  store_shared_f32(at + 4u, high);
  for (u32 half = kSumLanes / 2; half > 0; half /= 2) {
    sync_block();
    if (lane >= half) continue;
    low = low + load_shared_f32(at + half * pitch);
    high = high + load_shared_f32(at + half * pitch + 4u);
    store_shared_f32(at, low);
    store_shared_f32(at + 4u, high);
  }
  if (lane != 0) return;
  float* to = static_cast<float*>(args.d.data) + batch * args.d.batch_stride + column;
  if (column < args.k) to[0] = low;
  if (column + 1 < args.k) to[1] = high;
}

}  // namespace qt::cuda

#endif
