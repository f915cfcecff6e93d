#include "tuner/replay.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

using Kernels = std::set<std::string>;

void add_kernels(const RecordedSpace& recording, const Plan& plan, Kernels& out) {
  for (const Step& step : plan.steps)
    out.insert(kernel_name(recording.problem, recording.target, plan, step));
}

double speed_of(const Outcome& outcome) {
  return outcome.status == TrialStatus::ok ? outcome.log_speedup
                                           : -std::numeric_limits<double>::infinity();
}

}  // namespace

std::string kernel_name(const Problem& problem, const Target& target, const Plan& plan,
                        const Step& step) {
  Variant variant = step.variant;
  const Problem part = step_problem(problem, target, plan, step.kind);
  if (const Family* family = find_family(variant.family))
    for (const auto& axis : family->parameters(part, target))
      if (axis.stage == ParameterStage::run) variant.values.erase(axis.name);
  return fmt::format("{}={} {}", step_name(step.kind), variant.text(), name_of(part.d_layout));
}

ReplayResult replay(const RecordedSpace& recording, Strategy& strategy, std::size_t batch) {
  std::map<std::string, const RecordedSpace::Entry*> known;
  ReplayResult out;
  Kernels all, compiled;
  double best_of_all = 0;
  for (const auto& entry : recording.entries) {
    known[entry.outcome.plan.text()] = &entry;
    add_kernels(recording, entry.outcome.plan, all);
    best_of_all = std::max(best_of_all, speed_of(entry.outcome));
  }
  out.plans = recording.entries.size();
  out.kernels = all.size();
  std::vector<Outcome> history;
  double best = 0;  // the default is always there
  for (;;) {
    const auto wanted = strategy.next(history, batch);
    if (wanted.empty()) break;
    for (const Plan& plan : wanted) {
      const auto at = known.find(plan.text());
      ++out.tried;
      if (at == known.end()) {
        history.push_back({plan, TrialStatus::rejected, 0, 0, 0, 0});
        continue;
      }
      const std::size_t before = compiled.size();
      add_kernels(recording, plan, compiled);
      if (compiled.size() > before)
        out.compile_seconds += 1e-3 * static_cast<double>(at->second->compile_ms);
      history.push_back(at->second->outcome);
      best = std::max(best, speed_of(at->second->outcome));
    }
    if (strategy.satisfied(history)) break;
  }
  out.compiled = compiled.size();
  out.regret = std::expm1(best_of_all - best);
  return out;
}

std::unique_ptr<Strategy> strategy_by_name(std::string_view name, const Space& space,
                                           const SearchSettings& settings) {
  if (name == "learned") return learned(space, settings);
  if (name == "predicted") return in_predicted_order(space, settings);
  if (name == "random") return at_random(space, settings);
  if (name == "exhaustive") return exhaustive(space);
  return nullptr;
}

Neighbour neighbour_from(const RecordedSpace& recording) {
  Neighbour out{recording.problem, {}, {}};
  for (const auto& entry : recording.entries) {
    out.outcomes.push_back(entry.outcome);
    out.costs.push_back(entry.cost);
  }
  return out;
}

double model_rank_correlation(const RecordedSpace& recording) {
  std::vector<double> predicted, measured;
  for (const auto& entry : recording.entries) {
    if (entry.outcome.status != TrialStatus::ok || entry.cost.main <= 0) continue;
    predicted.push_back(entry.cost.main + entry.cost.preparation);
    measured.push_back(-entry.outcome.log_speedup);
  }
  return rank_correlation(predicted, measured);
}

}  // namespace quarterturn
