// Checks a call's arguments against its plan and fills the kernels' argument block.
#pragma once

#include <cstdint>

#include "runtime/include/quarterturn/qturn.h"
#include "runtime/prepared_plan.hpp"
#include "templates/args.h"

namespace quarterturn {

struct Call {
  enum class Work { some, none };
  Work work = Work::some;  ///< none: an empty result, and nothing to check further
  qt_args args{};
  std::int64_t row0_b = 0;
};

/// `b` is the operand to use as B: the caller's, or a prepared weight's. Allocates only for the
/// message of a failure, which names the argument.
Status bind(const PreparedPlan& plan, const qturn_args& given, const qturn_operand& b, Call& out);

/// Group sizes that lie in host memory: inside the operand, and ends in ascending order.
Status check_groups(const Problem& problem, const qt_args& args);

/// What a workspace pointer may need to be moved by to be aligned.
constexpr std::int64_t kWorkspaceAlignment = 256;

}  // namespace quarterturn
