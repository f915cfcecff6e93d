// qturn shapes: the matrix products of a model, as the problems that would be tuned.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"

namespace quarterturn {

std::function<int()> register_shapes(CLI::App& app) {
  auto* command = app.add_subcommand("shapes", "List the matrix products of a model");
  command->footer(
      "Example:\n  qturn shapes --model Llama-3.1-70B --tp 8 --tokens 1,512 --roles "
      "fprop,dgrad,wgrad");
  auto work = std::make_shared<WorkOptions>();
  auto global = std::make_shared<GlobalOptions>();
  add_work(*command, *work);
  add_json(*command, *global);
  return [work, global] {
    auto workload = workload_of(*work);
    if (!workload.ok()) return fail(workload.status());
    report_refusals(*workload);
    Table table({"role", "m", "n", "k", "layers", "calls", "problem"});
    const auto extent = [](const Extent& e) {
      return e.is_static() ? fmt::format("{}", e.lo) : fmt::format("{}..{}", e.lo, e.hi);
    };
    for (const auto& item : workload->items)
      table.add({std::string(name_of(item.problem.role)), extent(item.problem.m),
                 extent(item.problem.n), extent(item.problem.k), item.layers,
                 fmt::format("{}", item.calls), item.problem.key()});
    table.print(global->json);
    return static_cast<int>(workload->items.empty() ? kExitFailed : kExitOk);
  };
}

}  // namespace quarterturn
