// X as a quantiser reads it: as it is, or behind a prologue (mxfp4/prologue.h).
#ifndef QT_CUDA_PROLOGUE_H
#define QT_CUDA_PROLOGUE_H

#include "args.h"
#include "cuda/load.h"
#include "mxfp4/prologue.h"

namespace qt::cuda {

/// One row of X, or of this batch entry's X.
template <class Config>
struct RowsOfX {
  static constexpr DType type = Config::input;
  const u8* data;
  const void* weight;
  i64 ld, k;
  bool aligned, values_aligned, weight_aligned;

  QT_FN RowsOfX(const qt_args& args, i64 batch, i64 columns)
      : data(static_cast<const u8*>(args.a.data) +
             batch * args.a.batch_stride * bytes_of(Config::input)),
        weight(args.norm_weight),
        ld(args.a.ld),
        k(columns) {
    aligned = is_aligned<type>(data, ld);
    values_aligned = aligned && (k * bytes_of(type)) % 16 == 0;
    weight_aligned = is_aligned<type>(weight, 0);
  }

  QT_FN static int clamped(i64 valid) { return valid < 32 ? int(valid) : 32; }
  QT_FN void load(float (&x)[32], i64 at, i64 valid, bool in_words) const {
    Raw<type> raw;
    load_block<type>(raw, data, valid > 0 ? at : 0, clamped(valid), in_words);
    QT_UNROLL
    for (int j = 0; j < 32; ++j) x[j] = raw.value(j);
  }

  /// 32 elements of X from block `block` of a row on, of which `rest` exist; the others are zeros.
  QT_FN void elements(float (&x)[32], i64 row, u32 block, i64 rest) const {
    load(x, row * ld + i64(block) * 32, rest, aligned);
  }

  /// The same of what the prologue makes of the row, `factor` being its norm_factor.
  QT_FN void values(float (&x)[32], i64 row, u32 block, i64 rest, float factor) const {
    constexpr Prologue prologue = Config::prologue;
    if constexpr (prologue == Prologue::swiglu_interleaved) {
      const i64 at = row * ld + i64(block) * 64;
      float pairs[32];
      QT_UNROLL
      for (int half = 0; half < 2; ++half) {
        load(pairs, at + 32 * half, 2 * rest - 32 * half, aligned);
        QT_UNROLL
        for (int j = 0; j < 16; ++j) x[16 * half + j] = swiglu(pairs[2 * j], pairs[2 * j + 1]);
      }
    } else {
      Raw<type> raw, by;
      const i64 at = row * ld + i64(block) * 32;
      const bool some = rest > 0;
      load_block<type>(raw, data, some ? at : 0, clamped(rest), aligned);
      if constexpr (prologue == Prologue::swiglu_split)
        load_block<type>(by, data, some ? at + k : 0, clamped(rest), values_aligned);
      if constexpr (prologue == Prologue::rmsnorm)
        load_block<type>(by, weight, some ? i64(block) * 32 : 0, clamped(rest), weight_aligned);
      QT_UNROLL
      for (int j = 0; j < 32; ++j) {
        x[j] = raw.value(j);
        if constexpr (prologue == Prologue::swiglu_split) x[j] = swiglu(x[j], by.value(j));
        if constexpr (prologue == Prologue::rmsnorm) x[j] = normed(x[j], factor, by.value(j));
      }
    }
  }
};

/// norm_factor of a row whose blocks' sums of squares lie at `squares` in shared memory; every lane
/// of a warp gets it.
QT_FN float factor_of_row(u32 squares, u32 blocks, i64 k, float epsilon, u32 lane) {
  float sums[2] = {0.0f, 0.0f};
  QT_UNROLL
  for (u32 half = 0; half < 2u; ++half)
    for (u32 block = lane + 32u * half; block < blocks; block += kNormLanes)
      sums[half] = sums[half] + load_shared_f32(squares + block * 4u);
  float sum = sums[0] + sums[1];
  QT_UNROLL
  for (u32 step = 16; step > 0; step /= 2) sum = sum + shuffle_xor(sum, step);
  return norm_factor(sum, k, epsilon);
}

}  // namespace qt::cuda

#endif
