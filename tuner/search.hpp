// Search: which plans are tried next. Knows nothing of devices or files, so that any strategy can
// be replayed on stored trials.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/records.hpp"
#include "generator/family.hpp"
#include "tuner/plan_features.hpp"

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
  /// Whether what is known suffices, though it asked for plans that are not tried yet.
  virtual bool satisfied(const std::vector<Outcome>& so_far) const = 0;
  /// Plans it might still want, for estimates.
  virtual std::size_t remaining() const = 0;
};

/// What is known of another problem of the same kind, or of this one on another device.
struct Neighbour {
  Problem problem;
  std::vector<Outcome> outcomes;
  std::vector<PlanCost> costs;  ///< predicted, one for each outcome; may be missing
};

/// What a strategy may draw from.
struct Space {
  Problem problem;
  Target target;
  std::vector<Plan> plans = {};  ///< legal ones, in the analytic model's order, the default first
  std::vector<Plan> seeds = {};  ///< winners of neighbours, tried first where they are legal here
  std::vector<Neighbour> neighbours = {};
  std::int64_t units = 0;                               ///< that run tiles side by side
  std::function<PlanCost(const Plan&)> cost = nullptr;  ///< null: asks the families
};

struct SearchSettings {
  std::size_t most =
      0;  ///< plans at all; 0 = a tenth of the kernels that there are, and 24 at least
  std::size_t patience = 24;  ///< plans in a row without a gain of 1 % over the best so far
  std::uint64_t seed = 1;
};

/// Learns from what was tried here and by neighbours: a forest says what a plan may gain, another
/// how likely it fails. Begins with seeds, the best few of each family by prediction and some drawn
/// at random; then mostly what some of the forest's trees think best, so that they disagree where
/// little is known, and now and then what they disagree on most. Equal questions get equal answers.
std::unique_ptr<Strategy> learned(const Space& space, const SearchSettings& settings);

/// The analytic model's order, seeds first, until patience runs out. `most` 0 = all.
std::unique_ptr<Strategy> in_predicted_order(const Space& space, const SearchSettings& settings);

/// At random: what any other strategy must beat.
std::unique_ptr<Strategy> at_random(const Space& space, const SearchSettings& settings);

/// Every plan.
std::unique_ptr<Strategy> exhaustive(const Space& space);

/// Plans that `learned` tries at most in a space, when nothing else is said.
std::size_t standard_budget(const Space& space);

/// The legal seeds, then all plans, each once. `plans` first: the best few of each family that
/// multiplies, as models err more between families, whose speed may depend on the data, than within
/// one.
std::vector<Plan> ordered_plans(const Space& space);
/// How many of `plans` are such a family's best few.
std::size_t leading_plans(const std::vector<Plan>& plans);

}  // namespace quarterturn
