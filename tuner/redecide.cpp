#include "tuner/redecide.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cache/rows.hpp"
#include "generator/digest.hpp"
#include "generator/family.hpp"

namespace quarterturn {
namespace {

constexpr double kWidthOfInterval = 2 * 1.96;  // a trial's 95 % interval in standard errors
constexpr double kSure = 3.29;                 // one error in 2,000 a plan
constexpr double kLeastError = 1e-3;           // no trial knows its speed-up better than this
constexpr double kLeastNoise = 2e-3;

struct Known {
  std::string plan;
  double sum = 0, weight = 0;  // of log speed-ups, by precision
  const Trial* latest = nullptr;

  double mean() const { return sum / weight; }
  double error() const { return 1 / std::sqrt(weight); }

  void add(const Trial& trial) {
    const double width = std::log(trial.ratio_high) - std::log(trial.ratio_low);
    const double error = std::max(width / kWidthOfInterval, kLeastError);
    const double precision = 1 / (error * error);
    sum += precision * std::log(trial.ratio);
    weight += precision;
    if (!latest || std::tie(latest->started, latest->uuid) < std::tie(trial.started, trial.uuid))
      latest = &trial;
  }
};

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

std::optional<std::string> default_of(const Undecided& entry) {
  const auto problem = parse_problem(entry.problem);
  const auto target = parse_target(entry.target);
  if (!problem.ok() || !target.ok()) return std::nullopt;
  const auto plan = default_plan(*problem, *target);
  if (!plan.ok()) return std::nullopt;
  return plan->text();
}

// As decide() breaks ties.
auto tie_rank(const Known& known) {
  return std::tuple(known.latest->spills, known.latest->registers, known.latest->shared_bytes,
                    hex(sha256(known.plan)));
}

std::optional<Winner> decide(const Undecided& entry, const std::vector<Trial>& trials,
                             double zone) {
  std::vector<std::int64_t> newest;
  for (const auto& trial : trials)
    if (is_usable(trial)) newest = std::max(newest, version_of(trial.env->library));
  std::map<std::string, Known> all;
  double noise = kLeastNoise;
  const Trial* latest = nullptr;
  std::int64_t evidence = 0;
  for (const auto& trial : trials) {
    evidence += is_evidence(trial.kind);
    if (!is_usable(trial) || version_of(trial.env->library) != newest) continue;
    auto& known = all[trial.plan];
    known.plan = trial.plan;
    known.add(trial);
    noise = std::max(noise, trial.noise);
    if (!latest || latest->started < trial.started) latest = &trial;
  }
  if (!latest) return std::nullopt;
  const auto qualifies = [&](const Known& known) {
    return known.mean() - kSure * known.error() > noise && known.mean() > std::log1p(zone);
  };
  const Known* best = nullptr;
  for (const auto& [plan, known] : all)
    if (qualifies(known) && (!best || known.mean() > best->mean())) best = &known;
  Winner out;
  out.problem = entry.problem;
  out.noise = noise;
  out.evidence = evidence;
  out.decided = rows::nanoseconds_now();
  if (!best) {
    const auto plan = default_of(entry);
    if (!plan) return std::nullopt;
    out.plan = *plan;
    out.env = latest->env;
    out.choice = Choice::fallback;
    out.certificate = "decided=from_trials";
    return out;
  }
  const Known* chosen = best;
  for (const auto& [plan, known] : all) {
    if (!qualifies(known) || known.mean() < best->mean() - std::max(std::log1p(zone), noise))
      continue;
    out.ties += (out.ties.empty() ? "" : "\n") + plan;
    if (tie_rank(known) < tie_rank(*chosen)) chosen = &known;
  }
  out.plan = chosen->plan;
  out.env = chosen->latest->env;
  out.choice = Choice::tuned;
  out.speedup = std::exp(chosen->mean());
  out.speedup_low = std::exp(chosen->mean() - 1.96 * chosen->error());
  out.speedup_high = std::exp(chosen->mean() + 1.96 * chosen->error());
  out.median_ns = chosen->latest->median_ns;
  out.regret = std::expm1(best->mean() - chosen->mean());
  out.certificate = "decided=from_trials";
  return out;
}

}  // namespace

Result<Redecided> redecide(Database& database, double zone) {
  const auto undecided = database.undecided();
  if (!undecided.ok()) return undecided.status();
  Redecided out;
  std::vector<Winner> winners;
  for (const auto& entry : *undecided) {
    ++out.problems;
    const auto trials = database.trials(entry.problem, entry.target, entry.performance_class);
    if (!trials.ok()) return trials.status();
    const auto before = database.winner_of(entry.problem, entry.target, entry.performance_class);
    if (!before.ok()) return before.status();
    auto winner = decide(entry, *trials, zone);
    if (!winner) {
      ++out.undecidable;
      continue;
    }
    out.changed += !before->has_value() || (*before)->plan != winner->plan;
    winners.push_back(std::move(*winner));
  }
  if (auto status = database.set_winners(winners); !status.ok()) return status;
  return out;
}

}  // namespace quarterturn
