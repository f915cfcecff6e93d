// Race: which candidates are timed again, until a few are left for the decision.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tuner/measure.hpp"

namespace quarterturn {

struct RaceSettings {
  std::int64_t screening_rounds = 2;  ///< for everyone
  std::int64_t middle_rounds = 4;     ///< further ones, for the best quarter
  std::size_t middle_least = 6;       ///< that quarter has at least so many
  std::size_t finalists = 3;
  std::int64_t final_rounds = 16;  ///< new samples, the only ones that decide
  std::int64_t final_most = 48;    ///< where 16 leave it open
};

/// Asked between rounds: true ends the race with what is known.
using StopRace = std::function<bool()>;

/// The candidates that are alive, fastest first by the median of their log speed-ups; equal ones
/// keep their order.
std::vector<std::size_t> ranking(const PairedTimer& timer,
                                 const std::vector<std::size_t>& candidates);

/// Times every candidate a little; called for each batch of candidates as it becomes ready.
Status screen(PairedTimer& timer, const std::vector<std::size_t>& candidates,
              const RaceSettings& settings, const StopRace& stop);

/// Halves the field and returns the finalists, fastest first. The default is no candidate.
Result<std::vector<std::size_t>> halve(PairedTimer& timer,
                                       const std::vector<std::size_t>& candidates,
                                       const RaceSettings& settings, const StopRace& stop);

/// Measures the finalists anew: being chosen from many for a lucky time must not count. `settled`
/// says after final_rounds whether more rounds could change anything.
Status confirm(PairedTimer& timer, const std::vector<std::size_t>& finalists,
               const RaceSettings& settings, const StopRace& stop,
               const std::function<bool()>& settled);

}  // namespace quarterturn
