// Conversion of a pair to E2M1 by gfx950's own stochastic rounding.
#ifndef QT_HIP_PRIMITIVES_STOCHASTIC_H
#define QT_HIP_PRIMITIVES_STOCHASTIC_H

#include "mxfp4/platform.h"

namespace qt::hip {

/// `old` with byte `byte` replaced by the codes of x / 2^e (low four bits) and y / 2^e, e the
/// exponent of `scale`; what `seed` does to each is for probe_stochastic.h to find out.
template <int byte>
QT_FN u32 convert_pair_stochastic(u32 old, float x, float y, u32 seed, float scale) {
  using Pair = float __attribute__((ext_vector_type(2)));
  return __builtin_amdgcn_cvt_scalef32_sr_pk_fp4_f32(old, Pair{x, y}, seed, scale, byte);
}

}  // namespace qt::hip

#endif
