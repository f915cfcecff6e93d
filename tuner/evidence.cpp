#include "tuner/evidence.hpp"

#include <algorithm>
#include <cmath>

namespace quarterturn {
namespace {

constexpr double kWidthOfInterval = 2 * 1.96;  // a trial's 95 % interval in standard errors
constexpr double kSure = 3.29;                 // one error in 2,000 a plan
constexpr double kLeastError = 1e-3;           // no trial knows its speed-up better than this
constexpr double kAssumedNoise = 2e-3;

bool is_usable(const Trial& trial) {
  return is_evidence(trial.kind) && trial.status == TrialStatus::ok && trial.ratio > 0 &&
         trial.ratio_low > 0 && trial.ratio_high >= trial.ratio_low;
}

// "0.10.2" after "0.9.9".
std::vector<std::int64_t> version_of(const std::string& text) {
  std::vector<std::int64_t> out{0};
  for (const char c : text) {
    if (c == '.')
      out.push_back(0);
    else if (c >= '0' && c <= '9')
      out.back() = out.back() * 10 + (c - '0');
  }
  return out;
}

}  // namespace

void PlanEvidence::add(const Trial& trial) {
  const double width = std::log(trial.ratio_high) - std::log(trial.ratio_low);
  const double error = std::max(width / kWidthOfInterval, kLeastError);
  const double precision = 1 / (error * error);
  sum_ += precision * std::log(trial.ratio);
  weight_ += precision;
  if (!latest_ || std::tie(latest_->started, latest_->uuid) < std::tie(trial.started, trial.uuid))
    latest_ = &trial;
}

double PlanEvidence::error() const { return 1 / std::sqrt(weight_); }

bool PlanEvidence::beats_default(double noise, double zone) const {
  return mean() - kSure * error() > noise && mean() > std::log1p(zone);
}

Evidence evidence_of(const std::vector<Trial>& trials) {
  std::vector<std::int64_t> newest;
  // Three trials after an update confirm an answer; they do not take the place of its search.
  for (const auto& trial : trials)
    if (is_usable(trial) && trial.kind == TrialKind::timing)
      newest = std::max(newest, version_of(trial.env->library));
  Evidence out;
  out.noise = kAssumedNoise;
  for (const auto& trial : trials) {
    out.count += is_evidence(trial.kind);
    if (!is_usable(trial) || version_of(trial.env->library) < newest) continue;
    out.plans[trial.plan].add(trial);
    out.noise = std::max(out.noise, trial.noise);
    if (!out.latest || out.latest->started < trial.started) out.latest = &trial;
  }
  return out;
}

}  // namespace quarterturn
