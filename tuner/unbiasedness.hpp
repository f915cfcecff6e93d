// Whether stochastic rounding is unbiased, as a test of what a device computed.
#pragma once

#include "runtime/executable.hpp"

namespace quarterturn {

/// Each quantiser of a plan that rounds stochastically without clipping: the mean over many seeds
/// against the exact value, element by element. `worst_z` becomes the largest |z| where that is
/// larger; rejected where it is no chance. Quantisers that nothing here can read back, or decode
/// without their neighbours, are passed over: admission compares codes and products.
Status check_unbiased(Backend& backend, const Problem& problem, const Plan& plan, double& worst_z);

}  // namespace quarterturn
