#include "tuner/report.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tuner/statistics.hpp"
#include "tuner/trials.hpp"
#include "tuner/workload.hpp"

namespace quarterturn {
namespace {

using Where = std::pair<std::string, std::string>;  // target, class
using Key = std::tuple<std::string, std::string, std::string>;

ReportProblem problem_of(std::string key, const Where& where) {
  ReportProblem out;
  out.name = key;
  out.target = where.first;
  out.performance_class = where.second;
  if (const auto parsed = parse_problem(key); parsed.ok()) {
    out.name = short_name(*parsed);
    const Sizes sizes = representative_sizes(*parsed).front();
    out.work = operations(*parsed, sizes);
    out.traffic = least_traffic(*parsed, sizes);
  }
  out.problem = std::move(key);
  return out;
}

std::int64_t evidence_of(const ReportProblem& problem) {
  return problem.winner ? problem.winner->evidence : 0;
}

// Of a class: what a newer environment than a winner's own says about its age.
void add_envs(ReportClass& out, const std::vector<const Winner*>& winners) {
  struct Seen {
    std::shared_ptr<const Env> env;
    std::int64_t count = 0, oldest = 0, newest = 0;
  };
  std::map<std::string, Seen> seen;
  for (const Winner* winner : winners) {
    Seen& one = seen[winner->env->text()];
    one.env = winner->env;
    one.oldest = one.count == 0 ? winner->decided : std::min(one.oldest, winner->decided);
    one.newest = std::max(one.newest, winner->decided);
    ++one.count;
  }
  std::vector<Seen> sorted;
  for (auto& [text, one] : seen) sorted.push_back(std::move(one));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Seen& a, const Seen& b) { return a.newest > b.newest; });
  for (const auto& one : sorted) {
    out.envs.push_back(one.env);
    out.winners.push_back(one.count);
    out.stale.push_back(compare(*one.env, *sorted.front().env) == Validity::valid ? 0 : one.count);
    out.oldest.push_back(one.oldest);
    out.newest.push_back(one.newest);
  }
}

Status add_trials(Database& database, ReportData& data, std::size_t details) {
  std::map<Where, std::vector<double>> clocks;
  for (std::size_t i = 0; i < std::min(details, data.problems.size()); ++i) {
    auto& problem = data.problems[i];
    auto trials = database.trials(problem.problem, problem.target, problem.performance_class);
    if (!trials.ok()) return trials.status();
    for (const auto& trial : *trials)
      if (trial.clock_mhz > 0)
        clocks[{problem.target, problem.performance_class}].push_back(
            static_cast<double>(trial.clock_mhz));
    problem.trials = std::move(*trials);
  }
  for (auto& one : data.classes) {
    one.clock_mhz = median(clocks[{one.target, one.performance_class}]);
    Env env;
    env.target = one.target, env.performance_class = one.performance_class;
    one.roof = roof_of(env, one.clock_mhz);
  }
  return {};
}

}  // namespace

Result<ReportData> collect_report(Database& database, const ReportOptions& options) {
  ReportData out;
  auto info = database.info();
  if (!info.ok()) return info.status();
  out.info = std::move(*info);
  auto targets = database.targets();
  if (!targets.ok()) return targets.status();
  std::vector<Winner> winners;
  for (const auto& target : *targets) {
    auto some = database.winners(target);
    if (!some.ok()) return some.status();
    std::move(some->begin(), some->end(), std::back_inserter(winners));
  }
  std::map<Where, std::vector<const Winner*>> by_class;
  std::set<Key> decided;
  for (const auto& winner : winners) {
    const Where where{winner.env->target, winner.env->performance_class};
    by_class[where].push_back(&winner);
    decided.insert({winner.problem, where.first, where.second});
    out.problems.push_back(problem_of(winner.problem, where));
    out.problems.back().winner = winner;
  }
  // A problem that was measured and has no winner yet.
  auto open = database.undecided();
  if (!open.ok()) return open.status();
  std::map<Where, std::int64_t> undecided;
  for (const auto& one : *open) {
    const Where where{one.target, one.performance_class};
    ++undecided[where];
    by_class[where];
    if (!decided.contains({one.problem, one.target, one.performance_class}))
      out.problems.push_back(problem_of(one.problem, where));
  }
  for (const auto& [where, some] : by_class) {
    ReportClass one;
    one.target = where.first, one.performance_class = where.second;
    add_envs(one, some);
    for (const Winner* winner : some)
      ++(winner->choice == Choice::tuned ? one.tuned : one.fallback);
    one.undecided = undecided[where];
    auto misses = database.misses(where.first, where.second);
    if (!misses.ok()) return misses.status();
    one.misses = std::move(*misses);
    out.classes.push_back(std::move(one));
  }
  for (auto& problem : out.problems)
    for (auto& one : out.classes)
      if (one.target == problem.target && one.performance_class == problem.performance_class) {
        ++one.measured;
        problem.stale = problem.winner && !one.envs.empty() &&
                        compare(*problem.winner->env, *one.envs.front()) != Validity::valid;
      }
  std::stable_sort(out.problems.begin(), out.problems.end(),
                   [](const ReportProblem& a, const ReportProblem& b) {
                     return evidence_of(a) > evidence_of(b);
                   });
  if (out.problems.size() > options.rows) {
    out.left_out = out.problems.size() - options.rows;
    out.problems.resize(options.rows);
  }
  if (auto status = add_trials(database, out, options.details); !status.ok()) return status;
  return out;
}

}  // namespace quarterturn
