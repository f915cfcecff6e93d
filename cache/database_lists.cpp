// What a tuning database knows besides trials and winners: quarantine, misses, compiled code.
#include <fmt/format.h>

#include <algorithm>

#include "cache/database_state.hpp"
#include "cache/rows.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Query;

Quarantine read_quarantine(const Query& query) {
  Quarantine entry;
  entry.subject = query.text(0);
  entry.problem = query.text(1);
  entry.target = query.text(2);
  entry.performance_class = query.text(3);
  entry.compiler = query.text(4);
  entry.reason = static_cast<QuarantineReason>(query.integer(5));
  entry.count = query.integer(6);
  entry.first = query.integer(7);
  entry.last = query.integer(8);
  entry.detail = query.text(9);
  return entry;
}

constexpr const char* quarantine_select =
    "SELECT subject, problem, target, class, compiler, reason, count, first, last, detail "
    "FROM quarantine ";

}  // namespace

// ---- quarantine ----

Status Database::add_quarantine(const Quarantine& entry) {
  if (entry.subject.empty() || entry.target.empty() || entry.compiler.empty())
    return {Code::invalid_argument, "a quarantine needs a subject, a target and a compiler"};
  const auto last = rows::or_now(entry.last);
  const auto first = entry.first != 0 ? entry.first : last;
  return state_->write([&](Connection& c) {
    return Query(c,
                 "INSERT INTO quarantine(subject, problem, target, class, compiler, reason, count, "
                 "first, last, detail) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE "
                 "SET count = count + excluded.count, first = min(first, excluded.first), "
                 "last = max(last, excluded.last), detail = max(detail, excluded.detail)",
                 entry.subject, entry.problem, entry.target, entry.performance_class,
                 entry.compiler, entry.reason, entry.count, first, last, entry.detail)
        .run();
  });
}

