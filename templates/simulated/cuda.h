// What is read in front of CUDA kernel text to run it on the simulated machine: every primitive
// header's simulated body, under the guard of the one with PTX. The text itself stays as it is.
#ifndef QT_SIMULATED_CUDA_H
#define QT_SIMULATED_CUDA_H

#include "simulated/cuda/primitives.h"
#include "simulated/cuda/primitives_bf16.h"
#include "simulated/cuda/primitives_mxf4.h"
#include "simulated/cuda/primitives_sm100.h"
#include "simulated/cuda/primitives_sm90.h"
#include "simulated/cuda/primitives_stochastic.h"
#include "simulated/cuda/primitives_wgmma.h"

#endif
