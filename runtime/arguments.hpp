// Checks a call's arguments against its plan and fills the kernels' argument block.
#pragma once

#include <atomic>
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

/// The last call that was found good: one that repeats it byte for byte needs no checks. A thread
/// that finds it taken by another goes without.
class LastCall {
 public:
  /// Whether `given` with `b` is that call; fills `out`.
  bool recall(const qturn_args& given, const qturn_operand& b, Call& out) const;
  void keep(const qturn_args& given, const qturn_operand& b, const Call& call) const;

 private:
  mutable std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
  mutable bool known_ = false;
  mutable qturn_args given_{};
  mutable qturn_operand b_{};
  mutable Call call_;
};

/// Group sizes that lie in host memory: inside the operand, and ends in ascending order.
Status check_groups(const Problem& problem, const qt_args& args);

/// What a workspace pointer may need to be moved by to be aligned.
constexpr std::int64_t kWorkspaceAlignment = 256;

}  // namespace quarterturn
