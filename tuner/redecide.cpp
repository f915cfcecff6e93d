#include "tuner/redecide.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cache/rows.hpp"
#include "generator/digest.hpp"
#include "generator/family.hpp"
#include "tuner/evidence.hpp"
#include "tuner/site.hpp"

namespace quarterturn {
namespace {

std::optional<std::string> default_of(const Undecided& entry) {
  const auto problem = parse_problem(entry.problem);
  const auto target = parse_target(entry.target);
  if (!problem.ok() || !target.ok()) return std::nullopt;
  const auto plan = default_plan(*problem, *target);
  if (!plan.ok()) return std::nullopt;
  return plan->text();
}

// As decide() breaks ties.
auto tie_rank(const std::string& plan, const Trial& trial) {
  return std::tuple(trial.spills, trial.registers, trial.shared_bytes, hex(sha256(plan)));
}

std::optional<Winner> decide(const Undecided& entry, const std::vector<Trial>& trials,
                             double zone) {
  const Evidence known = evidence_of(trials);
  if (!known.latest) return std::nullopt;
  const auto qualifies = [&](const PlanEvidence& plan) {
    return plan.beats_default(known.noise, zone);
  };
  auto best = known.plans.end();
  for (auto it = known.plans.begin(); it != known.plans.end(); ++it)
    if (qualifies(it->second) &&
        (best == known.plans.end() || it->second.mean() > best->second.mean()))
      best = it;
  Winner out;
  out.problem = entry.problem;
  out.noise = known.noise;
  out.evidence = known.count;
  out.decided = rows::nanoseconds_now();
  out.certificate = "decided=from_trials";
  if (best == known.plans.end()) {
    const auto plan = default_of(entry);
    if (!plan) return std::nullopt;
    out.plan = *plan;
    out.env = known.latest->env;
    out.choice = Choice::fallback;
    return out;
  }
  auto chosen = best;
  for (auto it = known.plans.begin(); it != known.plans.end(); ++it) {
    if (!qualifies(it->second) ||
        it->second.mean() < best->second.mean() - std::max(std::log1p(zone), known.noise))
      continue;
    out.ties += (out.ties.empty() ? "" : "\n") + it->first;
    if (tie_rank(it->first, it->second.latest()) < tie_rank(chosen->first, chosen->second.latest()))
      chosen = it;
  }
  const PlanEvidence& plan = chosen->second;
  out.plan = chosen->first;
  out.env = plan.latest().env;
  out.choice = Choice::tuned;
  out.speedup = std::exp(plan.mean());
  out.speedup_low = std::exp(plan.mean() - 1.96 * plan.error());
  out.speedup_high = std::exp(plan.mean() + 1.96 * plan.error());
  out.median_ns = plan.latest().median_ns;
  out.regret = std::expm1(best->second.mean() - plan.mean());
  return out;
}

}  // namespace

Result<Redecided> redecide(Database& database, double zone) {
  const auto undecided = database.undecided();
  if (!undecided.ok()) return undecided.status();
  Redecided out;
  std::vector<Winner> winners;
  std::set<std::pair<std::string, std::string>> places;
  for (const auto& entry : *undecided) {
    ++out.problems;
    places.emplace(entry.target, entry.performance_class);
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
  for (const auto& [target, performance_class] : places) {
    const auto sites = settle_sites(database, target, performance_class);
    if (!sites.ok()) return sites.status();
  }
  return out;
}

}  // namespace quarterturn
