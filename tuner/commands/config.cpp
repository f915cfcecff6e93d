// qturn config: every setting with its value and where that value came from.
#include <fmt/format.h>

#include "tuner/commands/command.hpp"

namespace quarterturn {

std::function<int()> register_config(CLI::App& app) {
  auto* command =
      app.add_subcommand("config", "Print every setting, its value and where it came from");
  command->footer(
      "Strongest first: a command's option, the environment, the user's "
      "file\n($XDG_CONFIG_HOME/quarterturn/config.json), "
      "the site's file (/etc/quarterturn/config.json).");
  auto global = std::make_shared<GlobalOptions>();
  add_database(*command, *global);
  add_device(*command, *global);
  add_json(*command, *global);
  auto with_hash = std::make_shared<bool>(false);
  command->add_flag("--snapshot-hash", *with_hash,
                    "Open the device, too, and print the hash of what it would be served by: equal "
                    "on ranks that prepare the same plans");
  return [global, with_hash] {
    auto sources = sources_of(*global);
    if (!sources.ok()) return fail(sources.status());
    const auto settings = Settings::load(*sources);
    for (const auto& problem : settings.problems())
      std::fprintf(stderr, "qturn: %s\n", problem.c_str());
    Table table({"setting", "value", "origin", "variable", "meaning"});
    for (const auto& spec : setting_specs()) {
      const auto& value = settings.of(spec.id);
      std::string origin(setting_origin_name(value.origin));
      if (!value.place.empty() && value.place != spec.variable)
        origin += fmt::format(" ({})", value.place);
      table.add({std::string(spec.name), value.text, origin, std::string(spec.variable),
                 std::string(spec.meaning)});
    }
    const auto locations = settings.locations();
    if (!locations.ok()) return fail(locations.status());
    table.add({"(database in use)", locations->database.empty() ? "in memory" : locations->database,
               std::string(location_origin_name(locations->database_origin)), "",
               "the tuning database that these settings lead to"});
    table.add({"(code cache in use)",
               locations->code_cache.empty() ? "a private temporary folder" : locations->code_cache,
               std::string(location_origin_name(locations->code_origin)), "",
               "the folder of compiled code that these settings lead to"});
    if (*with_hash) {
      auto context = open_context(*global);
      if (!context.ok()) return fail(context.status());
      table.add({"(snapshot hash)", hex((*context)->snapshot_hash()), "", "",
                 fmt::format("of {} answers that serve here, as qturn_snapshot_hash gives it",
                             (*context)->lock() ? (*context)->lock()->plans.size()
                                                : (*context)->table()->size())});
    }
    table.print(global->json);
    return static_cast<int>(settings.problems().empty() ? kExitOk : kExitFailed);
  };
}

}  // namespace quarterturn
