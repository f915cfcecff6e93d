// The quantisers of quantize.h, quantize_tiles.h and quantize_squares.h with rounding sr_cvt_rs:
// sm_100a's and sm_103a's own stochastic rounding, a word of noise for four elements.
#ifndef QT_CUDA_QUANTIZE_CVT_RS_H
#define QT_CUDA_QUANTIZE_CVT_RS_H

#include "cuda/primitives_stochastic.h"
#include "cuda/quantize.h"
#include "cuda/quantize_squares.h"
#include "cuda/quantize_tiles.h"

namespace qt::cuda {

template <>
struct Instruction<Rounding::sr_cvt_rs> {
  static constexpr u32 elements_of_call = 16;
  QT_FN static u32 codes(const float (&y)[8], const Philox& call, u32 part) {
    return convert_e2m1x4_stochastic(y[3], y[2], y[1], y[0], call.word[2u * part]) |
           convert_e2m1x4_stochastic(y[7], y[6], y[5], y[4], call.word[2u * part + 1u]) << 16;
  }
};

}  // namespace qt::cuda

#endif
