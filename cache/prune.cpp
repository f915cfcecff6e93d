// How a tuning database is kept small: old trials are taken back for ever, and what nothing refers
// to is dropped.
#include <fmt/format.h>

#include <algorithm>

#include "cache/database_state.hpp"
#include "cache/rows.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Query;
using sqlite::Transaction;

constexpr int kPasses = 4;  // how big a row is shows only once it is gone

// Winners whose evidence is what is here now: those may be told of fewer trials without becoming
// undecided.
std::string evidence_of(const char* winner) {
  return fmt::format(
      "(SELECT count(*) FROM trial t JOIN env e ON e.id = t.env_id "
      "WHERE t.problem_id = {0}.problem_id AND e.target = {0}.target AND e.class = {0}.class "
      "AND t.kind IN (0, 2) AND {1})",
      winner, rows::live_trial("main"));
}

// What may go: trials that no stored answer rests on. Its first column is the oldest's start.
std::string removable() {
  return "FROM trial t JOIN env e ON e.id = t.env_id WHERE NOT EXISTS(SELECT 1 FROM winner w "
         "WHERE w.problem_id = t.problem_id AND w.plan_id = t.plan_id AND w.target = e.target "
         "AND w.class = e.class) AND " +
         rows::live_trial("main");
}

constexpr const char* drop_dead =
    "DELETE FROM trial WHERE uuid IN (SELECT subject FROM tombstone WHERE kind = 0) "
    "OR campaign IN (SELECT subject FROM tombstone WHERE kind = 1) "
    "OR env_id IN (SELECT id FROM env WHERE hash IN (SELECT subject FROM tombstone WHERE kind = "
    "2));";

constexpr const char* drop_orphans =
    "CREATE TEMP TABLE used_plan AS SELECT plan_id AS id FROM trial UNION SELECT plan_id FROM "
    "winner;"
    "DELETE FROM plan_step WHERE plan_id NOT IN (SELECT id FROM used_plan);"
    "DELETE FROM plan WHERE id NOT IN (SELECT id FROM used_plan);"
    "DELETE FROM variant WHERE id NOT IN (SELECT variant_id FROM plan_step);"
    "DELETE FROM problem WHERE id NOT IN (SELECT problem_id FROM trial UNION SELECT problem_id "
    "FROM winner);"
    "DELETE FROM env WHERE id NOT IN (SELECT env_id FROM trial UNION SELECT env_id FROM winner);"
    "DROP TABLE used_plan;";

Result<std::int64_t> used_bytes(Connection& c) {
  const auto pages = c.integer("PRAGMA page_count"), free = c.integer("PRAGMA freelist_count"),
             size = c.integer("PRAGMA page_size");
  for (const auto* one : {&pages, &free, &size})
    if (!one->ok()) return one->status();
  return (*pages - *free) * *size;
}

// Tombstones for the oldest removable trials: all before `before`, or, when that is 0, `bytes` of
// them by their estimated size. Returns how many.
Result<std::int64_t> take_back(Connection& c, std::int64_t before, std::int64_t bytes,
                               std::int64_t now) {
  const std::string insert =
      "INSERT OR IGNORE INTO tombstone(kind, subject, at, reason) SELECT 0, uuid, ?, 'pruned' ";
  if (before > 0) {
    auto status =
        Query(c, insert + "FROM (SELECT t.uuid " + removable() + " AND t.started < ?)", now, before)
            .run();
    if (!status.ok()) return status;
    return c.changes();
  }
  // A row's own bytes and its places in indexes.
  auto status = Query(c,
                      insert +
                          "FROM (SELECT uuid, started, sum(size) OVER (ORDER BY started, uuid ROWS "
                          "UNBOUNDED PRECEDING) - size AS earlier FROM (SELECT t.uuid, t.started, "
                          "300 + length(t.samples) + length(t.detail) + length(t.extra) AS size " +
                          removable() + ")) WHERE earlier < ?",
                      now, bytes)
                    .run();
  if (!status.ok()) return status;
  return c.changes();
}

}  // namespace

Result<PruneReport> Database::prune(const PruneOptions& options) {
  State& s = *state_;
  PruneReport report;
  const auto now = rows::nanoseconds_now();
  Status status = s.write([&](Connection& c) -> Status {
    report = {};
    const auto before = used_bytes(c);
    const auto rows = c.integer("SELECT count(*) FROM trial");
    if (!before.ok()) return before.status();
    if (!rows.ok()) return rows.status();
    report.bytes_before = *before;
    Status done = c.execute(
        "CREATE TEMP TABLE settled AS SELECT problem_id, target, class FROM "
        "winner w WHERE evidence = " +
        evidence_of("w") + ";");
    if (!done.ok()) return done;
    if (options.before > 0) {
      const auto taken = take_back(c, options.before, 0, now);
      if (!taken.ok()) return taken.status();
      report.trials += *taken;
      done = Query(c, "DELETE FROM quarantine WHERE last < ?", options.before).run();
      if (!done.ok()) return done;
      report.quarantined = c.changes();
      done = Query(c, "DELETE FROM artifact WHERE last_used < ?", options.before).run();
      if (!done.ok()) return done;
      report.artifacts = c.changes();
    }
    done = c.execute(drop_dead);
    for (int pass = 0; done.ok() && options.most_bytes > 0 && pass < kPasses; ++pass) {
      const auto used = used_bytes(c);
      if (!used.ok()) return used.status();
      if (*used <= options.most_bytes) break;
      const auto taken = take_back(c, 0, *used - options.most_bytes, now);
      if (!taken.ok()) return taken.status();
      report.trials += *taken;
      if (*taken == 0) break;
      done = c.execute(drop_dead);
    }
    if (done.ok()) done = c.execute(drop_orphans);
    if (done.ok())
      done = c.execute("UPDATE winner SET evidence = " + evidence_of("winner") +
                       " WHERE (problem_id, target, class) IN (SELECT problem_id, target, class "
                       "FROM settled); DROP TABLE settled;");
    if (!done.ok()) return done;
    const auto left = c.integer("SELECT count(*) FROM trial");
    const auto after = used_bytes(c);
    if (!left.ok()) return left.status();
    if (!after.ok()) return after.status();
    report.dropped = *rows - *left;
    report.bytes_after = *after;
    if (options.dry_run) return Status(Code::interrupted, "nothing is changed");
    return {};
  });
  if (options.dry_run && status.code() == Code::interrupted) return report;
  if (!status.ok()) return status;
  const std::lock_guard lock(s.mutex);
  // While others use the file its free pages stay, for what is stored next.
  report.shrunk = s.connection.execute("VACUUM").ok();
  if (report.shrunk) (void)s.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)");
  return report;
}

}  // namespace quarterturn
