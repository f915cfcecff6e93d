// qturn explain: what would run for a problem, by what right, and what else there is.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"

namespace quarterturn {

std::function<int()> register_explain(CLI::App& app) {
  auto* command = app.add_subcommand(
      "explain", "Say what would run for a problem, how it matched, and which families refused");
  command->footer(
      "Example:\n  qturn explain --shape 512x4096x14336\nThe answer is one JSON object a problem.");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  add_work(*command, *work);
  add_database(*command, *global);
  add_device(*command, *global);
  return [work, global] {
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    auto context = open_context(*global);
    if (!context.ok()) return fail(context.status());
    for (const auto& item : workload->items)
      std::printf("%s\n", (*context)->explain(item.problem).c_str());
    return static_cast<int>(kExitOk);
  };
}

}  // namespace quarterturn
