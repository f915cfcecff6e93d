#include "tuner/decide.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "generator/digest.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

// Differences below this are not looked for: code placement alone causes them.
constexpr double kLeastNoise = 0.002;

// What the control measured against itself: half the width of the interval for its median, and how
// far that median lies from the zero it should be.
double noise_floor(const std::vector<double>& self) {
  if (self.empty()) return kLeastNoise;
  const Interval interval = bootstrap_median(self, 0.95);
  return std::max({kLeastNoise, 0.5 * (interval.high - interval.low), std::fabs(median(self))});
}

// No spill, fewer registers, less shared memory, and at last a hash: the same order everywhere.
auto tie_rank(const Contender& contender) {
  return std::tuple(contender.spills, contender.registers, contender.shared_bytes,
                    hex(sha256(contender.plan)));
}

std::string percent(double log_speedup) {
  return fmt::format("{:+.1f} %", 100 * std::expm1(log_speedup));
}

}  // namespace

Decision decide(const std::vector<Contender>& contenders, const std::vector<double>& self,
                const DecisionSettings& settings) {
  Decision out;
  const double noise = noise_floor(self);
  const double zone = std::log1p(settings.zone);
  out.noise = std::expm1(noise);
  if (contenders.empty()) {
    out.reason = "no candidate was timed";
    return out;
  }
  std::vector<double> medians, bounds;
  for (const auto& contender : contenders) {
    medians.push_back(median(contender.log_speedups));
    // Each of several finalists is a chance to be wrong.
    bounds.push_back(median_lower_bound(contender.log_speedups,
                                        settings.error / static_cast<double>(contenders.size())));
  }
  const auto report = [&](std::size_t i) {
    const auto& samples = contenders[i].log_speedups;
    const Interval interval = bootstrap_median(samples, settings.confidence);
    out.speedup = std::exp(medians[i]);
    out.low = std::exp(interval.low);
    out.high = std::exp(interval.high);
  };
  const auto qualifies = [&](std::size_t i) { return bounds[i] > noise && medians[i] > zone; };

  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (qualifies(i) && (!best || medians[i] > medians[*best])) best = i;
  if (!best) {
    const auto fastest = static_cast<std::size_t>(std::max_element(medians.begin(), medians.end()) -
                                                  medians.begin());
    report(fastest);
    out.settled = medians[fastest] <= std::max(zone, noise);
    out.reason =
        out.settled
            ? fmt::format("the default: the best other plan gains {}, within {:.1f} %",
                          percent(medians[fastest]), 100 * std::max(settings.zone, out.noise))
            : fmt::format("the default: {} measured, but not beyond doubt",
                          percent(medians[fastest]));
    return out;
  }
  const double tied = medians[*best] - std::max(zone, noise);
  std::size_t chosen = *best;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (qualifies(i) && medians[i] >= tied) {
      out.ties.push_back(i);
      if (tie_rank(contenders[i]) < tie_rank(contenders[chosen])) chosen = i;
    }
  out.winner = chosen;
  report(chosen);
  for (const std::size_t i : out.ties) {
    const auto& samples = contenders[i].log_speedups;
    const double most = bootstrap_median(samples, settings.confidence).high;
    if (i != chosen) out.regret = std::max(out.regret, std::expm1(most - medians[chosen]));
  }
  out.reason = fmt::format("{} over the default, at least {}", percent(medians[chosen]),
                           percent(bounds[chosen]));
  return out;
}

}  // namespace quarterturn
