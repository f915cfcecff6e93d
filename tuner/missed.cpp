#include "tuner/missed.hpp"

namespace quarterturn {

Result<Workload> missed_workload(Context& context) {
  const Env& env = context.env();
  const auto misses = context.database().misses(env.target, env.performance_class);
  if (!misses.ok()) return misses.status();
  Workload out;
  for (const auto& miss : *misses) {
    auto problem = parse_problem(miss.problem);
    auto status = problem.ok() ? context.supports(*problem) : problem.status();
    if (status.ok())
      out.items.push_back({"missed", std::move(*problem), miss.calls});
    else
      out.refused.push_back({miss.problem, status.message()});
  }
  return out;
}

Status clear_missed(Context& context, const Tuned& tuned) {
  if (tuned.answer == Tuned::Answer::unfinished || tuned.answer == Tuned::Answer::failed) return {};
  const Env& env = context.env();
  return context.database().clear_misses(tuned.item.problem.key(), env.target,
                                         env.performance_class);
}

}  // namespace quarterturn
