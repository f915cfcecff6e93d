#include "cache/content.hpp"

#include <fmt/format.h>
#include <sodium.h>

#include <cstring>

#include "cache/rows.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Query;

// Feeds values with type and length, so that no two different row sets give the same bytes.
class RowHash {
 public:
  RowHash() { crypto_hash_sha256_init(&state_); }

  void add(char type, const void* data, std::size_t size) {
    std::array<unsigned char, 9> head{static_cast<unsigned char>(type)};
    for (int i = 0; i < 8; ++i) head[i + 1] = static_cast<unsigned char>(size >> (8 * i));
    crypto_hash_sha256_update(&state_, head.data(), head.size());
    if (size > 0) crypto_hash_sha256_update(&state_, static_cast<const unsigned char*>(data), size);
  }
  void add_row(const Query& query) {
    for (int column = 0; column < query.columns(); ++column) {
      if (query.type(column) == SQLITE_INTEGER) {
        const std::int64_t value = query.integer(column);
        add('i', &value, sizeof value);
      } else if (query.type(column) == SQLITE_FLOAT) {
        const double value = query.real(column);
        add('r', &value, sizeof value);
      } else {
        const auto bytes = query.bytes(column);
        add(query.type(column) == SQLITE_TEXT ? 't' : 'b', bytes.data(), bytes.size());
      }
    }
  }
  Digest finish() {
    Digest digest{};
    crypto_hash_sha256_final(&state_, digest.data());
    return digest;
  }

 private:
  crypto_hash_sha256_state state_{};
};

struct Section {
  const char* name;
  std::string sql;
};

// Times of deciding and free text are no content: two nodes that decide the same agree.
std::vector<Section> sections(Content content) {
  if (content == Content::winners)
    return {{"winner",
             "SELECT p.key, w.target, w.class, l.text, w.choice FROM winner w "
             "JOIN problem p ON p.id = w.problem_id JOIN plan l ON l.id = w.plan_id "
             "ORDER BY 1, 2, 3"}};
  return {
      {"winner",
       "SELECT p.key, w.target, w.class, l.text, w.choice, e.hash, w.speedup, w.speedup_low, "
       "w.speedup_high, w.median_ns, w.regret, w.noise, w.evidence, w.ties, w.certificate "
       "FROM winner w JOIN problem p ON p.id = w.problem_id JOIN plan l ON l.id = w.plan_id "
       "JOIN env e ON e.id = w.env_id ORDER BY 1, 2, 3"},
      {"trial", fmt::format("SELECT t.uuid, p.key, l.text, e.hash, t.campaign, {}, t.samples "
                            "FROM trial t JOIN problem p ON p.id = t.problem_id "
                            "JOIN plan l ON l.id = t.plan_id JOIN env e ON e.id = t.env_id "
                            "WHERE {} ORDER BY t.uuid",
                            rows::trial_fields("t."), rows::live_trial("main"))},
      {"quarantine",
       "SELECT subject, problem, target, class, compiler, reason FROM quarantine "
       "ORDER BY 1, 2, 3, 4, 5, 6"},
      {"tombstone", "SELECT kind, subject, at FROM tombstone ORDER BY 1, 2"},
  };
}

constexpr const char* stored_name(Content content) {
  return content == Content::all ? "content_hash" : "winners_hash";
}

}  // namespace

Result<Digest> hash_content(Connection& connection, Content content) {
  RowHash hash;
  const std::string version = "quarterturn content 1";
  hash.add('v', version.data(), version.size());
  for (const auto& section : sections(content)) {
    hash.add('s', section.name, std::strlen(section.name));
    Query query(connection, section.sql);
    while (query.next()) hash.add_row(query);
    if (!query.status().ok()) return query.status();
  }
  return hash.finish();
}

Result<Digest> store_hashes(Connection& connection) {
  Digest all{};
  for (const Content content : {Content::winners, Content::all}) {
    const auto hash = hash_content(connection, content);
    if (!hash.ok()) return hash.status();
    Status status = Query(connection, "INSERT OR REPLACE INTO meta(key, value) VALUES(?, ?)",
                          stored_name(content), hex(*hash))
                        .run();
    if (!status.ok()) return status;
    all = *hash;
  }
  return all;
}

Status check_stored_hash(Connection& connection, Content content) {
  std::string stored;
  {
    Query query(connection, "SELECT value FROM meta WHERE key = ?", stored_name(content));
    if (!query.next()) return query.status();
    stored = query.text(0);
  }
  const auto hash = hash_content(connection, content);
  if (!hash.ok()) return hash.status();
  if (hex(*hash) == stored) return {};
  return {Code::damaged, fmt::format("the rows have the {} {} but the file states {}",
                                     stored_name(content), hex(*hash), stored)};
}

Status attach_copy(Connection& into, Connection& from) {
  // An unnamed database: private, in memory while it is small, gone when it is detached.
  Status status = into.execute("ATTACH '' AS source");
  if (!status.ok()) return status;
  sqlite3_backup* backup = sqlite3_backup_init(into.handle(), "source", from.handle(), "main");
  if (backup == nullptr)
    return sqlite::status_of(into.handle(), sqlite3_errcode(into.handle()), "copy a database");
  const int code = sqlite3_backup_step(backup, -1);
  sqlite3_backup_finish(backup);
  if (code == SQLITE_DONE) return {};
  status = sqlite::status_of(nullptr, code, "copy a database");
  (void)detach_copy(into);
  return status;
}

