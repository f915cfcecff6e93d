// qturn compile: compiles a problem's plan ahead of time, into the code cache; or, with --sample,
// variants of all families of a target, to see what becomes of them.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"
#include "tuner/sweep.hpp"

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

struct SweepOptions {
  std::string target;
  std::size_t sample = 0;
};

// What opens a back end that compiles for a target, whatever devices there are.
Result<std::map<Setting, std::string>> settings_for(const std::string& name) {
  std::map<Setting, std::string> out;
  if (name.empty()) return out;
  const auto target = parse_target(name);
  if (!target.ok()) return target.status();
  out[Setting::target] = name;
  out[Setting::backend] = target->vendor == Vendor::nvidia ? "cuda"
                          : target->vendor == Vendor::amd  ? "hip"
                                                           : "cpu";
  return out;
}

// The problems that were named, or such as cover what families do.
Result<std::vector<Problem>> swept_problems(const WorkOptions& work) {
  if (work.shape.empty() && work.model.empty() && work.problem.empty()) return covering_problems();
  auto workload = workload_of(work);
  if (!workload.ok()) return workload.status();
  report_refusals(*workload);
  std::vector<Problem> out;
  for (const auto& item : workload->items) out.push_back(item.problem);
  return out;
}

int sweep(Context& context, const WorkOptions& work, std::size_t count, bool json) {
  auto problems = swept_problems(work);
  if (!problems.ok()) return fail(problems.status());
  const Target& target = context.backend().device().target;
  auto rows = sample_variants(*problems, target, count);
  if (rows.empty())
    return fail(Status(Code::not_supported,
                       fmt::format("no family has variants of these problems on {}; name those of "
                                   "single steps: --problem op=gemm,...",
                                   target.key())));
  Table table(
      {"target", "family", "variant", "problem", "registers", "spills", "ms", "cached", "reason"});
  std::size_t refused = 0;
  compile_sweep(context.backend(), rows, [&](const SweepRow& row) {
    refused += row.status.ok() ? 0 : 1;
    table.add({target.key(), std::string(row.family->name()), row.variant.text(), row.problem.key(),
               fmt::format("{}", row.binary.registers), fmt::format("{}", row.binary.spills),
               fmt::format("{}", row.binary.compile_ms), row.binary.cached ? "yes" : "no",
               row.status.message()});
  });
  table.print(json);
  if (refused > 0)
    return fail(
        Status(Code::rejected, fmt::format("{} of {} variants do not compile for {} as they "
                                           "should",
                                           refused, rows.size(), target.key())));
  return kExitOk;
}

}  // namespace

std::function<int()> register_compile(CLI::App& app) {
  auto* command =
      app.add_subcommand("compile", "Compile the kernels of problems into the code cache");
  command->footer(
      "Examples:\n  qturn compile --model Qwen3-8B --tokens 1..512\n  qturn compile --target "
      "sm_120f --sample 40 --json\nPlans come from the database "
      "where it knows the problem, "
      "else from the heuristic.");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  auto swept = std::make_shared<SweepOptions>();
  command->add_option("--target", swept->target,
                      "compile for this target (sm_120f, gfx950, x86-64-v4), whatever is here");
  command->add_option("--sample", swept->sample,
                      "compile this many variants of all families instead, one row each; without a "
                      "problem, of ones that cover what families do");
  return [work, global, swept] {
    const auto settings = settings_for(swept->target);
    if (!settings.ok()) return fail(settings.status());
    if (swept->sample > 0) {
      auto context = open_context(*global, *settings);
      return context.ok() ? sweep(**context, *work, swept->sample, global->json)
                          : fail(context.status());
    }
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    auto context = open_context(*global, *settings);
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
