// MissLog: which problems were asked for without a valid decision, and how often they ran since:
// what `qturn tune --from-misses` feeds on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache/records.hpp"
#include "runtime/prepared_plan.hpp"

namespace quarterturn {

/// Thread-safe. Runs are counted by the plans themselves: nothing here is on their path.
class MissLog {
 public:
  static constexpr std::size_t kMost = 4096;  ///< plans that are watched; further ones are not

  /// Follows a plan's runs until it ends. Before anybody else has the plan.
  void add(const std::shared_ptr<PreparedPlan>& plan, double seconds_a_call);
  /// A problem that was refused counts as one call.
  void add(const std::string& problem, double seconds_a_call);

  struct Totals {
    std::uint64_t calls = 0;
    double seconds = 0;  ///< by estimate
  };
  /// Of all that was added, taken or not.
  Totals totals();

  /// What happened since the last time, one row a plan: each counts at least once, as somebody
  /// asked for it.
  std::vector<Miss> take(const std::string& target, const std::string& performance_class);

 private:
  struct Watched {
    std::weak_ptr<PreparedPlan> plan;
    std::shared_ptr<FinalRuns> ended;
    std::string problem;
    double seconds = 0;
    std::uint64_t taken = 0;
    bool is_new = true;

    /// Calls that were not taken yet; nothing between a plan's last owner and its end.
    std::uint64_t waiting() const;
  };

  std::mutex mutex_;
  Totals taken_;
  std::vector<Watched> watched_;
};

}  // namespace quarterturn
