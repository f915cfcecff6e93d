// qturn compile: compiles a problem's plan ahead of time, into the code cache.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"

namespace quarterturn {

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
      auto plan = (*context)->prepare(item.problem);
      if (!plan.ok()) {
        code = fail(plan.status());
        continue;
      }
      const auto& executable = (*plan)->executable();
      if (executable.binaries().empty())
        table.add({short_name(item.problem), "prebuilt", "0", "yes", "0", "0", ""});
      for (std::size_t i = 0; i < executable.binaries().size(); ++i) {
        const auto& binary = executable.binaries()[i];
        table.add({short_name(item.problem), executable.plan().steps[i].variant.text(),
                   fmt::format("{}", binary.compile_ms), binary.cached ? "yes" : "no",
                   fmt::format("{}", binary.registers), fmt::format("{}", binary.spills),
                   binary.path});
      }
    }
    table.print(global->json);
    return code;
  };
}

}  // namespace quarterturn
