// What a tuning database says of its own file: counts, versions, faults.
#include <fmt/format.h>
#include <sys/stat.h>

#include "cache/content.hpp"
#include "cache/database_state.hpp"
#include "cache/rows.hpp"
#include "cache/schema.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Query;

std::int64_t file_bytes(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

}  // namespace

// ---- the file ----

Result<DatabaseInfo> Database::info() {
  State& s = *state_;
  DatabaseInfo out;
  Status status = s.read([&](Connection& c) {
    out = {};
    out.path = s.mode == DatabaseInfo::Mode::memory ? std::string() : s.path;
    out.mode = s.mode;
    out.journal = s.mode == DatabaseInfo::Mode::memory ? "memory" : s.journal;
    out.sqlite_version = sqlite3_libversion();
    if (!out.path.empty()) out.bytes = file_bytes(s.path) + file_bytes(s.path + "-wal");
    Query query(c,
                "SELECT (SELECT count(*) FROM env), (SELECT count(*) FROM problem), "
                "(SELECT count(*) FROM plan), (SELECT count(*) FROM variant), "
                "(SELECT count(*) FROM trial), (SELECT count(*) FROM winner), "
                "(SELECT count(*) FROM artifact), (SELECT count(*) FROM quarantine), "
                "(SELECT count(*) FROM tombstone), (SELECT count(*) FROM miss), "
                "(SELECT value FROM meta WHERE key = 'uuid'), "
                "(SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'min_reader')");
    if (query.next()) {
      int column = 0;
      for (std::int64_t* count :
           {&out.envs, &out.problems, &out.plans, &out.variants, &out.trials, &out.winners,
            &out.artifacts, &out.quarantined, &out.tombstones, &out.misses})
        *count = query.integer(column++);
      out.uuid = query.text(column++);
      out.min_reader = query.integer(column);
    }
    if (!query.status().ok()) return query.status();
    const auto version = c.integer("PRAGMA user_version");
    if (version.ok()) out.schema_version = *version;
    return version.status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<std::string>> Database::check() {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  std::vector<std::string> faults;
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (Status status = s.reopen(); !status.ok()) return status;
  Connection& c = s.connection;
  const auto collect = [&](const char* sql) {
    Query query(c, sql);
    while (query.next())
      if (query.text(0) != "ok") faults.push_back(query.text(0));
    if (!query.status().ok()) faults.push_back(query.status().message());
  };
  collect("PRAGMA integrity_check");
  collect(
      "SELECT 'row of ' || \"table\" || ' refers to a missing row of ' || parent "
      "FROM pragma_foreign_key_check");
  if (const Status objects = schema::check_objects(c, "main", schema::Extras::refused);
      !objects.ok())
    faults.push_back(objects.message());
  const auto envs = rows::read_envs(c);
  if (!envs.ok()) faults.push_back(envs.status().message());
  Query query(c,
              fmt::format("SELECT t.env_id, p.key, l.text, {} FROM trial t "
                          "JOIN problem p ON p.id = t.problem_id JOIN plan l ON l.id = t.plan_id",
                          rows::trial_columns("t.")));
  while (envs.ok() && query.next()) {
    Trial trial = rows::read_trial(query, 3);
    trial.problem = query.text(1);
    trial.plan = query.text(2);
    const auto env = envs->find(query.integer(0));
    if (env == envs->end()) continue;  // reported as a missing row
    trial.env = env->second;
    if (rows::checksum(trial) != query.integer(query.columns() - 1))
      faults.push_back(fmt::format("trial {} does not fit its checksum", text(trial.uuid)));
  }
  if (!query.status().ok()) faults.push_back(query.status().message());
  if (s.mode == DatabaseInfo::Mode::snapshot) {
    const Status hash = check_stored_hash(c, Content::all);
    if (!hash.ok()) faults.push_back(hash.message());
  }
  return faults;
}

}  // namespace quarterturn
