// qturn emit: the source that would be compiled for a problem, as a person reads it.
#include <fmt/format.h>

#include "runtime/cpu/features.hpp"
#include "tuner/commands/command.hpp"

namespace quarterturn {
namespace {

struct EmitOptions {
  std::string target, plan;
  bool flat = false;
};

int print_step(const Problem& problem, const Target& target, const Plan& plan, const Step& step,
               bool flat) {
  const Family& family = *find_family(step.variant.family);
  const Source source =
      family.emit(step_problem(problem, target, plan, step.kind), target, step.variant);
  std::string text = source.text;
  if (flat) {
    auto flattened = flatten(source);
    if (!flattened.ok()) return fail(flattened.status());
    text = std::move(*flattened);
  }
  std::printf("// ==== %s\n%s", std::string(step_name(step.kind)).c_str(), text.c_str());
  return kExitOk;
}

}  // namespace

std::function<int()> register_emit(CLI::App& app) {
  auto* command = app.add_subcommand("emit", "Print the generated source of a problem's kernels");
  command->footer(
      "Examples:\n  qturn emit --shape 512x4096x14336\n  qturn emit --shape 1..64x4096x4096 "
      "--target sm_90a --contract fast");
  auto work = std::make_shared<WorkOptions>();
  auto options = std::make_shared<EmitOptions>();
  add_work(*command, *work);
  command->add_option("--target", options->target,
                      "x86-64-v3, x86-64-v4:avx512_vnni, sm_90a, ... (default: this CPU)");
  command->add_option("--plan", options->plan,
                      "A plan's text, as `qturn explain` prints it (default: the heuristic's)");
  command->add_flag("--flat", options->flat,
                    "With every included kernel text in place: what the compiler gets");
  return [work, options] {
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    Result<Target> target = options->target.empty() ? Result<Target>(cpu::detect_cpu().target)
                                                    : parse_target(options->target);
    if (!target.ok()) return fail(target.status());
    for (const auto& item : workload->items) {
      auto plan =
          options->plan.empty() ? default_plan(item.problem, *target) : parse_plan(options->plan);
      if (!plan.ok()) return fail(plan.status());
      if (auto status = check_plan(item.problem, *target, *plan); !status.ok()) return fail(status);
      for (const auto& step : plan->steps)
        if (const int code = print_step(item.problem, *target, *plan, step, options->flat);
            code != kExitOk)
          return code;
    }
    return static_cast<int>(kExitOk);
  };
}

}  // namespace quarterturn
