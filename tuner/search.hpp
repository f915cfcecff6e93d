// Search: which plans are tried next. Knows nothing of devices or files, so that any strategy can
// be replayed on stored trials.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/records.hpp"
#include "generator/family.hpp"

namespace quarterturn {

/// What became of a plan that was tried.
struct Outcome {
  Plan plan;
  TrialStatus status = TrialStatus::ok;
  double log_speedup = 0;  ///< over the default, where status is ok
  std::int64_t registers = 0, spills = 0, shared_bytes = 0;
};

/// A strategy for one problem on one target. It is told everything that was tried, and answers with
/// what to try next; it must not answer with a plan a second time.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual std::string_view name() const = 0;
  /// At most `most` plans; none when it wants no more.
  virtual std::vector<Plan> next(const std::vector<Outcome>& so_far, std::size_t most) = 0;
  /// Plans it might still want, for estimates.
  virtual std::size_t remaining() const = 0;
};

/// What a strategy may draw from.
struct Space {
  Problem problem;
  Target target;
  std::vector<Plan> plans;  ///< legal ones, in the analytic model's order, the default first
  std::vector<Plan> seeds;  ///< winners of neighbours, tried first where they are legal here
};

struct InOrderSettings {
  std::size_t most = 48;      ///< plans at all
  std::size_t patience = 16;  ///< plans in a row without a gain of 1 % over the best so far
};

/// The analytic model's order, seeds first, until patience runs out.
std::unique_ptr<Strategy> in_predicted_order(const Space& space, const InOrderSettings& settings);

/// Every plan.
std::unique_ptr<Strategy> exhaustive(const Space& space);

}  // namespace quarterturn
