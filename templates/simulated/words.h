// How a GPU's own words for functions and kernels read where a host compiler reads kernel text.
#ifndef QT_SIMULATED_WORDS_H
#define QT_SIMULATED_WORDS_H

#include "mxfp4/platform.h"

// Not static, as platform.h has it on the host: kernel text marks member functions with it too.
// Objects of kernels are loaded apart from each other, so nothing is merged.
#undef QT_FN
#define QT_FN [[maybe_unused]] inline

#define __global__ __attribute__((visibility("default")))
#define __device__ __attribute__((visibility("default")))
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline

#endif
