// prepare_many: a whole model's problems prepared at once, compilers working side by side.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/context.hpp"

namespace quarterturn {

/// As Context::prepare for each problem in order, but what they have to compile is compiled first,
/// by as many threads as this process has cores. Code is loaded from the calling thread, as its
/// current device context decides.
std::vector<Result<std::shared_ptr<PreparedPlan>>> prepare_many(Context& context,
                                                                std::span<const Problem> problems);

}  // namespace quarterturn
