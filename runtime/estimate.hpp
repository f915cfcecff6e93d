// Estimate: about how long a call takes on a device, from its work alone.
#pragma once

#include "generator/problem.hpp"
#include "runtime/backend.hpp"

namespace quarterturn {

/// Seconds of one call at the geometric mean of the run-time range: the longer of its arithmetic
/// and its traffic, at what a unit of such a device sustains. For ranking problems by the time they
/// take, never for deciding between plans.
double estimated_seconds(const Problem& problem, const DeviceInfo& device);

}  // namespace quarterturn
