// Values of MXFP4 for simulated tensor cores, written from the OCP formats and not from mxfp4/.
#ifndef QT_SIMULATED_CUDA_MXF4_H
#define QT_SIMULATED_CUDA_MXF4_H

#include <cmath>
#include <limits>

#include "mxfp4/platform.h"

namespace qt::cuda::simulated_mxf4 {

/// The code in the lowest four bits.
QT_FN float e2m1_of(u32 code) {
  constexpr float values[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return (code & 8u) ? -values[code & 7u] : values[code & 7u];
}

/// Byte `byte` of a word of scales.
QT_FN double ue8m0_of(u32 word, u32 byte) {
  const u32 exponent = word >> (8 * byte) & 255u;
  return exponent == 255 ? std::numeric_limits<double>::quiet_NaN()
                         : std::ldexp(1.0, int(exponent) - 127);
}

}  // namespace qt::cuda::simulated_mxf4

#endif
