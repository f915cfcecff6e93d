// What sm_100a and sm_103a alone have: conversion to E2M1 by the hardware's own stochastic
// rounding.
#ifndef QT_CUDA_PRIMITIVES_STOCHASTIC_H
#define QT_CUDA_PRIMITIVES_STOCHASTIC_H

#include "mxfp4/platform.h"

namespace qt::cuda {

/// Codes of four values, those of `f` in the low four bits, then `e`, `b` and `a`; what `bits` do
/// to each is for probe_stochastic.h to find out.
QT_FN u32 convert_e2m1x4_stochastic(float a, float b, float e, float f, u32 bits) {
  u16 codes;
  asm("cvt.rs.satfinite.e2m1x4.f32 %0, {%1, %2, %3, %4}, %5;"
      : "=h"(codes)
      : "f"(a), "f"(b), "f"(e), "f"(f), "r"(bits));
  return codes;
}

}  // namespace qt::cuda

#endif
