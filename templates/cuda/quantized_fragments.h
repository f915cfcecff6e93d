// Rows to be quantised where they are computed (quantized_rows.h), from fragments of tensor cores:
// what epilogue_rows.h does with 16 rows of a warp, but for where results go.
#ifndef QT_CUDA_QUANTIZED_FRAGMENTS_H
#define QT_CUDA_QUANTIZED_FRAGMENTS_H

#include "cuda/epilogue_rows.h"
#include "cuda/quantized_rows.h"

namespace qt::cuda {

/// RowsOfZ of 16 rows whose results go to `kept`, from its row `kept_row` on.
template <class Config, class Kept>
struct RowsToQuantize {
  static constexpr bool halves = Config::epilogue == Epilogue::swiglu_split;
  const qt_args& args;
  Destination d;
  i64 first;         // of the fragments' first column
  u32 staged, lane;  // this warp's shared memory, where there is an activation
  const Kept& kept;
  u32 kept_row;
  i64 row;  // of D, the first of the 16

  QT_FN u32 wanted(u32, u32 count, i64) const { return (1u << count) - 1u; }
  template <int count>
  QT_FN void put(i64 y, i64 column, i64 end, u32, const float (&v)[count]) const {
    if (column < end) kept.put(kept_row + u32(y - row), column, v);
  }
};

/// What finish_rows is to RowsOfZ.
template <class Config, int groups, class Kept, class Z>
QT_FN void keep_rows(const RowsToQuantize<Config, Kept>& rows, const Z& z) {
  if constexpr (Config::epilogue != Epilogue::none) {
    activate_rows<Config, groups>(rows, rows.row, z);
  } else {
    QT_UNROLL
    for (int j = 0; j < groups; ++j) {
      float v[4];
      z(j, v);
      const i64 column = rows.first + 8 * j + rows.lane % 4u * 2u;
      const float above[2] = {v[0], v[1]}, below[2] = {v[2], v[3]};
      rows.put(rows.row + rows.lane / 4u, column, rows.d.n, 3u, above);
      rows.put(rows.row + rows.lane / 4u + 8, column, rows.d.n, 3u, below);
    }
  }
}

}  // namespace qt::cuda

#endif
