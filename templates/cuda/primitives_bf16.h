// Packed bf16 arithmetic of sm_80 and later.
#ifndef QT_CUDA_PRIMITIVES_BF16_H
#define QT_CUDA_PRIMITIVES_BF16_H

#include "cuda/primitives.h"

namespace qt::cuda {

/// Two bf16 products a * b + c, subnormals kept. With c = -0 it is the product alone.
QT_FN u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  u32 d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace qt::cuda

#endif
