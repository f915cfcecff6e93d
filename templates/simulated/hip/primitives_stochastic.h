// Simulated body of hip/primitives_stochastic.h: the top 22 bits of the seed, for both values,
// added to what is discarded.
#ifndef QT_HIP_PRIMITIVES_STOCHASTIC_H
#define QT_HIP_PRIMITIVES_STOCHASTIC_H

#include "simulated/stochastic.h"

namespace qt::hip {

template <int byte>
QT_FN u32 convert_pair_stochastic(u32 old, float x, float y, u32 seed, float scale) {
  const double part = simulated::rounds_as("lower") ? 0x1p-33 : 0x1p-32;
  const double noise = double(seed & ~1023u) * part;
  u32 bits;
  std::memcpy(&bits, &scale, sizeof bits);
  const int exponent = int(bits >> 23 & 255u) - 127;
  const u32 codes = simulated::round_e2m1(std::ldexp(x, -exponent), noise) |
                    simulated::round_e2m1(std::ldexp(y, -exponent), noise) << 4;
  return (old & ~(255u << (8 * byte))) | codes << (8 * byte);
}

}  // namespace qt::hip

#endif
