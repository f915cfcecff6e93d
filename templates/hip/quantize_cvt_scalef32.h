// The quantisers that both vendors share with rounding sr_cvt_scalef32: gfx950's own stochastic
// rounding, a word of noise for two elements. Values come scaled, so that the instruction's own
// scale is 1; codes go to the lowest byte of a word of their own, as what other bytes of the
// destination keep is in doubt (probe_stochastic.h).
#ifndef QT_HIP_QUANTIZE_CVT_SCALEF32_H
#define QT_HIP_QUANTIZE_CVT_SCALEF32_H

#include "cuda/quantize.h"
#include "cuda/quantize_squares.h"
#include "cuda/quantize_tiles.h"
#include "hip/primitives.h"
#include "hip/primitives_stochastic.h"

namespace qt::cuda {

template <>
struct Instruction<Rounding::sr_cvt_scalef32> {
  static constexpr u32 elements_of_call = 8;
  QT_FN static u32 codes(const float (&y)[8], const Philox& call, u32) {
    u32 out = 0;
    QT_UNROLL
    for (u32 i = 0; i < 4u; ++i)
      out |= (hip::convert_pair_stochastic<0>(0u, y[2u * i], y[2u * i + 1u], call.word[i], 1.0f) &
              255u)
             << (8u * i);
    return out;
  }
};

}  // namespace qt::cuda

namespace qt::hip {

using cuda::quantize;
using cuda::quantize_squares;
using cuda::quantize_tiles;

}  // namespace qt::hip

#endif
