// What may happen to X before it is rotated and quantised, in binary32: RMSNorm along its rows,
// with one order of additions for every back end and variant, or SwiGLU of pairs of its columns.
#ifndef QT_MXFP4_PROLOGUE_H
#define QT_MXFP4_PROLOGUE_H

#include "mxfp4/activation.h"
#include "mxfp4/sqrt.h"

namespace qt {

/// The spelling and the order are those of the generator's Prologue.
enum class Prologue { none, rmsnorm, swiglu_split, swiglu_interleaved };

QT_FN constexpr bool is_gated(Prologue p) {
  return p == Prologue::swiglu_split || p == Prologue::swiglu_interleaved;
}

/// Sums of squares of a row's blocks of 32 are added up in this many: sum l takes blocks l, l + 64,
/// ... in ascending order, then halves are added to halves: l and l + 32, ..., l and l + 1.
constexpr int kNormLanes = 64;

/// Of one block: element i and i + 16 in one fused multiply-add, then halves as above.
QT_FN float square_sum(const float (&x)[32]) {
  float sums[16];
  QT_UNROLL
  for (int i = 0; i < 16; ++i) sums[i] = fused(x[i + 16], x[i + 16], mul(x[i], x[i]));
  QT_UNROLL
  for (int half = 8; half > 0; half /= 2) {
    QT_UNROLL
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return sums[0];
}

/// 1 / sqrt(sum / k + epsilon), each operation rounded on its own.
QT_FN float norm_factor(float sum, i64 k, float epsilon) {
  return 1.0f / sqrt_rn(sum / float(k) + epsilon);
}

QT_FN float normed(float x, float factor, float weight) { return mul(mul(x, factor), weight); }

}  // namespace qt

#endif
