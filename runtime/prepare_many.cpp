#include "runtime/prepare_many.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "generator/family.hpp"
#include "runtime/cpu/features.hpp"
#include "runtime/signals.hpp"

namespace quarterturn {
namespace {

// Of the plan that prepare will try first; nothing where prepare will not compile one.
std::vector<Source> sources_for(Context& context, const Problem& problem) {
  const auto choice = context.choose(problem);
  if (!choice.ok() || (choice->match == Match::heuristic &&
                       context.settings().text(Setting::on_miss) != "heuristic"))
    return {};
  const Target& target = context.backend().device().target;
  std::vector<Source> out;
  for (const auto& step : choice->plan.steps)
    if (const Family* family = find_family(step.variant.family))
      out.push_back(family->emit(step_problem(problem, target, choice->plan, step.kind), target,
                                 step.variant));
  return out;
}

}  // namespace

std::vector<Result<std::shared_ptr<PreparedPlan>>> prepare_many(Context& context,
                                                                std::span<const Problem> problems) {
  std::vector<Source> sources;
  for (const auto& problem : problems)
    for (auto& source : sources_for(context, problem)) sources.push_back(std::move(source));
  std::atomic<std::size_t> next{0};
  // What fails here fails again in prepare, which says why.
  const auto compile = [&] {
    try {
      for (std::size_t i = next++; i < sources.size(); i = next++)
        (void)context.backend().compile(sources[i]);
    } catch (const std::exception&) {
    }
  };
  const auto cores = static_cast<std::size_t>(std::max<std::int64_t>(1, cpu::detect_cpu().cores));
  {
    std::vector<std::jthread> threads;
    try {
      const SignalsBlocked blocked;
      for (std::size_t i = 1; i < std::min(cores, sources.size()); ++i)
        threads.emplace_back(compile);
    } catch (const std::exception&) {
      // A limit on threads or memory: the ones that exist will do.
    }
    compile();
  }
  std::vector<Result<std::shared_ptr<PreparedPlan>>> out;
  for (const auto& problem : problems) out.push_back(context.prepare(problem));
  return out;
}

}  // namespace quarterturn
