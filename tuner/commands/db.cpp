// qturn db: what a tuning database holds, whether it is sound, and how it is merged and shared.
#include <fmt/format.h>

#include <filesystem>

#include "tuner/commands/command.hpp"

namespace quarterturn {
namespace {

Result<Database> open_database(const GlobalOptions& global, Access access) {
  auto sources = sources_of(global);
  if (!sources.ok()) return sources.status();
  auto locations = Settings::load(*sources).locations();
  if (!locations.ok()) return locations.status();
  DatabaseOptions options;
  options.access = access;
  options.fallback = Fallback::none;
  auto database = Database::open(locations->database, options);
  if (database.ok())
    for (const auto& note : database->take_notes())
      std::fprintf(stderr, "qturn: %s\n", note.c_str());
  return database;
}

std::string_view mode_name(DatabaseInfo::Mode mode) {
  switch (mode) {
    case DatabaseInfo::Mode::read_write:
      return "read-write";
    case DatabaseInfo::Mode::read_only:
      return "read-only";
    case DatabaseInfo::Mode::memory:
      return "in memory";
    case DatabaseInfo::Mode::snapshot:
      return "snapshot";
  }
  return "";
}

int print_info(const GlobalOptions& global) {
  // A name that was typed wrongly must not become a fresh database.
  std::error_code ignored;
  if (!global.database.empty() && !std::filesystem::exists(global.database, ignored))
    return fail(Status(Code::io_error, fmt::format("there is no file {}", global.database)));
  auto database = open_database(global, Access::read_write);
  if (!database.ok()) return fail(database.status());
  auto info = database->info();
  if (!info.ok()) return fail(info.status());
  Table table({"what", "value"});
  const auto row = [&](const char* what, const auto& value) {
    table.add({what, fmt::format("{}", value)});
  };
  row("path", info->path);
  row("mode", mode_name(info->mode));
  row("bytes", info->bytes);
  row("schema version", info->schema_version);
  row("oldest reader", info->min_reader);
  row("uuid", info->uuid);
  row("journal", info->journal);
  row("sqlite", info->sqlite_version);
  row("environments", info->envs);
  row("problems", info->problems);
  row("plans", info->plans);
  row("variants", info->variants);
  row("trials", info->trials);
  row("winners", info->winners);
  row("artifacts", info->artifacts);
  row("quarantined", info->quarantined);
  row("tombstones", info->tombstones);
  row("misses", info->misses);
  table.print(global.json);
  return kExitOk;
}

int check_file(const GlobalOptions& global) {
  auto database = open_database(global, Access::read_only);
  if (!database.ok()) return fail(database.status());
  auto faults = database->check();
  if (!faults.ok()) return fail(faults.status());
  for (const auto& fault : *faults) std::printf("%s\n", fault.c_str());
  if (faults->empty()) std::fprintf(stderr, "qturn: the database is sound\n");
  return faults->empty() ? kExitOk : kExitFailed;
}

int merge_file(const GlobalOptions& global, const std::string& from) {
  auto database = open_database(global, Access::read_write);
  if (!database.ok()) return fail(database.status());
  auto report = database->merge(from);
  if (!report.ok()) return fail(report.status());
  Table table({"new_trials", "known_trials", "conflicts", "tombstones", "quarantined"});
  table.add({fmt::format("{}", report->trials), fmt::format("{}", report->known),
             fmt::format("{}", report->conflicts), fmt::format("{}", report->tombstones),
             fmt::format("{}", report->quarantined)});
  table.print(global.json);
  return kExitOk;
}

int export_file(const GlobalOptions& global, const std::string& to) {
  auto database = open_database(global, Access::read_only);
  if (!database.ok()) return fail(database.status());
  auto hash = database->export_snapshot(to);
  if (!hash.ok()) return fail(hash.status());
  Table table({"snapshot", "content_sha256"});
  table.add({to, hex(*hash)});
  table.print(global.json);
  return kExitOk;
}

}  // namespace

std::function<int()> register_db(CLI::App& app) {
  auto* command = app.add_subcommand("db", "Look into, check, merge and export tuning databases");
  command->require_subcommand(1);
  auto global = std::make_shared<GlobalOptions>();
  auto path = std::make_shared<std::string>();
  const auto sub = [&](const char* name, const char* what) {
    auto* out = command->add_subcommand(name, what);
    add_database(*out, *global);
    add_json(*out, *global);
    return out;
  };
  auto* info = sub("info", "Where it is, its versions, and how much it holds");
  auto* check = sub("check", "Find every fault in the file");
  auto* merge = sub("merge", "Add the trials of another database to this one");
  merge->add_option("FROM", *path, "The other database or snapshot")->required();
  auto* exported =
      sub("export", "Write a read-only snapshot to share; it names no host, user or path");
  exported->add_option("TO", *path, "The snapshot's file")->required();
  return [=] {
    if (info->parsed()) return print_info(*global);
    if (check->parsed()) return check_file(*global);
    if (merge->parsed()) return merge_file(*global, *path);
    return export_file(*global, *path);
  };
}

}  // namespace quarterturn
