// Simulated body of cuda/primitives_stochastic.h: eight random bits an element, from the low bytes
// of the word's halves for e and f and from the high ones for a and b, added to what is discarded.
#ifndef QT_CUDA_PRIMITIVES_STOCHASTIC_H
#define QT_CUDA_PRIMITIVES_STOCHASTIC_H

#include "simulated/stochastic.h"

namespace qt::cuda {

QT_FN u32 convert_e2m1x4_stochastic(float a, float b, float e, float f, u32 bits) {
  if (simulated::rounds_as("swapped")) bits = bits << 16 | bits >> 16;
  const auto code = [bits](float x, u32 byte) {
    return simulated::round_e2m1(x, double(bits >> (8u * byte) & 255u) / 256.0);
  };
  return code(f, 0) | code(e, 2) << 4 | code(b, 1) << 8 | code(a, 3) << 12;
}

}  // namespace qt::cuda

#endif
