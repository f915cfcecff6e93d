// The portable kernels that are compiled into the library: they serve where there is no compiler,
// and they are the last rung of every ladder.
#pragma once

#include "generator/status.hpp"
#include "runtime/backend.hpp"

namespace quarterturn::cpu {

/// The target whose default plans these kernels can stand in for.
Target portable_target();

/// The kernel for one step of such a plan. `not_supported` for a family that has no prebuilt form.
Result<PrebuiltKernel> prebuilt_kernel(const Problem& step, const Variant& wanted);

}  // namespace quarterturn::cpu
