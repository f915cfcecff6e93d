#include "tuner/neighbours.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace quarterturn {
namespace {

constexpr std::size_t kLatest = 4000;  // trials that are looked at

// A problem without its sizes: what must agree.
Problem kind_of(Problem p) {
  p.m = p.n = p.k = {};
  return p;
}

double doublings(const Extent& a, const Extent& b) {
  const auto size = [](const Extent& e) {
    return std::log2(static_cast<double>(std::max<std::int64_t>(1, e.hi)));
  };
  return std::fabs(size(a) - size(b));
}

Outcome outcome_of(const Trial& trial, Plan plan) {
  const bool timed = trial.status == TrialStatus::ok && trial.ratio > 0;
  return {std::move(plan), trial.status, timed ? std::log(trial.ratio) : 0,
          trial.registers, trial.spills, trial.shared_bytes};
}

}  // namespace

double distance(const Problem& a, const Problem& b) {
  if (!(kind_of(a) == kind_of(b))) return std::numeric_limits<double>::infinity();
  return doublings(a.m, b.m) + doublings(a.n, b.n) + doublings(a.k, b.k);
}

std::vector<Neighbour> neighbours_of(Database& database, const Problem& problem,
                                     const Target& target, const Env& here, std::size_t most) {
  const auto latest = database.recent_trials(here.target, kLatest);
  if (!latest.ok()) return {};
  // A problem's own trials of this class are history, not a neighbour's.
  const auto own = problem.key();
  std::map<std::string, std::vector<const Trial*>> by_problem;
  for (const Trial& trial : *latest)
    if (trial.kind == TrialKind::timing && trial.env &&
        (trial.problem != own || compare(*trial.env, here) != Validity::valid))
      by_problem[trial.problem].push_back(&trial);
  std::vector<std::pair<double, Neighbour>> found;
  for (const auto& [key, trials] : by_problem) {
    const auto parsed = parse_problem(key);
    if (!parsed.ok()) continue;
    const double apart = distance(problem, *parsed);
    if (!std::isfinite(apart)) continue;
    Neighbour neighbour{*parsed, {}, {}};
    for (const Trial* trial : trials)
      if (auto plan = parse_plan(trial->plan); plan.ok()) {
        neighbour.costs.push_back(
            predicted_cost(*parsed, target, *plan, units_of(trial->env->performance_class)));
        neighbour.outcomes.push_back(outcome_of(*trial, std::move(*plan)));
      }
    found.emplace_back(apart, std::move(neighbour));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Neighbour> out;
  for (auto& [apart, neighbour] : found)
    if (out.size() < most) out.push_back(std::move(neighbour));
  return out;
}

std::vector<Plan> seeds_of(const std::vector<Neighbour>& neighbours) {
  std::vector<Plan> out;
  for (std::size_t i = 0; i < neighbours.size(); ++i) {
    std::vector<const Outcome*> timed;
    for (const auto& outcome : neighbours[i].outcomes)
      if (outcome.status == TrialStatus::ok) timed.push_back(&outcome);
    std::stable_sort(timed.begin(), timed.end(), [](const Outcome* a, const Outcome* b) {
      return a->log_speedup > b->log_speedup;
    });
    const std::size_t wanted = i == 0 ? 2 : 1;
    std::size_t taken = 0;
    for (const Outcome* outcome : timed) {
      if (taken == wanted) break;
      if (std::find(out.begin(), out.end(), outcome->plan) != out.end()) continue;
      out.push_back(outcome->plan);
      ++taken;
    }
  }
  return out;
}

}  // namespace quarterturn
