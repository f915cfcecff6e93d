#include "tests/fuzz/targets.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "cache/database.hpp"
#include "cache/interchange.hpp"
#include "runtime/settings.hpp"

namespace quarterturn::fuzz {
namespace {

[[noreturn]] void broken(const std::string& promise) {
  std::fprintf(stderr, "broken: %s\n", promise.c_str());
  std::abort();
}

// One for each process, in memory where that can be.
const std::string& folder() {
  static const std::string path = [] {
    std::string name = "/dev/shm/qturn-fuzz-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      name = "/tmp/qturn-fuzz-XXXXXX";
      if (mkdtemp(name.data()) == nullptr) std::abort();
    }
    static const struct Remove {
      std::string path;
      ~Remove() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
      }
    } remove{name};
    return name;
  }();
  return path;
}

std::string written(const std::string& name, const std::uint8_t* data, std::size_t size) {
  const std::string path = folder() + "/" + name;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  chmod(path.c_str(), 0600);
  return path;
}

void clear() {
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    std::error_code ignored;
    std::filesystem::remove_all(entry.path(), ignored);
  }
}

// Every way in which a database is read.
void read_all(Database& db) {
  (void)db.info();
  (void)db.check();
  (void)db.content_hash();
  (void)db.undecided();
  (void)db.tombstones();
  (void)db.quarantine();
  (void)to_json(db);
  const auto targets = db.targets();
  if (!targets.ok()) return;
  for (const auto& target : *targets) {
    (void)db.recent_trials(target, 100);
    Env here;
    here.target = target;
    (void)db.has_admission("cpu_gemm", 1, here);
    const auto winners = db.winners(target);
    if (!winners.ok()) continue;
    for (const auto& winner : *winners) {
      if (!winner.env) broken("a winner has an env");
      (void)db.trials(winner.problem, target, winner.env->performance_class);
      (void)db.misses(target, winner.env->performance_class);
    }
  }
}

}  // namespace

void database(const std::uint8_t* data, std::size_t size) {
  const auto path = written("given.db", data, size);
  if (auto snapshot = Database::open_snapshot(path); snapshot.ok()) {
    read_all(*snapshot);
    if (snapshot->add_trial({}).ok()) broken("a snapshot is not written");
  }
  if (auto into = Database::open(""); into.ok()) {
    (void)into->merge(path);
    if (const auto faults = into->check(); faults.ok())
      for (const auto& fault : *faults)
        if (fault.find("checksum") == std::string::npos) broken("merged: " + fault);
  }
  std::ifstream again(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(again)), {});
  if (bytes != std::string(reinterpret_cast<const char*>(data), size))
    broken("reading changes nothing");
  DatabaseOptions options;
  options.wait = std::chrono::milliseconds(50);
  if (auto own = Database::open(path, options); own.ok()) {
    read_all(*own);
    (void)own->record_miss({"p", "t", "c", 1, 1});
  }
  clear();
}

void json(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  auto db = Database::open("");
  if (!db.ok()) return;
  const auto report = import_json(*db, text, Winners::keep_ours);
  const auto info = db->info();
  if (!report.ok()) {
    if (info.ok() && info->trials + info->winners + info->quarantined + info->tombstones > 0)
      broken("nothing of a refused text is written");
    return;
  }
  const auto out = to_json(*db);
  if (!out.ok()) broken("what was imported is exported: " + out.status().message());
  auto second = Database::open("");
  if (!second.ok()) return;
  if (const auto back = import_json(*second, *out, Winners::keep_ours); !back.ok())
    broken("what was exported is imported: " + back.status().message());
  const auto same = to_json(*second);
  if (!same.ok() || *same != *out) broken("export of an import is the same text");
}

void config(const std::uint8_t* data, std::size_t size) {
  SettingSources sources;
  sources.site_file = written("config.json", data, size);
  sources.surroundings.variable = [](const std::string&) { return std::optional<std::string>(); };
  sources.surroundings.account_home = [] { return std::optional<std::string>(); };
  const Settings settings = Settings::load(sources);
  for (const auto& spec : setting_specs()) {
    if (spec.kind == SettingKind::count) (void)settings.count(spec.id);
    if (spec.kind == SettingKind::list) (void)settings.list(spec.id);
    if (settings.of(spec.id).origin == SettingOrigin::standard &&
        settings.text(spec.id) != spec.standard)
      broken("what nobody set has its standard value");
  }
  (void)settings.locations();
  clear();
}

}  // namespace quarterturn::fuzz
