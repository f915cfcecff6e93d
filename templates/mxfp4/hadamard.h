// The rotation x -> x D H / sqrt(g) in one fixed order of binary32 operations.
//
// D flips signs, H is the Sylvester matrix. Stages h = 1, 2, ..., g/2 replace (a, b), which are h
// apart, by (a+b, a-b); then each element is multiplied once by 1/sqrt(g) rounded to binary32. Each
// output of a stage is one addition of two inputs, so any distribution over lanes or vectors that
// runs the stages in this order gives the same bits.
#ifndef QT_MXFP4_HADAMARD_H
#define QT_MXFP4_HADAMARD_H

#include "mxfp4/signs.h"

namespace qt {

QT_FN constexpr bool is_rotation(int g) {
  return g == 0 || g == 16 || g == 32 || g == 64 || g == 128 || g == 256;
}

/// 1/sqrt(g) rounded to nearest, for g a power of two: exact for even powers.
QT_FN float hadamard_norm(int g) {
  u32 half_log = 0;
  for (int rest = g; rest >= 4; rest /= 4) ++half_log;
  const bool odd = (g >> (2u * half_log)) == 2;
  return float_of((odd ? 0x3f3504f3u : 0x3f800000u) - (half_log << 23));
}

/// Stages h, 2h, ..., g/2. The stage is a template argument so that every trip count is a constant:
/// arrays then stay in registers on a GPU, and vectorise on a CPU.
template <int h, int g, int n>
QT_FN void hadamard_stages(float (&x)[n]) {
  if constexpr (h < g) {
    QT_UNROLL
    for (int base = 0; base < n; base += 2 * h) {
      QT_UNROLL
      for (int j = base; j < base + h; ++j) {
        const float a = x[j];
        const float b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
    }
    hadamard_stages<2 * h, g>(x);
  }
}

/// Rotates each segment of g elements, g < 2 being the identity, whatever the signs.
template <int g, Signs signs, int n>
QT_FN void rotate(float (&x)[n], const SignMask& mask) {
  static_assert(g >= 0 && (g & (g - 1)) == 0 && g <= 256,
                "rotation segments are powers of two up to 256");
  if constexpr (g > 1) {
    static_assert(n % g == 0, "the rotation segment must divide the array");
    if constexpr (signs != Signs::none) {
      QT_UNROLL
      for (int j = 0; j < n; ++j) x[j] = flip_sign(x[j], mask, u32(j % g));
    }
    hadamard_stages<1, g>(x);
    const float norm = hadamard_norm(g);
    QT_UNROLL
    for (int j = 0; j < n; ++j) x[j] = mul(x[j], norm);
  }
}

}  // namespace qt

#endif
