// What a CPU GEMM does with its sums: scale, add C and bias, round to D's type, store.
#ifndef QT_CPU_EPILOGUE_H
#define QT_CPU_EPILOGUE_H

#include "args.h"
#include "cpu/elements.h"

namespace qt {
namespace cpu {

/// D[row, column..] = (alpha * descale) * sums + beta * C + bias for `count` columns, each
/// operation rounded on its own in binary32. With beta = 0, C is not read.
template <class Config>
QT_FN void store_sums(const Config& config, const qt_args* args, i64 batch, i64 row, i64 column,
                      int count, const float* sums) {
  float out[16];
  const float factor = mul(args->alpha, config.descale);
  for (int c = 0; c < 16; ++c) out[c] = mul(factor, sums[c]);
  if (config.accumulate && args->beta != 0.0f) {
    const i64 at = batch * args->c.batch_stride + row * args->c.ld + column;
    for (int c = 0; c < count; ++c)
      out[c] = out[c] + mul(args->beta, load_element(args->c.data, at + c, config.d_type));
  }
  if (config.bias)
    for (int c = 0; c < count; ++c)
      out[c] = out[c] + load_element(args->bias, column + c, config.d_type);
  const i64 at = batch * args->d.batch_stride + row * args->d.ld + column;
  if (count == 16) {
    for (int c = 0; c < 16; ++c) store_element(args->d.data, at + c, config.d_type, out[c]);
  } else {
    for (int c = 0; c < count; ++c) store_element(args->d.data, at + c, config.d_type, out[c]);
  }
}

}  // namespace cpu
}  // namespace qt

#endif
