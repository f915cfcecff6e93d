#include "tuner/compile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace quarterturn {
namespace {

Compiled compile_plan(Backend& backend, const Problem& problem, const Plan& plan) {
  Compiled out;
  const Target& target = backend.device().target;
  for (const Step& step : plan.steps) {
    const Family* family = find_family(step.variant.family);
    if (!family) {
      out.status =
          Status(Code::unknown_name, fmt::format("no family is called '{}'", step.variant.family));
      return out;
    }
    const Problem part = step_problem(problem, target, plan, step.kind);
    const auto binary = backend.compile(family->emit(part, target, step.variant));
    if (!binary.ok()) {
      out.status = Status(binary.status().code(),
                          fmt::format("{} ({}): {}", step_name(step.kind), step.variant.text(),
                                      binary.status().message()));
      return out;
    }
    if (!binary->cached) {
      ++out.kernels;
      out.milliseconds += binary->compile_ms;
    }
    out.registers = std::max(out.registers, binary->registers);
    out.shared_bytes = std::max(out.shared_bytes, binary->shared_bytes);
    out.spills += binary->spills;
  }
  return out;
}

}  // namespace

std::vector<Compiled> compile_plans(Backend& backend, const Problem& problem,
                                    const std::vector<Plan>& plans, std::size_t jobs,
                                    const std::function<bool()>& interrupted) {
  std::vector<Compiled> out(plans.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < plans.size(); i = next++) {
      if (interrupted && interrupted())
        out[i].status = Status(Code::interrupted, "interrupted");
      else
        out[i] = compile_plan(backend, problem, plans[i]);
    }
  };
  std::vector<std::thread> helpers;
  for (std::size_t i = 1; i < std::min(jobs, plans.size()); ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  return out;
}

}  // namespace quarterturn
