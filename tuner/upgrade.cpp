#include "tuner/upgrade.hpp"

#include "generator/family.hpp"
#include "tuner/session.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kRecent = 200;      // trials whose compile times count
constexpr double kRecheckCandidates = 2;  // the answer, and the default that it is held against

double compile_seconds(Database& database, const std::string& target) {
  double sum = 0, count = 0;
  if (const auto recent = database.recent_trials(target, kRecent); recent.ok())
    for (const auto& trial : *recent)
      if (trial.compile_ms > 0) sum += 1e-3 * static_cast<double>(trial.compile_ms), count += 1;
  return count > 0 ? sum / count : kCompileSeconds;
}

// Of a problem's search, as far as this database tells.
double candidates_of_a_search(const DatabaseInfo& info) {
  return info.problems > 0 ? static_cast<double>(info.trials) / static_cast<double>(info.problems)
                           : 1;
}

void count(const Winner& winner, const Target& target, std::string_view library,
           UpgradeCost& cost) {
  const auto problem = parse_problem(winner.problem);
  if (!problem.ok()) {
    ++cost.unreadable;
    return;
  }
  const auto plan = parse_plan(winner.plan);
  if (!plan.ok() || !check_plan(*problem, target, *plan).ok())
    ++cost.to_tune;
  else if (winner.env && winner.env->library == library)
    ++cost.current;
  else
    ++cost.to_recheck;
}

}  // namespace

Result<std::vector<UpgradeCost>> upgrade_costs(Database& database, std::string_view library) {
  const auto targets = database.targets();
  if (!targets.ok()) return targets.status();
  const auto info = database.info();
  if (!info.ok()) return info.status();
  std::vector<UpgradeCost> out;
  for (const auto& name : *targets) {
    const auto winners = database.winners(name);
    if (!winners.ok()) return winners.status();
    const auto target = parse_target(name);
    UpgradeCost cost{name};
    for (const auto& winner : *winners)
      if (target.ok())
        count(winner, *target, library, cost);
      else
        ++cost.unreadable;
    cost.seconds = (static_cast<double>(cost.to_recheck) * kRecheckCandidates +
                    static_cast<double>(cost.to_tune) * candidates_of_a_search(*info)) *
                   (compile_seconds(database, name) + kTrialSeconds);
    out.push_back(std::move(cost));
  }
  return out;
}

}  // namespace quarterturn
