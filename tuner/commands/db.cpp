// qturn db: what a tuning database holds, whether it is sound, and how it is merged and shared.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "cache/filesystem.hpp"
#include "cache/interchange.hpp"
#include "cache/publication.hpp"
#include "runtime/version.hpp"
#include "tuner/commands/bisect.hpp"
#include "tuner/commands/command.hpp"
#include "tuner/commands/progress.hpp"
#include "tuner/commands/proofs.hpp"
#include "tuner/redecide.hpp"
#include "tuner/upgrade.hpp"

namespace quarterturn {
namespace {

// What `qturn db export` or `publish` wrote, which names no file of its own.
bool is_snapshot(const std::string& path) {
  auto file = Database::open_snapshot(path, Verify::nothing);
  if (!file.ok()) return false;
  const auto info = file->info();
  return info.ok() && info->uuid.empty();
}

Result<Database> open_database(const GlobalOptions& global, Access access) {
  auto sources = sources_of(global);
  if (!sources.ok()) return sources.status();
  auto locations = Settings::load(*sources).locations();
  if (!locations.ok()) return locations.status();
  if (access == Access::read_write && is_snapshot(locations->database))
    return Status(Code::read_only,
                  fmt::format("{} is a snapshot, which readers hold for what its hash says; it is "
                              "never changed: give the database that it was made from",
                              locations->database));
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

std::string text_of(const UpgradeCost& cost) {
  std::string out = fmt::format("{} winners hold", cost.current);
  if (cost.to_recheck > 0) out += fmt::format(", {} serve and want a recheck", cost.to_recheck);
  if (cost.to_tune > 0) out += fmt::format(", {} are to be tuned again", cost.to_tune);
  if (cost.unreadable > 0) out += fmt::format(", {} are of another version", cost.unreadable);
  if (cost.seconds > 0) out += fmt::format(": about {} on one device", clock_text(cost.seconds));
  return out;
}

// A name that was typed wrongly must not become a fresh database.
Status check_exists(const GlobalOptions& global) {
  std::error_code ignored;
  if (global.database.empty() || std::filesystem::exists(global.database, ignored)) return {};
  return Status(Code::io_error, fmt::format("there is no file {}", global.database));
}

// Looking changes nothing; only where nothing was given, and nothing is there yet, is a fresh one
// made.
Result<Database> open_to_look(const GlobalOptions& global) {
  if (auto status = check_exists(global); !status.ok()) return status;
  auto sources = sources_of(global);
  if (!sources.ok()) return sources.status();
  const auto locations = Settings::load(*sources).locations();
  if (!locations.ok()) return locations.status();
  if (is_snapshot(locations->database)) return Database::open_snapshot(locations->database);
  std::error_code ignored;
  const bool exists = std::filesystem::exists(locations->database, ignored);
  return open_database(global, exists ? Access::read_only : Access::read_write);
}

int print_info(const GlobalOptions& global) {
  auto database = open_to_look(global);
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
  const auto winners = database->content_hash(Content::winners);
  if (!winners.ok()) return fail(winners.status());
  row("winners sha256", hex(*winners));
  const auto costs = upgrade_costs(*database, kVersion);
  if (!costs.ok()) return fail(costs.status());
  for (const auto& cost : *costs) table.add({cost.target + " with this version", text_of(cost)});
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
  const auto decided = redecide(*database);
  if (!decided.ok()) return fail(decided.status());
  Table table({"new_trials", "known_trials", "conflicts", "tombstones", "quarantined", "decided",
               "changed"});
  table.add({fmt::format("{}", report->trials), fmt::format("{}", report->known),
             fmt::format("{}", report->conflicts), fmt::format("{}", report->tombstones),
             fmt::format("{}", report->quarantined),
             fmt::format("{}", decided->problems - decided->undecidable),
             fmt::format("{}", decided->changed)});
  table.print(global.json);
  if (report->simulated > 0)
    std::fprintf(stderr, "qturn: %lld trials of simulated devices were left out\n",
                 static_cast<long long>(report->simulated));
  return kExitOk;
}

int decide_again(const GlobalOptions& global) {
  if (auto status = check_exists(global); !status.ok()) return fail(status);
  auto database = open_database(global, Access::read_write);
  if (!database.ok()) return fail(database.status());
  const auto decided = redecide(*database);
  if (!decided.ok()) return fail(decided.status());
  Table table({"problems", "changed", "undecidable"});
  table.add({fmt::format("{}", decided->problems), fmt::format("{}", decided->changed),
             fmt::format("{}", decided->undecidable)});
  table.print(global.json);
  return kExitOk;
}

bool is_json(const std::string& path) { return path.ends_with(".json"); }

int export_file(const GlobalOptions& global, const std::string& to, bool winners_only) {
  auto database = open_database(global, Access::read_only);
  if (!database.ok()) return fail(database.status());
  const auto trials = winners_only ? TrialRows::left_out : TrialRows::included;
  if (is_json(to) || to == "-") {
    const auto own = database->info();
    std::error_code ignored;
    if (own.ok() && std::filesystem::equivalent(own->path, to, ignored))
      return fail(Status(Code::invalid_argument,
                         fmt::format("{} is the database itself; give another path", to)));
    const auto text = to_json(*database, trials);
    if (!text.ok()) return fail(text.status());
    if (to == "-")
      return std::fwrite(text->data(), 1, text->size(), stdout) == text->size() ? 0 : 1;
    if (auto status = write_file(to, *text); !status.ok()) return fail(status);
    return kExitOk;
  }
  SnapshotOptions options;
  options.trials = trials;
  auto hash = database->export_snapshot(to, options);
  if (!hash.ok()) return fail(hash.status());
  Table table({"snapshot", "content_sha256"});
  table.add({to, hex(*hash)});
  table.print(global.json);
  return kExitOk;
}

int import_file(const GlobalOptions& global, const std::string& from, bool theirs) {
  const auto text = read_whole_file(from);
  if (!text.ok()) return fail(text.status());
  const bool fresh = !check_exists(global).ok();
  auto database = open_database(global, Access::read_write);
  if (!database.ok()) return fail(database.status());
  if (fresh)
    std::fprintf(stderr, "qturn: %s was not there: a fresh database\n", global.database.c_str());
  const auto report =
      import_json(*database, *text, theirs ? Winners::take_theirs : Winners::keep_ours);
  if (!report.ok())
    return fail(
        Status(report.status().code(), fmt::format("{}: {}", from, report.status().message())));
  Table table({"trials", "winners", "winners_kept", "quarantined", "tombstones"});
  table.add({fmt::format("{}", report->trials), fmt::format("{}", report->winners),
             fmt::format("{}", report->kept), fmt::format("{}", report->quarantined),
             fmt::format("{}", report->tombstones)});
  table.print(global.json);
  return kExitOk;
}

// What dispatch would do otherwise under `other`: one line for each problem whose answer differs.
int print_difference(const GlobalOptions& global, const std::string& other) {
  auto ours = open_database(global, Access::read_only);
  if (!ours.ok()) return fail(ours.status());
  // With a log somebody writes it: what is committed there counts.
  std::error_code no_log;
  const auto log_bytes = std::filesystem::file_size(other + "-wal", no_log);
  const bool live = !no_log && log_bytes > 0;
  auto theirs = live ? Result<Database>(Status(Code::busy, other)) : open_published(other);
  if (!theirs.ok()) {
    DatabaseOptions options;
    options.access = Access::read_only;
    options.fallback = Fallback::none;
    theirs = Database::open(other, options);
  }
  if (!theirs.ok()) return fail(theirs.status());
  using Key = std::tuple<std::string, std::string, std::string>;
  std::map<Key, std::array<std::optional<Winner>, 2>> all;
  for (int side = 0; side < 2; ++side) {
    Database& database = side == 0 ? *ours : *theirs;
    const auto targets = database.targets();
    if (!targets.ok()) return fail(targets.status());
    for (const auto& target : *targets) {
      const auto winners = database.winners(target);
      if (!winners.ok()) return fail(winners.status());
      for (const auto& winner : *winners)
        all[{winner.problem, target, winner.env->performance_class}]
           [static_cast<std::size_t>(side)] = winner;
    }
  }
  Table table(
      {"difference", "problem", "target", "class", "ours_us", "theirs_us", "ours", "theirs"});
  std::int64_t differing = 0;
  for (const auto& [key, pair] : all) {
    const auto& [a, b] = pair;
    if (a && b && a->plan == b->plan) continue;
    ++differing;
    const auto us = [](const std::optional<Winner>& w) {
      return w ? fmt::format("{:.1f}", 1e-3 * w->median_ns) : std::string();
    };
    const auto& [problem, target, performance_class] = key;
    table.add({a && b ? "plan"
               : a    ? "only ours"
                      : "only theirs",
               problem, target, performance_class, us(a), us(b), a ? a->plan : "",
               b ? b->plan : ""});
  }
  table.print(global.json);
  std::fprintf(stderr, "qturn: %lld of %zu answers differ\n", static_cast<long long>(differing),
               all.size());
  return kExitOk;
}

void print_generation(Table& table, const Generation& g, bool current) {
  table.add(
      {fmt::format("{}", g.number), current ? "yes" : "", g.file, g.content, g.winners, g.key});
}

// Nothing where no file is named.
Result<std::optional<SigningKey>> key_in(const std::string& file) {
  if (file.empty()) return std::optional<SigningKey>();
  auto key = read_signing_key(file);
  if (!key.ok()) return key.status();
  return std::optional<SigningKey>(std::move(*key));
}

int publish_to(const GlobalOptions& global, const std::string& folder, const std::string& key_file,
               bool with_misses) {
  auto database = open_database(global, Access::read_only);
  if (!database.ok()) return fail(database.status());
  const auto key = key_in(key_file);
  if (!key.ok()) return fail(key.status());
  SnapshotOptions options;
  if (with_misses) options.misses = MissRows::included;
  const auto generation = publish(*database, folder, options, *key ? &**key : nullptr);
  if (!generation.ok()) return fail(generation.status());
  Table table({"generation", "current", "file", "content_sha256", "winners_sha256", "key"});
  print_generation(table, *generation, true);
  table.print(global.json);
  return kExitOk;
}

int print_generations(const GlobalOptions& global, const std::string& folder) {
  const auto manifest = read_manifest(folder);
  if (!manifest.ok()) return fail(manifest.status());
  Table table({"generation", "current", "file", "content_sha256", "winners_sha256", "key"});
  for (const auto& generation : manifest->generations)
    print_generation(table, generation, generation.number == manifest->current);
  table.print(global.json);
  return kExitOk;
}

int roll_back(const std::string& folder, std::int64_t number, const std::string& key_file) {
  const auto key = key_in(key_file);
  if (!key.ok()) return fail(key.status());
  const auto manifest = read_manifest(folder);
  if (!manifest.ok()) return fail(manifest.status());
  std::int64_t wanted = number;
  if (wanted == 0)  // the newest that is older than the current one
    for (const auto& generation : manifest->generations)
      if (generation.number < manifest->current) wanted = std::max(wanted, generation.number);
  if (wanted == 0)
    return fail(Status(Code::out_of_range,
                       fmt::format("{} has no generation before {}", folder, manifest->current)));
  if (auto status = make_current(folder, wanted, *key ? &**key : nullptr); !status.ok())
    return fail(status);
  std::fprintf(stderr, "qturn: generation %lld is current\n", static_cast<long long>(wanted));
  return kExitOk;
}

int make_key(const GlobalOptions& global, const std::string& path) {
  const auto key = make_signing_key(path);
  if (!key.ok()) return fail(key.status());
  Table table({"secret_key_file", "public_key"});
  table.add({path, key->public_hex()});
  table.print(global.json);
  return kExitOk;
}

constexpr double kMostDays = 36500;  // nanoseconds of more have no room in 64 bits

struct PruneWanted {
  double days = 0;
  std::uint64_t bytes = 0, code_bytes = 0;
  bool dry_run = false;
};

// Compiled code that was used least recently, down to a size.
Result<std::array<CodeStore::Usage, 2>> prune_code(const GlobalOptions& global,
                                                   const PruneWanted& wanted) {
  auto sources = sources_of(global);
  if (!sources.ok()) return sources.status();
  auto locations = Settings::load(*sources).locations();
  if (!locations.ok()) return locations.status();
  CodeStoreOptions options;
  options.fallback = StoreFallback::none;
  options.quota_bytes = static_cast<std::int64_t>(wanted.code_bytes);
  auto store = CodeStore::open(locations->code_cache, options);
  if (!store.ok()) return store.status();
  const auto before = store->usage();
  const auto how = wanted.dry_run ? CodeStore::Collect::tried : CodeStore::Collect::done;
  return std::array{before, store->collect(how)};
}

int prune_database(const GlobalOptions& global, const PruneWanted& wanted) {
  if (wanted.days <= 0 && wanted.bytes == 0 && wanted.code_bytes == 0)
    return fail(Status(Code::invalid_argument,
                       "say what may go: --older-than DAYS, --most-bytes SIZE, --code-bytes SIZE"));
  Table table({"what", "before", "after", "dropped"});
  if (wanted.days > 0 || wanted.bytes > 0) {
    if (auto status = check_exists(global); !status.ok()) return fail(status);
    auto database = open_database(global, Access::read_write);
    if (!database.ok()) return fail(database.status());
    PruneOptions options;
    options.dry_run = wanted.dry_run;
    options.most_bytes = static_cast<std::int64_t>(wanted.bytes);
    if (wanted.days > 0)
      options.before = std::chrono::duration_cast<std::chrono::nanoseconds>(
                           std::chrono::system_clock::now().time_since_epoch())
                           .count() -
                       static_cast<std::int64_t>(wanted.days * 86400e9);
    const auto report = database->prune(options);
    if (!report.ok()) return fail(report.status());
    const auto row = [&](const char* what, std::int64_t dropped) {
      table.add({what, "", "", fmt::format("{}", dropped)});
    };
    table.add({"bytes of the database", fmt::format("{}", report->bytes_before),
               fmt::format("{}", report->bytes_after),
               fmt::format("{}", report->bytes_before - report->bytes_after)});
    row("trials", report->dropped);
    row("quarantine", report->quarantined);
    row("records of code", report->artifacts);
    if (!wanted.dry_run && !report->shrunk)
      std::fprintf(stderr, "qturn: others use the file: it keeps its size for what comes next\n");
  }
  if (wanted.code_bytes > 0) {
    const auto usage = prune_code(global, wanted);
    if (!usage.ok()) return fail(usage.status());
    const auto& [before, after] = *usage;
    table.add({"bytes of code", fmt::format("{}", before.bytes), fmt::format("{}", after.bytes),
               fmt::format("{}", before.bytes - after.bytes)});
    table.add({"kernels", fmt::format("{}", before.entries), fmt::format("{}", after.entries),
               fmt::format("{}", before.entries - after.entries)});
  }
  table.print(global.json);
  if (wanted.dry_run) std::fprintf(stderr, "qturn: nothing was changed\n");
  return kExitOk;
}

int recover_file(const GlobalOptions& global, const std::string& damaged, const std::string& to) {
  const auto report = Database::recover(damaged, to);
  if (!report.ok()) return fail(report.status());
  Table table({"trials", "winners", "tombstones", "quarantined"});
  table.add({fmt::format("{}", report->trials), fmt::format("{}", report->winners),
             fmt::format("{}", report->tombstones), fmt::format("{}", report->quarantined)});
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
  auto* merge = sub("merge", "Add the trials of another database to this one, and decide anew");
  merge->add_option("FROM", *path, "The other database or snapshot")->required();
  auto* decide = sub("decide", "Choose winners anew where the trials have changed");
  auto second = std::make_shared<std::string>();
  auto number = std::make_shared<std::int64_t>(0);
  auto flag = std::make_shared<bool>(false);
  auto* exported = sub("export",
                       "Write a read-only snapshot to share, or JSON text; neither names a host, "
                       "user or path");
  exported->add_option("TO", *path, "The snapshot's file; FILE.json or - for JSON")->required();
  exported->add_flag("--winners-only", *flag, "Leave trials out");
  auto* imported = sub("import", "Add what a JSON text from `export` holds");
  imported->add_option("FROM", *path, "The JSON file")->required()->check(CLI::ExistingFile);
  imported->add_flag("--theirs", *flag, "Where both have a winner, take the text's");
  auto* difference = sub("diff", "List problems that another database answers otherwise");
  difference->add_option("OTHER", *path, "A database, a snapshot, or a published folder")
      ->required();
  auto* published = sub("publish", "Add a generation to a folder that readers follow");
  published->add_option("FOLDER", *path, "The folder; QTURN_SNAPSHOTS names it to readers")
      ->required();
  published->add_option("--key", *second, "Sign it with this secret key (see keygen)");
  published->add_flag("--with-misses", *flag, "Let it hold the misses, too");
  auto* generations = sub("generations", "List a folder's generations");
  generations->add_option("FOLDER", *path, "The published folder")->required();
  auto* rollback = sub("rollback", "Make an older generation current again");
  rollback->add_option("FOLDER", *path, "The published folder")->required();
  rollback->add_option("GENERATION", *number, "Its number; else the one before the current");
  rollback->add_option("--key", *second, "Sign the choice, where the generation is signed");
  const auto bisect = register_bisect(*command);
  auto* bisected = command->get_subcommands({}).back();
  const auto proofs = register_proofs(*command);
  auto* proofs_of = command->get_subcommands({}).back();
  auto* keygen = sub("keygen", "Make a key to sign published generations with");
  keygen->add_option("FILE", *path, "Where the secret key goes")->required();
  auto prune_wanted = std::make_shared<PruneWanted>();
  auto* pruned = sub("prune", "Drop what no stored answer rests on, by age or size");
  pruned->add_option("--older-than", prune_wanted->days, "Days: trials and quarantine before that")
      ->check(positive_number())
      ->check(number_between(0, kMostDays));
  pruned
      ->add_option("--most-bytes", prune_wanted->bytes,
                   "The oldest trials, until the database needs no more than this (200M, 2G)")
      ->transform(CLI::AsSizeValue(false))
      ->transform(no_sign())
      ->check(whole_between(1, std::uint64_t{1} << 62));
  pruned
      ->add_option("--code-bytes", prune_wanted->code_bytes,
                   "Compiled code that was used least recently, until no more than this is left")
      ->transform(CLI::AsSizeValue(false))
      ->transform(no_sign())
      ->check(whole_between(1, std::uint64_t{1} << 62));
  pruned->add_flag("--dry-run", prune_wanted->dry_run, "Say what would go; change nothing");
  auto* recover = sub("recover", "Save what can be read of a damaged database");
  recover->add_option("DAMAGED", *path, "The damaged file; it is not changed")->required();
  recover->add_option("TO", *second, "The fresh database")->required();
  return [=] {
    if (info->parsed()) return print_info(*global);
    if (check->parsed()) return check_file(*global);
    if (merge->parsed()) return merge_file(*global, *path);
    if (decide->parsed()) return decide_again(*global);
    if (imported->parsed()) return import_file(*global, *path, *flag);
    if (difference->parsed()) return print_difference(*global, *path);
    if (published->parsed()) return publish_to(*global, *path, *second, *flag);
    if (generations->parsed()) return print_generations(*global, *path);
    if (rollback->parsed()) return roll_back(*path, *number, *second);
    if (bisected->parsed()) return bisect();
    if (proofs_of->parsed()) return proofs();
    if (keygen->parsed()) return make_key(*global, *path);
    if (pruned->parsed()) return prune_database(*global, *prune_wanted);
    if (recover->parsed()) return recover_file(*global, *path, *second);
    return export_file(*global, *path, *flag);
  };
}

}  // namespace quarterturn
