// Missed: the problems that programs asked for on a device without getting a valid tuned answer.
#pragma once

#include "runtime/context.hpp"
#include "tuner/session.hpp"
#include "tuner/workload.hpp"

namespace quarterturn {

/// By the time that they took, most first. Those that this version cannot read or compute are
/// refused, each with its reason.
Result<Workload> missed_workload(Context& context);

/// Takes a problem off that list which has its answer now; an unfinished one stays on it.
Status clear_missed(Context& context, const Tuned& tuned);

}  // namespace quarterturn
