#include "cache/store_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

namespace quarterturn::store_schema {
namespace {

// Any number that nobody else takes for a lock of his own: "QTRN", and the store's.
constexpr std::int64_t kMigrationLock = 0x5154524e'00000001;

// Version 1. Published statements never change: a later version is a further step.
//
// A row of trial carries what a row of the SQLite database does, under the same name: its UUID.
// Problems and plans are named by their SHA-256, as an index of PostgreSQL takes no long texts.
// No foreign keys: each insert would lock the same few rows of env from a thousand workers; ids
// come from this schema, nobody but its owner can remove what they name, and a trial whose ids
// were wrong is told by its checksum.
constexpr const char* store_version_1 = R"sql(
CREATE TABLE quarterturn.meta(key text PRIMARY KEY, value text NOT NULL);

CREATE TABLE quarterturn.env(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, hash bytea NOT NULL UNIQUE,
  target text NOT NULL, class text NOT NULL, driver text NOT NULL, toolkit text NOT NULL,
  compiler text NOT NULL, library text NOT NULL, product text NOT NULL,
  CHECK (octet_length(hash) = 32));

CREATE TABLE quarterturn.problem(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name bytea NOT NULL UNIQUE,
  text text NOT NULL, CHECK (name = sha256(convert_to(text, 'UTF8'))));

CREATE TABLE quarterturn.plan(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name bytea NOT NULL UNIQUE,
  text text NOT NULL, CHECK (name = sha256(convert_to(text, 'UTF8'))));

CREATE TABLE quarterturn.trial(
  uuid uuid PRIMARY KEY,
  problem_id bigint NOT NULL, plan_id bigint NOT NULL, env_id bigint NOT NULL,
  campaign uuid NOT NULL,
  kind bigint NOT NULL, status bigint NOT NULL, sizes text NOT NULL, profile text NOT NULL,
  rounds bigint NOT NULL, median_ns double precision NOT NULL, low_ns double precision NOT NULL,
  high_ns double precision NOT NULL, ratio double precision NOT NULL,
  ratio_low double precision NOT NULL, ratio_high double precision NOT NULL,
  noise double precision NOT NULL, worst_ns double precision NOT NULL,
  max_error double precision NOT NULL, bias_z double precision NOT NULL,
  repeatable bigint NOT NULL, clock_mhz bigint NOT NULL, temperature_c bigint NOT NULL,
  throttled bigint NOT NULL, compile_ms bigint NOT NULL, registers bigint NOT NULL,
  spills bigint NOT NULL, shared_bytes bigint NOT NULL, started bigint NOT NULL,
  extra text NOT NULL, samples bytea NOT NULL, detail text NOT NULL, checksum bigint NOT NULL);
CREATE INDEX trial_problem ON quarterturn.trial(problem_id);

CREATE TABLE quarterturn.winner(
  problem_id bigint NOT NULL, target text NOT NULL, class text NOT NULL,
  plan_id bigint NOT NULL, env_id bigint NOT NULL, source uuid NOT NULL,
  choice bigint NOT NULL, speedup double precision NOT NULL, speedup_low double precision NOT NULL,
  speedup_high double precision NOT NULL, median_ns double precision NOT NULL,
  regret double precision NOT NULL, noise double precision NOT NULL, evidence bigint NOT NULL,
  ties text NOT NULL, certificate text NOT NULL, decided bigint NOT NULL,
  PRIMARY KEY(problem_id, target, class));

CREATE TABLE quarterturn.quarantine(
  name bytea PRIMARY KEY,
  subject text NOT NULL, problem text NOT NULL, target text NOT NULL, class text NOT NULL,
  compiler text NOT NULL, reason bigint NOT NULL, count bigint NOT NULL,
  first bigint NOT NULL, last bigint NOT NULL, detail text NOT NULL);

CREATE TABLE quarterturn.tombstone(
  kind bigint NOT NULL, subject bytea NOT NULL, at bigint NOT NULL, reason text NOT NULL,
  PRIMARY KEY(kind, subject));

CREATE TABLE quarterturn.campaign(
  id text PRIMARY KEY, target text NOT NULL, lots bigint NOT NULL,
  created timestamptz NOT NULL DEFAULT now());

CREATE TABLE quarterturn.lease(
  campaign text NOT NULL, lot bigint NOT NULL, problems text[] NOT NULL,
  state bigint NOT NULL DEFAULT 0, owner uuid, until timestamptz,
  attempts bigint NOT NULL DEFAULT 0, PRIMARY KEY(campaign, lot));
CREATE INDEX lease_open ON quarterturn.lease(campaign, lot) WHERE state = 0;
CREATE INDEX lease_held ON quarterturn.lease(campaign, until) WHERE state = 1;

CREATE TABLE quarterturn.worker(
  campaign text NOT NULL, worker uuid NOT NULL, heartbeat text NOT NULL,
  trials bigint NOT NULL, seen timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY(campaign, worker));

GRANT USAGE ON SCHEMA quarterturn TO quarterturn_reader, quarterturn_worker;
GRANT SELECT ON ALL TABLES IN SCHEMA quarterturn TO quarterturn_reader, quarterturn_worker;
GRANT INSERT ON quarterturn.env, quarterturn.problem, quarterturn.plan, quarterturn.trial,
  quarterturn.winner, quarterturn.quarantine, quarterturn.campaign, quarterturn.lease,
  quarterturn.worker TO quarterturn_worker;
GRANT UPDATE ON quarterturn.winner TO quarterturn_worker;
GRANT UPDATE(count, first, last, detail) ON quarterturn.quarantine TO quarterturn_worker;
GRANT UPDATE(state, owner, until, attempts) ON quarterturn.lease TO quarterturn_worker;
GRANT UPDATE(heartbeat, trials, seen) ON quarterturn.worker TO quarterturn_worker;
)sql";

struct StoreStep {
  std::int64_t version, min_reader;
  const char* statements;
};
constexpr StoreStep store_steps[] = {{1, 1, store_version_1}};

// Tables and their columns, as shape_query gives them.
constexpr const char* store_tables[] = {
    "campaign(id text, target text, lots bigint, created timestamp with time zone)",
    "env(id bigint, hash bytea, target text, class text, driver text, toolkit text, compiler text, "
    "library text, product text)",
    "lease(campaign text, lot bigint, problems text[], state bigint, owner uuid, until timestamp "
    "with time zone, attempts bigint)",
    "meta(key text, value text)",
    "plan(id bigint, name bytea, text text)",
    "problem(id bigint, name bytea, text text)",
    "quarantine(name bytea, subject text, problem text, target text, class text, compiler text, "
    "reason bigint, count bigint, first bigint, last bigint, detail text)",
    "tombstone(kind bigint, subject bytea, at bigint, reason text)",
    "trial(uuid uuid, problem_id bigint, plan_id bigint, env_id bigint, campaign uuid, kind "
    "bigint, status bigint, sizes text, profile text, rounds bigint, median_ns double precision, "
    "low_ns double precision, high_ns double precision, ratio double precision, ratio_low double "
    "precision, ratio_high double precision, noise double precision, worst_ns double precision, "
    "max_error double precision, bias_z double precision, repeatable bigint, clock_mhz bigint, "
    "temperature_c bigint, throttled bigint, compile_ms bigint, registers bigint, spills bigint, "
    "shared_bytes bigint, started bigint, extra text, samples bytea, detail text, checksum bigint)",
    "winner(problem_id bigint, target text, class text, plan_id bigint, env_id bigint, source "
    "uuid, choice bigint, speedup double precision, speedup_low double precision, speedup_high "
    "double precision, median_ns double precision, regret double precision, noise double "
    "precision, evidence bigint, ties text, certificate text, decided bigint)",
    "worker(campaign text, worker uuid, heartbeat text, trials bigint, seen timestamp with time "
    "zone)"};

// A line for each table; what carries code or hides rows shows behind its columns.
constexpr const char* shape_query = R"sql(
SELECT c.relname::text || '(' || (
    SELECT string_agg(a.attname::text || ' ' || format_type(a.atttypid, a.atttypmod), ', '
                      ORDER BY a.attnum)
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) || ')'
  || CASE WHEN c.relkind <> 'r' THEN ' is no table' ELSE '' END
  || CASE WHEN c.relrowsecurity OR c.relforcerowsecurity THEN ' with row security' ELSE '' END
  || CASE WHEN EXISTS(SELECT 1 FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
     THEN ' with a trigger' ELSE '' END
  || CASE WHEN EXISTS(SELECT 1 FROM pg_rewrite r WHERE r.ev_class = c.oid)
     THEN ' with a rule' ELSE '' END
  || CASE WHEN pg_get_userbyid(c.relowner) <> pg_get_userbyid(n.nspowner)
     THEN ' of another owner' ELSE '' END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'quarterturn' AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
ORDER BY c.relname COLLATE "C")sql";

// No row: there is no such schema.
Result<std::string> schema_owner(pg::Connection& connection) {
  const auto owner = connection.execute(
      "SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'quarterturn'");
  if (!owner.ok()) return owner.status();
  return owner->count() > 0 ? std::string(owner->text(0, 0)) : std::string();
}

Status check_owner(const pg::Connection& connection, const std::string& owner) {
  if (owner == admin_role) return {};
  return {Code::not_ours,
          fmt::format("the schema quarterturn in {} belongs to {}, and not to {}: it was left "
                      "untouched; use another database",
                      connection.name(), owner, admin_role)};
}

struct StoredVersion {
  std::int64_t version = 0, min_reader = 0;
};
Result<StoredVersion> stored_version(pg::Connection& connection) {
  const auto rows = connection.execute(
      "SELECT key, value FROM quarterturn.meta WHERE key IN ('version', 'min_reader')");
  if (!rows.ok()) return rows.status();
  StoredVersion out;
  for (int i = 0; i < rows->count(); ++i)
    (rows->text(i, 0) == "version" ? out.version : out.min_reader) = rows->integer(i, 1);
  return out;
}

Status newer(const pg::Connection& connection, std::int64_t stored) {
  return {Code::newer_version,
          fmt::format("a newer Quarterturn made the store in {} (its version is {}, this one knows "
                      "up to {}); it was left untouched. Update Quarterturn",
                      connection.name(), stored, version)};
}

Status check_shape(pg::Connection& connection, bool is_newer) {
  const auto rows = connection.execute(shape_query);
  if (!rows.ok()) return rows.status();
  std::vector<std::string> found;
  for (int i = 0; i < rows->count(); ++i) found.emplace_back(rows->text(i, 0));
  const auto damaged = [&](const std::string& what) {
    return Status(Code::damaged,
                  fmt::format("the store in {} was not used: it {}", connection.name(), what));
  };
  for (const auto& line : found)
    if (const auto end = line.rfind(')') + 1; end < line.size())
      return damaged("has " + line.substr(0, line.find('(')) + line.substr(end));
  if (is_newer) return {};
  const auto name_of = [](const std::string& line) { return line.substr(0, line.find('(')); };
  for (const std::string expected : store_tables)
    if (std::find(found.begin(), found.end(), expected) == found.end())
      return damaged(
          fmt::format("lacks the table {}, or has it in another shape", name_of(expected)));
  for (const auto& line : found)
    if (std::find(std::begin(store_tables), std::end(store_tables), line) == std::end(store_tables))
      return damaged(fmt::format("holds {}, which no Quarterturn store has", name_of(line)));
  return {};
}

Status must_prepare(pg::Connection& connection, const Status& why) {
  if (why.code() != Code::read_only) return why;
  const auto user = connection.execute("SELECT current_user, current_database()");
  if (!user.ok()) return why;
  return {Code::read_only,
          fmt::format("{}\nSomebody who may create roles and schemas is to run this first:\n{}",
                      why.message(),
                      preparation(std::string(user->text(0, 1)), std::string(user->text(0, 0))))};
}

std::string quoted(const std::string& name) {
  std::string out = "\"";
  for (const char c : name) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

// Roles that are missing, and the caller's membership in the one that owns the schema.
Status make_roles(pg::Connection& connection) {
  for (const auto* role : {reader_role, worker_role, admin_role}) {
    const auto known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = $1", {role});
    if (!known.ok()) return known.status();
    if (known->count() > 0) continue;
    if (auto status = connection.run(fmt::format("CREATE ROLE {} NOLOGIN", role)); !status.ok())
      return status;
  }
  const auto member =
      connection.execute("SELECT pg_has_role(current_user, $1::name, 'MEMBER')", {admin_role});
  if (!member.ok()) return member.status();
  if (member->text(0, 0) == "t") return {};
  return connection.run(fmt::format("GRANT {} TO CURRENT_USER", admin_role));
}

Status apply(pg::Connection& connection, std::int64_t from) {
  Status status = connection.run(fmt::format("SET LOCAL ROLE {}", admin_role));
  for (const auto& step : store_steps) {
    if (step.version <= from) continue;
    if (status.ok()) status = connection.run(step.statements);
    for (const auto& [key, value] :
         {std::pair("version", step.version), std::pair("min_reader", step.min_reader)})
      if (status.ok())
        status = connection
                     .execute(
                         "INSERT INTO quarterturn.meta(key, value) VALUES($1, $2) "
                         "ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                         {key, std::to_string(value)})
                     .status();
  }
  return status;
}

}  // namespace

std::string preparation(const std::string& database, const std::string& user) {
  return fmt::format(
      "CREATE ROLE {0} NOLOGIN;\nCREATE ROLE {1} NOLOGIN;\nCREATE ROLE {2} NOLOGIN;\n"
      "GRANT {2} TO {4};\n"
      "\\connect {3}\nCREATE SCHEMA quarterturn AUTHORIZATION {2};\n",
      reader_role, worker_role, admin_role, quoted(database), quoted(user));
}

Result<Migration> migrate(pg::Connection& connection) {
  if (connection.parameter("server_encoding") != "UTF8")
    return Status(Code::not_supported,
                  fmt::format("the database of {} is encoded in {}; a store needs one in UTF8 "
                              "(createdb -E UTF8 -T template0 NAME)",
                              connection.name(), connection.parameter("server_encoding")));
  pg::Transaction transaction(connection, pg::Transaction::Kind::write);
  if (!transaction.status().ok()) return transaction.status();
  // Two who begin at once go one after the other; the second finds all done.
  const auto locked =
      connection.execute("SELECT pg_advisory_xact_lock($1)", {std::to_string(kMigrationLock)});
  if (!locked.ok()) return locked.status();
  const auto owner = schema_owner(connection);
  if (!owner.ok()) return owner.status();
  Migration out{0, version};
  if (!owner->empty()) {
    if (auto status = check_owner(connection, *owner); !status.ok()) return status;
    const auto made = connection.execute("SELECT to_regclass('quarterturn.meta') IS NOT NULL");
    if (!made.ok()) return made.status();
    if (made->text(0, 0) == "t") {
      const auto stored = stored_version(connection);
      if (!stored.ok()) return stored.status();
      if (stored->version > version) return newer(connection, stored->version);
      if (stored->version == version) {
        if (auto status = check_shape(connection, false); !status.ok()) return status;
        out.from = version;
        return out;
      }
      out.from = stored->version;
    }
  }
  Status status = make_roles(connection);
  if (status.ok() && owner->empty())
    status = connection.run(fmt::format("CREATE SCHEMA quarterturn AUTHORIZATION {}", admin_role));
  if (status.ok()) status = apply(connection, out.from);
  if (status.ok()) status = connection.run("RESET ROLE");
  if (status.ok()) status = transaction.commit();
  if (status.ok()) return out;
  // The transaction failed, and takes no more statements.
  if (connection.is_open()) (void)connection.run("ROLLBACK");
  return must_prepare(connection, status);
}

Status check(pg::Connection& connection) {
  const auto owner = schema_owner(connection);
  if (!owner.ok()) return owner.status();
  if (owner->empty())
    return {Code::miss,
            fmt::format("there is no store in {}: `qturn cluster store init --store URL` makes one",
                        connection.name())};
  if (auto status = check_owner(connection, *owner); !status.ok()) return status;
  const auto stored = stored_version(connection);
  if (!stored.ok()) return stored.status();
  if (stored->version < 1 || (stored->version > version && stored->min_reader > version) ||
      (stored->version > version && stored->min_reader < 1))
    return newer(connection, stored->version);
  return check_shape(connection, stored->version > version);
}

}  // namespace quarterturn::store_schema
