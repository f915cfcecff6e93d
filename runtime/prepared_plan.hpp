// PreparedPlan: what `prepare` made of a problem, ready to run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/executable.hpp"
#include "runtime/lookup_table.hpp"

namespace quarterturn {

/// Shareable between threads. The executable may be replaced once by a better one with the same
/// layouts, while others run; the first stays alive, so a run never waits.
class PreparedPlan {
 public:
  PreparedPlan(Problem problem, Match match, std::string place,
               std::shared_ptr<const Executable> executable, std::int64_t workspace_bytes)
      : problem_(std::move(problem)),
        place_(std::move(place)),
        workspace_bytes_(workspace_bytes),
        first_(std::move(executable)),
        match_(match),
        active_(first_.get()) {}

  const Problem& problem() const { return problem_; }
  const Executable& executable() const { return *active_.load(std::memory_order_acquire); }
  Match match() const { return match_.load(std::memory_order_relaxed); }
  /// Where the answer was stored; empty for heuristic and reference.
  const std::string& place() const { return place_; }
  /// The most over the extents, for whichever executable runs.
  std::int64_t workspace_bytes() const { return workspace_bytes_; }
  Layout a_layout() const { return first_->a_layout(); }
  Layout b_layout() const { return first_->b_layout(); }

  /// Runs from now on by `better`; at most once.
  void replace(std::shared_ptr<const Executable> better, Match match) {
    better_ = std::move(better);
    match_.store(match, std::memory_order_relaxed);
    active_.store(better_.get(), std::memory_order_release);
  }

  void count_run() const { runs_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t runs() const { return runs_.load(std::memory_order_relaxed); }

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
  const std::int64_t workspace_bytes_;
  const std::shared_ptr<const Executable> first_;
  std::shared_ptr<const Executable> better_;
  std::atomic<Match> match_;
  std::atomic<const Executable*> active_;
  mutable std::atomic<std::uint64_t> runs_{0};
  mutable std::array<std::atomic<std::uint64_t>, 64> seen_{};
};

}  // namespace quarterturn
