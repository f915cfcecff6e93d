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

std::uint64_t MissLog::Watched::waiting() const {
  const auto held = plan.lock();
  const auto last = ended->load(std::memory_order_acquire);
  if (!held && last == kRunning) return 0;
  return std::max(held ? held->runs() : last, this->taken + (is_new ? 1 : 0)) - this->taken;
}

MissLog::Totals MissLog::totals() {
  const std::lock_guard lock(mutex_);
  Totals out = taken_;
  for (const auto& one : watched_) {
    const auto calls = one.waiting();
    out.calls += calls;
    out.seconds += one.seconds * static_cast<double>(calls);
  }
  return out;
}

std::vector<Miss> MissLog::take(const std::string& target, const std::string& performance_class) {
  std::vector<Miss> out;
  const std::lock_guard lock(mutex_);
  std::erase_if(watched_, [&](Watched& one) {
    const bool was_held = !one.plan.expired();
    // Between its last owner and its end: the next time knows.
    if (!was_held && one.ended->load(std::memory_order_acquire) == kRunning) return false;
    if (const auto calls = one.waiting(); calls > 0) {
      const double seconds = one.seconds * static_cast<double>(calls);
      out.push_back({one.problem, target, performance_class, static_cast<std::int64_t>(calls),
                     static_cast<std::int64_t>(1e9 * seconds)});
      one.taken += calls;
      taken_.calls += calls;
      taken_.seconds += seconds;
    }
    one.is_new = false;
    return !was_held;
  });
  return out;
}

}  // namespace quarterturn
