// What is read in front of HIP kernel text to run it on the simulated machine. Texts that both
// vendors share run on CUDA's simulated bodies: their warps are 32 lanes, as halves of wavefronts
// are.
#ifndef QT_SIMULATED_HIP_H
#define QT_SIMULATED_HIP_H

#include "simulated/cuda/primitives.h"
#include "simulated/cuda/primitives_bf16.h"
#include "simulated/hip/primitives.h"
#include "simulated/hip/primitives_stochastic.h"

#endif
