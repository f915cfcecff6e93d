// Replay: runs a strategy on a recorded space, offline, and says what its answer lacks and what it
// cost. The same arguments give the same result on every machine.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

#include "tuner/recorded_space.hpp"

namespace quarterturn {

struct ReplayResult {
  std::size_t plans = 0, tried = 0;       ///< recorded ones; those that the strategy asked for
  std::size_t kernels = 0, compiled = 0;  ///< distinct ones of all plans; of those tried
  double compile_seconds = 0;             ///< of those tried, on one compiler
  double regret = 0;  ///< how much slower its best plan is than the best recorded one, relatively
  double compiled_share() const {
    return kernels == 0 ? 0 : static_cast<double>(compiled) / static_cast<double>(kernels);
  }
};

/// `batch`: plans that are in work at once, whose results the strategy does not know when it asks
/// for more.
ReplayResult replay(const RecordedSpace& recording, Strategy& strategy, std::size_t batch);

/// How well the families' own models, which give the default where nothing was measured, order the
/// recorded plans: rank_correlation of predicted cost and measured time.
double model_rank_correlation(const RecordedSpace& recording);

/// "learned", "predicted", "random", "exhaustive"; null for other names.
std::unique_ptr<Strategy> strategy_by_name(std::string_view name, const Space& space,
                                           const SearchSettings& settings);

/// A recording as what is known of a neighbour, for strategies that learn from such.
Neighbour neighbour_from(const RecordedSpace& recording);

/// What names the kernel of a step, compiled once for all values of parameters that only a launch
/// needs.
std::string kernel_name(const Problem& problem, const Target& target, const Plan& plan,
                        const Step& step);

}  // namespace quarterturn
