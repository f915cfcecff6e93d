// PreparedPlan: what `prepare` made of a problem, ready to run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/executable.hpp"
#include "runtime/lookup_table.hpp"

namespace quarterturn {

/// Runs of a plan, as they stand when it ends: what outlives it, for the record of misses.
using FinalRuns = std::atomic<std::uint64_t>;

/// Shareable between threads; runs by the same kernels as long as it lives.
class PreparedPlan {
 public:
  PreparedPlan(Problem problem, Match match, std::string place,
               std::shared_ptr<const Executable> executable)
      : problem_(std::move(problem)),
        place_(std::move(place)),
        executable_(std::move(executable)),
        match_(match) {}
  ~PreparedPlan() {
    if (final_runs_) final_runs_->store(runs(), std::memory_order_release);
  }
  PreparedPlan(const PreparedPlan&) = delete;
  PreparedPlan& operator=(const PreparedPlan&) = delete;

  const Problem& problem() const { return problem_; }
  const Executable& executable() const { return *executable_; }
  Match match() const { return match_; }
  /// Where the answer was stored; empty for heuristic and reference.
  const std::string& place() const { return place_; }
  /// The most over the extents.
  std::int64_t workspace_bytes() const { return executable_->workspace_bytes(); }
  Layout a_layout() const { return executable_->a_layout(); }
  Layout b_layout() const { return executable_->b_layout(); }

  void count_run() const { runs_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t runs() const { return runs_.load(std::memory_order_relaxed); }
  /// Before anybody else has the plan.
  void report_runs_to(std::shared_ptr<FinalRuns> counter) { final_runs_ = std::move(counter); }

  /// True the first time that a call of these sizes is seen (within a small set): for debug logs.
  /// No allocation, no lock.
  bool is_new_call(std::uint64_t sizes_hash) const {
    const auto wanted = sizes_hash | 1;  // 0 marks a free place
    for (auto& place : seen_) {
      std::uint64_t now = place.load(std::memory_order_relaxed);
      if (now == 0 && place.compare_exchange_strong(now, wanted, std::memory_order_relaxed))
        return true;
      if (now == wanted) return false;
    }
    return false;
  }

 private:
  const Problem problem_;
  const std::string place_;
  const std::shared_ptr<const Executable> executable_;
  const Match match_;
  std::shared_ptr<FinalRuns> final_runs_;
  mutable std::atomic<std::uint64_t> runs_{0};
  mutable std::array<std::atomic<std::uint64_t>, 64> seen_{};
};

}  // namespace quarterturn
