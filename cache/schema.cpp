#include "cache/schema.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <map>

#include "cache/records.hpp"

namespace quarterturn::schema {
namespace {

// Version 1. Published statements never change: a later version is a further step.
constexpr const char* version_1 = R"sql(
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE env(
  id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE,
  target TEXT NOT NULL, class TEXT NOT NULL,
  driver TEXT NOT NULL, toolkit TEXT NOT NULL, compiler TEXT NOT NULL, library TEXT NOT NULL,
  product TEXT NOT NULL) STRICT;
CREATE INDEX env_class ON env(target, class);

CREATE TABLE problem(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE) STRICT;

CREATE TABLE variant(
  id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE,
  family TEXT NOT NULL, revision INTEGER NOT NULL) STRICT;

CREATE TABLE plan(id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE plan_step(
  plan_id INTEGER NOT NULL REFERENCES plan(id), position INTEGER NOT NULL,
  kind TEXT NOT NULL, variant_id INTEGER NOT NULL REFERENCES variant(id),
  PRIMARY KEY(plan_id, position)) STRICT, WITHOUT ROWID;

CREATE TABLE trial(
  uuid BLOB PRIMARY KEY NOT NULL,
  problem_id INTEGER NOT NULL REFERENCES problem(id),
  plan_id INTEGER NOT NULL REFERENCES plan(id),
  env_id INTEGER NOT NULL REFERENCES env(id),
  campaign BLOB NOT NULL,
  kind INTEGER NOT NULL, status INTEGER NOT NULL, sizes TEXT NOT NULL, profile TEXT NOT NULL,
  rounds INTEGER NOT NULL, median_ns REAL NOT NULL, low_ns REAL NOT NULL, high_ns REAL NOT NULL,
  ratio REAL NOT NULL, ratio_low REAL NOT NULL, ratio_high REAL NOT NULL, noise REAL NOT NULL,
  worst_ns REAL NOT NULL, max_error REAL NOT NULL, bias_z REAL NOT NULL,
  repeatable INTEGER NOT NULL, clock_mhz INTEGER NOT NULL, temperature_c INTEGER NOT NULL,
  throttled INTEGER NOT NULL, compile_ms INTEGER NOT NULL, registers INTEGER NOT NULL,
  spills INTEGER NOT NULL, shared_bytes INTEGER NOT NULL, started INTEGER NOT NULL,
  extra TEXT NOT NULL, samples BLOB NOT NULL, detail TEXT NOT NULL,
  checksum INTEGER NOT NULL) STRICT;
CREATE INDEX trial_problem ON trial(problem_id, env_id);
CREATE INDEX trial_admission ON trial(env_id, plan_id) WHERE kind = 1;

CREATE TABLE winner(
  problem_id INTEGER NOT NULL REFERENCES problem(id),
  target TEXT NOT NULL, class TEXT NOT NULL,
  plan_id INTEGER NOT NULL REFERENCES plan(id),
  env_id INTEGER NOT NULL REFERENCES env(id),
  choice INTEGER NOT NULL,
  speedup REAL NOT NULL, speedup_low REAL NOT NULL, speedup_high REAL NOT NULL,
  median_ns REAL NOT NULL, regret REAL NOT NULL, noise REAL NOT NULL, evidence INTEGER NOT NULL,
  ties TEXT NOT NULL, certificate TEXT NOT NULL, decided INTEGER NOT NULL,
  PRIMARY KEY(problem_id, target, class)) STRICT, WITHOUT ROWID;

CREATE TABLE artifact(
  key BLOB PRIMARY KEY NOT NULL, content BLOB NOT NULL,
  target TEXT NOT NULL, compiler TEXT NOT NULL, flags TEXT NOT NULL, log TEXT NOT NULL,
  bytes INTEGER NOT NULL, registers INTEGER NOT NULL, spills INTEGER NOT NULL,
  shared_bytes INTEGER NOT NULL, compile_ms INTEGER NOT NULL, last_used INTEGER NOT NULL) STRICT;

CREATE TABLE quarantine(
  subject TEXT NOT NULL, problem TEXT NOT NULL, target TEXT NOT NULL, class TEXT NOT NULL,
  compiler TEXT NOT NULL, reason INTEGER NOT NULL, count INTEGER NOT NULL,
  first INTEGER NOT NULL, last INTEGER NOT NULL, detail TEXT NOT NULL,
  PRIMARY KEY(subject, problem, target, class, compiler, reason)) STRICT, WITHOUT ROWID;

CREATE TABLE tombstone(
  kind INTEGER NOT NULL, subject BLOB NOT NULL, at INTEGER NOT NULL, reason TEXT NOT NULL,
  PRIMARY KEY(kind, subject)) STRICT, WITHOUT ROWID;

CREATE TABLE miss(
  problem TEXT NOT NULL, target TEXT NOT NULL, class TEXT NOT NULL, source BLOB NOT NULL,
  calls INTEGER NOT NULL, ns INTEGER NOT NULL,
  PRIMARY KEY(problem, target, class, source)) STRICT, WITHOUT ROWID;
)sql";

constexpr Step all_steps[] = {{1, 1, version_1}};

constexpr const char* tables[] = {"meta",     "env",        "problem",   "variant",
                                  "plan",     "plan_step",  "trial",     "winner",
                                  "artifact", "quarantine", "tombstone", "miss"};

std::uint32_t big_endian(const unsigned char* bytes) {
  return static_cast<std::uint32_t>(bytes[0]) << 24 | static_cast<std::uint32_t>(bytes[1]) << 16 |
         static_cast<std::uint32_t>(bytes[2]) << 8 | bytes[3];
}

Status not_ours() {
  return {Code::not_ours,
          "the file is a SQLite database of another program and was left untouched; give another "
          "path"};
}

Result<std::map<std::string, std::string>> objects(sqlite::Connection& connection,
                                                   const std::string& name) {
  std::map<std::string, std::string> out;
  // sqlite_ names are SQLite's own: automatic indexes, statistics.
  sqlite::Query query(connection,
                      fmt::format("SELECT type, name, coalesce(sql, '') FROM {}.sqlite_schema "
                                  "WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
                                  name));
  while (query.next()) out[query.text(0) + " " + query.text(1)] = query.text(2);
  if (!query.status().ok()) return query.status();
  return out;
}

}  // namespace

std::span<const Step> steps() { return all_steps; }

Result<Header> read_header(sqlite::Connection& connection) {
  sqlite3_file* file = nullptr;
  sqlite3_file_control(connection.handle(), "main", SQLITE_FCNTL_FILE_POINTER, &file);
  if (file == nullptr || file->pMethods == nullptr) return Header{};
  sqlite3_int64 size = 0;
  if (const int code = file->pMethods->xFileSize(file, &size); code != SQLITE_OK)
    return sqlite::status_of(nullptr, code, "ask the file's size");
  if (size == 0) return Header{};
  std::array<unsigned char, 100> bytes{};
  const int code = file->pMethods->xRead(file, bytes.data(), bytes.size(), 0);
  if (code != SQLITE_OK && code != SQLITE_IOERR_SHORT_READ)
    return sqlite::status_of(nullptr, code, "read the file's header");
  // Other text encodings than UTF-8 can be read, but not attached to what is.
  const bool is_sqlite = std::memcmp(bytes.data(), "SQLite format 3", 16) == 0 &&
                         big_endian(bytes.data() + 56) == SQLITE_UTF8;
  const bool has_our_id = big_endian(bytes.data() + 68) == application_id;
  Header header;
  header.user_version = big_endian(bytes.data() + 60);
  if (!has_our_id)
    header.identity = Identity::foreign;
  else
    header.identity = is_sqlite ? Identity::ours : Identity::ours_damaged;
  return header;
}

Status migrate(sqlite::Connection& connection, std::span<const Step> steps) {
  const auto newest = steps.back().version;
  sqlite::Transaction transaction(connection, sqlite::Transaction::Kind::exclusive);
  if (!transaction.status().ok()) return transaction.status();
  // Looked at again under the lock: another process may have been faster.
  const auto id = connection.integer("PRAGMA application_id");
  if (!id.ok()) return id.status();
  const auto current = connection.integer("PRAGMA user_version");
  if (!current.ok()) return current.status();
  if (*id != application_id) {
    const auto known = connection.integer("SELECT count(*) FROM sqlite_schema");
    if (!known.ok()) return known.status();
    if (*id != 0 || *current != 0 || *known != 0) return not_ours();
    Status status = connection.execute(fmt::format("PRAGMA application_id={}", application_id));
    if (!status.ok()) return status;
  }
  if (*current >= newest) return transaction.commit();
  for (const auto& step : steps) {
    if (step.version <= *current) continue;
    Status status = connection.execute(step.statements);
    if (status.ok())
      status = connection.execute(fmt::format("PRAGMA user_version={}", step.version));
    if (status.ok())
      status = sqlite::Query(connection,
                             "INSERT INTO meta(key, value) VALUES('min_reader', ?) "
                             "ON CONFLICT(key) DO UPDATE SET value = excluded.value",
                             std::to_string(step.min_reader))
                   .run();
    if (!status.ok()) return status;
  }
  Status status = sqlite::Query(connection,
                                "INSERT INTO meta(key, value) VALUES('uuid', ?) "
                                "ON CONFLICT(key) DO NOTHING",
                                text(random_uuid()))
                      .run();
  if (!status.ok()) return status;
  return transaction.commit();
}

Status check_readable(sqlite::Connection& connection, std::int64_t reader) {
  const auto current = connection.integer("PRAGMA user_version");
  if (!current.ok()) return current.status();
  if (*current <= reader) return {};
  const auto oldest =
      connection.integer("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'min_reader'");
  // No number is no permission.
  if (oldest.ok() && *oldest >= 1 && *oldest <= reader) return {};
  return {
      Code::newer_version,
      fmt::format("a newer Quarterturn wrote the file (its version is {}, this library reads up "
                  "to {}); it was left untouched. Update Quarterturn, or give another path",
                  *current, reader)};
}

Status check_objects(sqlite::Connection& connection, const std::string& name, Extras extras) {
  auto fresh = sqlite::Connection::open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                                        std::chrono::milliseconds(0));
  if (!fresh.ok()) return fresh.status();
  Status status = migrate(*fresh, steps());
  if (!status.ok()) return status;
  const auto expected = objects(*fresh, "main");
  const auto found = objects(connection, name);
  if (!expected.ok()) return expected.status();
  if (!found.ok()) return found.status();
  const auto stored = connection.integer(fmt::format("PRAGMA {}.user_version", name));
  if (!stored.ok()) return stored.status();
  const bool newer = *stored > version;  // may have more, and wider, tables

  for (const auto& [object, sql] : *expected) {
    const auto other = found->find(object);
    if (other == found->end()) return {Code::damaged, fmt::format("the file lacks the {}", object)};
    if (!newer && other->second != sql)
      return {Code::damaged, fmt::format("the {} has another shape than its version says", object)};
  }
  if (extras == Extras::allowed) return {};
  for (const auto& [object, sql] : *found) {
    const bool plain = object.starts_with("table ") || object.starts_with("index ");
    const bool known = newer || expected->contains(object);
    if (!plain || !known || sql.starts_with("CREATE VIRTUAL"))
      return {
          Code::damaged,
          fmt::format("the file holds the {}, which no Quarterturn database of its version has; "
                      "it was not used",
                      object)};
  }
  return {};
}

Status check_tables(sqlite::Connection& connection) {
  const auto found = objects(connection, "main");
  if (!found.ok()) return found.status();
  for (const auto* table : tables)
    if (!found->contains(fmt::format("table {}", table)))
      return {Code::damaged, fmt::format("the file lacks the table {}", table)};
  return {};
}

}  // namespace quarterturn::schema
