// qturn compile: compiles a problem's plan ahead of time, into the code cache.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"

namespace quarterturn {
namespace {

// What serves a problem, compiled here and loaded nowhere: for machines without the device
// (QTURN_TARGET names one).
Result<std::vector<std::pair<Variant, Binary>>> compile_only(Context& context,
                                                             const Problem& problem) {
  const auto choice = context.choose(problem);
  if (!choice.ok()) return choice.status();
  const Target& target = context.backend().device().target;
  std::vector<std::pair<Variant, Binary>> out;
  for (const Step& step : choice->plan.steps) {
    const Problem part = step_problem(problem, target, choice->plan, step.kind);
    auto binary = context.backend().compile(
        find_family(step.variant.family)->emit(part, target, step.variant));
    if (!binary.ok()) return binary.status();
    out.emplace_back(step.variant, std::move(*binary));
  }
  return out;
}

}  // namespace

std::function<int()> register_compile(CLI::App& app) {
  auto* command =
      app.add_subcommand("compile", "Compile the kernels of problems into the code cache");
  command->footer(
      "Example:\n  qturn compile --model Qwen3-8B --tokens 1..512\nPlans come from the database "
      "where it knows the problem, "
      "else from the heuristic.");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  return [work, global] {
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    auto context = open_context(*global);
    if (!context.ok()) return fail(context.status());
    Table table({"problem", "kernel", "ms", "cached", "registers", "spills", "file"});
    int code = kExitOk;
    for (const auto& item : workload->items) {
      const auto row = [&](const Variant& variant, const Binary& binary) {
        table.add({short_name(item.problem), variant.text(), fmt::format("{}", binary.compile_ms),
                   binary.cached ? "yes" : "no", fmt::format("{}", binary.registers),
                   fmt::format("{}", binary.spills), binary.path});
      };
      auto plan = (*context)->prepare(item.problem);
      if (plan.status().code() == Code::no_driver || plan.status().code() == Code::no_device) {
        auto compiled = compile_only(**context, item.problem);
        if (!compiled.ok()) {
          code = fail(compiled.status());
          continue;
        }
        for (const auto& [variant, binary] : *compiled) row(variant, binary);
        continue;
      }
      if (!plan.ok()) {
        code = fail(plan.status());
        continue;
      }
      const auto& executable = (*plan)->executable();
      if (executable.binaries().empty())
        table.add({short_name(item.problem), "prebuilt", "0", "yes", "0", "0", ""});
      for (std::size_t i = 0; i < executable.binaries().size(); ++i)
        row(executable.plan().steps[i].variant, executable.binaries()[i]);
    }
    table.print(global->json);
    return code;
  };
}

}  // namespace quarterturn
