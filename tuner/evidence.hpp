// Evidence: what the stored trials of a problem together say of each plan's speed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cache/records.hpp"

namespace quarterturn {

/// A plan's log speed-up over the default, averaged over its trials by their precision.
class PlanEvidence {
 public:
  void add(const Trial& trial);

  double mean() const { return sum_ / weight_; }
  double error() const;  ///< standard error of the mean
  const Trial& latest() const { return *latest_; }
  /// Surely faster than the default by more than the noise floor, and by more than `zone`.
  bool beats_default(double noise, double zone) const;

 private:
  double sum_ = 0, weight_ = 0;
  const Trial* latest_ = nullptr;
};

struct Evidence {
  std::map<std::string, PlanEvidence> plans;  ///< by Plan::text()
  double noise = 0;                           ///< the highest floor of the trials
  const Trial* latest = nullptr;              ///< null: nothing is known
  std::int64_t count = 0;                     ///< trials of a kind that decisions rest on
};

/// Trials of older library versions than the newest that searched are left out, as their default
/// may have been another plan. The answer depends on the set of trials, not on their order; it
/// points into `trials`.
Evidence evidence_of(const std::vector<Trial>& trials);

}  // namespace quarterturn
