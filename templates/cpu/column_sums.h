// D [1, k] = the sums of X's columns in binary32, in the order of sum_order.h: the gradient of a
// bias, from the gradient that a layer got.
#ifndef QT_CPU_COLUMN_SUMS_H
#define QT_CPU_COLUMN_SUMS_H

#include "args.h"
#include "cpu/elements.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/primitives_portable.h"
#include "sum_order.h"

namespace qt {
namespace cpu {

constexpr i64 kSumColumns = 64;  // of a part

/// What an emitted Config states as constants.
struct ColumnSumsConfig {
  DType a_type = DType::bf16;
};

/// sums[row % kSumLanes] += a row's `count` elements from index `at` on, for all rows.
template <class Config>
QT_CPU_NOINLINE void add_rows(const Config& config, const u8* x, i64 rows, i64 ld, i64 at,
                              i64 count, float (*sums)[kSumColumns]) {
  for (i64 row = 0; row < rows; ++row) {
    float* to = sums[row % kSumLanes];
    const i64 from = row * ld + at;
    if (count == kSumColumns) {
      for (i64 c = 0; c < kSumColumns; ++c) to[c] += load_element(x, from + c, config.a_type);
    } else {
      for (i64 c = 0; c < count; ++c) to[c] += load_element(x, from + c, config.a_type);
    }
  }
}

/// Parts: batch entries, in each of them kSumColumns columns.
template <class Config>
QT_FN void column_sums(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 across = (args->k + kSumColumns - 1) / kSumColumns;
  const i64 batch = part / across, first = part % across * kSumColumns;
  const i64 count = args->k - first < kSumColumns ? args->k - first : kSumColumns;
  const i64 bytes = config.a_type == DType::f32 ? 4 : 2;
  alignas(64) float sums[kSumLanes][kSumColumns] = {};
  add_rows(config, static_cast<const u8*>(args->a.data) + batch * args->a.batch_stride * bytes,
           args->m, args->a.ld, first, count, sums);
  for (int half = kSumLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      for (i64 c = 0; c < kSumColumns; ++c) sums[lane][c] += sums[lane + half][c];
  float* to = static_cast<float*>(args->d.data) + batch * args->d.batch_stride + first;
  for (i64 c = 0; c < count; ++c) to[c] = sums[0][c];
}

}  // namespace cpu
}  // namespace qt

#endif
