// z of one element of a product from its scaled sum, for kernels whose threads hold fragments:
// bias, and C unless an activation follows, in front of which C joins where rows are read in order.
#ifndef QT_CUDA_ADDENDS_H
#define QT_CUDA_ADDENDS_H

#include "cuda/epilogue.h"
#include "cuda/tile_walk.h"

namespace qt::cuda {

template <class Config>
QT_FN float with_addends(const qt_args& args, const Product& p, const Destination& d, i64 row,
                         i64 column, float z) {
  float bias = 0.0f;
  if constexpr (Config::bias)
    if (column < d.n)
      bias = element<Config::side>(args.bias, bias_place<Config::grouping>(p, d.n) + column);
  if constexpr (Config::accumulate && Config::epilogue == Epilogue::none) {
    if (row < d.m && column < d.n) z += addend<Config>(args, d, row, column, bias);
  } else if constexpr (Config::bias) {
    z += bias;
  }
  return z;
}

}  // namespace qt::cuda

#endif