Status detach_copy(Connection& into) { return into.execute("DETACH source"); }

Status add_source(Connection& connection, TrialRows trials, MissRows misses, Notes notes,
                  SimulatedRows simulated) {
  // Ids are local to a file: each table of names gives a map from the source's ids to ours.
  const auto map = [](const std::string& table, const std::string& columns,
                      const std::string& identity) {
    return fmt::format(
        "INSERT INTO main.{0}({1}) SELECT {1} FROM source.{0} WHERE true ORDER BY {2} "
        "ON CONFLICT DO NOTHING;"
        "CREATE TEMP TABLE map_{0}(old INTEGER PRIMARY KEY, new INTEGER NOT NULL) STRICT;"
        "INSERT INTO temp.map_{0} SELECT s.id, m.id FROM source.{0} s JOIN main.{0} m USING({2});",
        table, columns, identity);
  };
  const std::string names =
      map("env", "hash, target, class, driver, toolkit, compiler, library, product", "hash") +
      map("problem", "key", "key") + map("variant", "text, family, revision", "text") +
      map("plan", "text", "text") +
      "INSERT OR IGNORE INTO main.plan_step SELECT p.new, s.position, s.kind, v.new "
      "FROM source.plan_step s JOIN temp.map_plan p ON p.old = s.plan_id "
      "JOIN temp.map_variant v ON v.old = s.variant_id;";

  const auto is_taken = [simulated](const char* column) {
    if (simulated == SimulatedRows::kept) return std::string("true");
    return fmt::format("substr({}, 1, {}) <> '{}'", column, kSimulatedClass.size(),
                       kSimulatedClass);
  };
  const std::string fields = rows::trial_fields("");
  // Admissions go with a snapshot even without its timings: they let a family serve.
  const std::string trial = fmt::format(
      "INSERT INTO main.trial(uuid, problem_id, plan_id, env_id, campaign, {}, samples, detail, "
      "checksum) SELECT t.uuid, mp.new, ml.new, me.new, t.campaign, {}, t.samples, {}, t.checksum "
      "FROM source.trial t JOIN source.env e ON e.id = t.env_id "
      "JOIN temp.map_problem mp ON mp.old = t.problem_id "
      "JOIN temp.map_plan ml ON ml.old = t.plan_id JOIN temp.map_env me ON me.old = t.env_id "
      "WHERE {} AND {} AND {} ORDER BY t.uuid ON CONFLICT(uuid) DO UPDATE SET detail = "
      "excluded.detail "
      "WHERE excluded.detail > detail;",
      fields, rows::trial_fields("t."), notes == Notes::kept ? "t.detail" : "''",
      notes == Notes::kept ? "true" : rows::live_trial("source"),
      trials == TrialRows::included ? "true" : "t.kind = 1", is_taken("e.class"));

  const std::string quarantine = fmt::format(
      "INSERT INTO main.quarantine SELECT subject, problem, target, class, compiler, reason, "
      "count, first, last, {} FROM source.quarantine WHERE {} ON CONFLICT DO UPDATE SET "
      "count = max(count, excluded.count), first = min(first, excluded.first), "
      "last = max(last, excluded.last), detail = max(detail, excluded.detail);",
      notes == Notes::kept ? "detail" : "''", is_taken("class"));
  const std::string tombstone = fmt::format(
      "INSERT INTO main.tombstone SELECT kind, subject, at, {} FROM source.tombstone WHERE true "
      "ON CONFLICT DO UPDATE SET at = excluded.at, reason = excluded.reason "
      "WHERE excluded.at < at OR (excluded.at = at AND excluded.reason > reason);",
      notes == Notes::kept ? "reason" : "''");
  const std::string miss = fmt::format(
      "INSERT INTO main.miss SELECT problem, target, class, source, calls, ns FROM source.miss "
      "WHERE {} ON CONFLICT DO UPDATE SET calls = max(calls, excluded.calls), "
      "ns = max(ns, excluded.ns);",
      is_taken("class"));

  return connection.execute(names + trial + quarantine + tombstone +
                            (misses == MissRows::included ? miss : ""));
}

Status add_source_winners(Connection& connection) {
  return connection.execute(
      "INSERT OR REPLACE INTO main.winner SELECT mp.new, w.target, w.class, ml.new, me.new, "
      "w.choice, w.speedup, w.speedup_low, w.speedup_high, w.median_ns, w.regret, w.noise, "
      "w.evidence, w.ties, w.certificate, w.decided FROM source.winner w "
      "JOIN temp.map_problem mp ON mp.old = w.problem_id "
      "JOIN temp.map_plan ml ON ml.old = w.plan_id JOIN temp.map_env me ON me.old = w.env_id "
      "ORDER BY mp.new, w.target, w.class;");
}

}  // namespace quarterturn