Result<std::optional<Quarantine>> Database::quarantine_of(const Plan& plan,
                                                          std::string_view problem,
                                                          const Env& here) {
  std::vector<std::string> subjects{plan.text()};
  for (const auto& step : plan.steps)
    for (auto& subject : {step.variant.text(), step.variant.family_text()})
      subjects.push_back(subject);
  std::optional<Quarantine> out;
  Status status = state_->read([&](Connection& c) {
    out.reset();
    static const std::string sql =
        std::string(quarantine_select) +
        "WHERE subject = ? AND problem IN ('', ?) AND target = ? AND class IN ('', ?) "
        "AND compiler = ? LIMIT 1";
    for (const auto& subject : subjects) {
      Query query(c, sql, subject, problem, here.target, here.performance_class, here.compiler);
      if (query.next()) {
        out = read_quarantine(query);
        return Status();
      }
      if (!query.status().ok()) return query.status();
    }
    return Status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Quarantine>> Database::quarantine() {
  std::vector<Quarantine> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    Query query(c, quarantine_select);
    while (query.next()) out.push_back(read_quarantine(query));
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Status Database::remove_quarantine(const Quarantine& entry) {
  return state_->write([&](Connection& c) {
    return Query(c,
                 "DELETE FROM quarantine WHERE subject = ? AND problem = ? AND target = ? "
                 "AND class = ? AND compiler = ? AND reason = ?",
                 entry.subject, entry.problem, entry.target, entry.performance_class,
                 entry.compiler, entry.reason)
        .run();
  });
}

Result<std::int64_t> Database::expire_quarantine(std::string_view target,
                                                 std::string_view compiler) {
  std::int64_t dropped = 0;
  Status status = state_->write([&](Connection& c) {
    Status done =
        Query(c, "DELETE FROM quarantine WHERE target = ? AND compiler <> ?", target, compiler)
            .run();
    dropped = c.changes();
    return done;
  });
  if (!status.ok()) return status;
  return dropped;
}

// ---- what there is ----

Result<std::vector<std::string>> Database::targets() {
  std::vector<std::string> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    Query query(c, "SELECT DISTINCT target FROM env ORDER BY target");
    while (query.next()) out.push_back(query.text(0));
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Tombstone>> Database::tombstones() {
  std::vector<Tombstone> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    Query query(c, "SELECT kind, subject, at, reason FROM tombstone ORDER BY kind, subject");
    while (query.next()) {
      const auto subject = query.bytes(1);
      out.push_back({static_cast<TombstoneKind>(query.integer(0)),
                     {subject.begin(), subject.end()},
                     query.text(3),
                     query.integer(2)});
    }
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

// ---- misses ----

Status Database::record_misses(std::span<const Miss> misses) {
  return state_->write([&](Connection& c) {
    const auto uuid = rows::file_uuid(c);
    if (!uuid.ok()) return uuid.status();
    for (const auto& miss : misses) {
      if (miss.problem.empty() || miss.target.empty() || miss.calls < 0 || miss.ns < 0)
        return Status(Code::invalid_argument, "a miss needs a problem, a target and counts >= 0");
      // Sums stop short of the largest integer: SQLite would turn them into floating point.
      Status status =
          Query(c,
                "INSERT INTO miss(problem, target, class, source, calls, ns) "
                "VALUES(?, ?, ?, ?, min(?, 1 << 60), min(?, 1 << 60)) "
                "ON CONFLICT DO UPDATE SET calls = min(calls + excluded.calls, 1 << 60), "
                "ns = min(ns + excluded.ns, 1 << 60)",
                miss.problem, miss.target, miss.performance_class, *uuid, miss.calls, miss.ns)
              .run();
      if (!status.ok()) return status;
    }
    return Status();
  });
}

// Of rows (problem, calls, nanoseconds).
static void take_misses(Query& query, std::string_view target, std::string_view performance_class,
                        std::vector<Miss>& out) {
  while (query.next())
    out.push_back({query.text(0), std::string(target), std::string(performance_class),
                   query.integer(1), query.integer(2)});
}

Result<std::vector<Miss>> Database::misses(std::string_view target,
                                           std::string_view performance_class) {
  std::vector<Miss> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    // total() cannot overflow, unlike sum().
    Query query(c,
                "SELECT m.problem, total(m.calls), total(m.ns) FROM miss m "
                "LEFT JOIN problem p ON p.key = m.problem "
                "LEFT JOIN winner w ON w.problem_id = p.id AND w.target = m.target "
                "AND w.class = m.class AND w.certificate NOT LIKE '%search=unfinished%' "
                "WHERE m.target = ?1 AND (?2 = '' OR m.class = ?2) "
                "AND w.problem_id IS NULL GROUP BY m.problem ORDER BY 3 DESC, 2 DESC, 1",
                target, performance_class);
    take_misses(query, target, performance_class, out);
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Status Database::clear_misses(std::string_view problem, std::string_view target,
                              std::string_view performance_class) {
  return state_->write([&](Connection& c) {
    return Query(c, "DELETE FROM miss WHERE problem = ? AND target = ? AND class = ?", problem,
                 target, performance_class)
        .run();
  });
}

Result<std::vector<Miss>> Database::servings(std::string_view target,
                                             std::string_view performance_class) {
  std::vector<Miss> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    Query query(c,
                "SELECT problem, total(calls), total(ns) FROM miss WHERE target = ? AND class = ? "
                "GROUP BY problem ORDER BY 3 DESC, 2 DESC, 1",
                target, performance_class);
    take_misses(query, target, performance_class, out);
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

// ---- compiled code ----

Status Database::put_artifact(const Artifact& a) {
  const auto used = rows::or_now(a.last_used);
  return state_->write([&](Connection& c) {
    return Query(c,
                 "INSERT OR REPLACE INTO artifact(key, content, target, compiler, flags, log, "
                 "bytes, registers, spills, shared_bytes, compile_ms, last_used) "
                 "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                 a.key, a.content, a.target, a.compiler, a.flags, a.log, a.bytes, a.registers,
                 a.spills, a.shared_bytes, a.compile_ms, used)
        .run();
  });
}

Result<std::optional<Artifact>> Database::artifact(const Digest& key) {
  std::optional<Artifact> out;
  Status status = state_->read([&](Connection& c) {
    out.reset();
    Query query(c,
                "SELECT content, target, compiler, flags, log, bytes, registers, spills, "
                "shared_bytes, compile_ms, last_used FROM artifact WHERE key = ?",
                key);
    if (!query.next()) return query.status();
    Artifact a;
    a.key = key;
    const auto content = query.bytes(0);
    std::copy_n(content.begin(), std::min(content.size(), a.content.size()), a.content.begin());
    a.target = query.text(1);
    a.compiler = query.text(2);
    a.flags = query.text(3);
    a.log = query.text(4);
    a.bytes = query.integer(5);
    a.registers = query.integer(6);
    a.spills = query.integer(7);
    a.shared_bytes = query.integer(8);
    a.compile_ms = query.integer(9);
    a.last_used = query.integer(10);
    out = std::move(a);
    return Status();
  });
  if (!status.ok()) return status;
  return out;
}

}  // namespace quarterturn
