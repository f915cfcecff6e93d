// Simulated bodies of cuda/primitives_bf16.h.
#ifndef QT_CUDA_PRIMITIVES_BF16_H
#define QT_CUDA_PRIMITIVES_BF16_H

#include "simulated/cuda/primitives.h"

namespace qt::cuda {

QT_FN u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  const auto one = [](u32 x, u32 y, u32 z) -> u32 {
    // The product is exact in double; a sum that is not is rounded to odd, which the second
    // rounding cannot be misled by.
    const double product = double(float_of(x << 16)) * double(float_of(y << 16));
    const double addend = double(float_of(z << 16)), sum = product + addend;
    const double back = sum - product;
    const double rest = (product - (sum - back)) + (addend - back);
    u64 bits = __builtin_bit_cast(u64, sum);
    if ((rest > 0.0 || rest < 0.0) && (bits & 1u) == 0u)
      bits += (rest > 0.0) == (sum > 0.0) ? 1u : ~0ull;
    const double odd = __builtin_bit_cast(double, bits);
    float nearest = float(odd);
    // And so for binary32 on the way to bf16.
    if (double(nearest) != odd && !std::isnan(odd) && !std::isinf(nearest)) {
      u32 cut = bits_of(nearest);
      if (std::fabs(double(nearest)) > std::fabs(odd)) --cut;
      nearest = float_of(cut | 1u);
    }
    return simulated_formats::bf16_of(nearest);
  };
  return one(a & 0xffffu, b & 0xffffu, c & 0xffffu) | one(a >> 16, b >> 16, c >> 16) << 16;
}

}  // namespace qt::cuda

#endif
