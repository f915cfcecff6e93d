#include "runtime/misses.hpp"

#include <algorithm>
#include <limits>

namespace quarterturn {
namespace {

constexpr std::uint64_t kRunning = std::numeric_limits<std::uint64_t>::max();

}  // namespace

void MissLog::add(const std::shared_ptr<PreparedPlan>& plan, double seconds_a_call) {
  const std::lock_guard lock(mutex_);
  if (watched_.size() >= kMost) return;
  auto ended = std::make_shared<FinalRuns>(kRunning);
  plan->report_runs_to(ended);
  watched_.push_back({plan, std::move(ended), plan->problem().key(), seconds_a_call});
}

void MissLog::add(const std::string& problem, double seconds_a_call) {
  const std::lock_guard lock(mutex_);
  if (watched_.size() >= kMost) return;
  watched_.push_back({{}, std::make_shared<FinalRuns>(0), problem, seconds_a_call});
}

std::vector<Miss> MissLog::take(const std::string& target, const std::string& performance_class) {
  std::vector<Miss> out;
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](Watched& one) {
    const auto plan = one.plan.lock();
    const auto last = one.ended->load(std::memory_order_acquire);
    // Between its last owner and its end: the next time knows.
    if (!plan && last == kRunning) return false;
    const auto runs = plan ? plan->runs() : last;
    const auto least = one.taken + (one.is_new ? 1 : 0);
    if (const auto now = std::max(runs, least); now > one.taken) {
      const auto calls = static_cast<std::int64_t>(now - one.taken);
      out.push_back({one.problem, target, performance_class, calls,
                     static_cast<std::int64_t>(1e9 * one.seconds * static_cast<double>(calls))});
      one.taken = now;
    }
    one.is_new = false;
    return !plan;
  });
  return out;
}

}  // namespace quarterturn
