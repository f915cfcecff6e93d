#include "cache/rows.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "generator/digest.hpp"
#include "generator/variant.hpp"

namespace quarterturn::rows {
namespace {

constexpr std::size_t longest_name = 65536;

Status check_name(std::string_view what, std::string_view value) {
  if (value.empty() || value.size() > longest_name)
    return {Code::invalid_argument,
            fmt::format("{} has {} bytes; 1 to {} are allowed", what, value.size(), longest_name)};
  for (const char c : value)
    if (static_cast<unsigned char>(c) < ' ')
      return {Code::invalid_argument, fmt::format("{} holds a control character", what)};
  return {};
}

Status check_env(const std::shared_ptr<const Env>& env) {
  if (env == nullptr) return {Code::invalid_argument, "the record has no env"};
  Status status = check_name("the env's target", env->target);
  if (status.ok()) status = check_name("the env's performance class", env->performance_class);
  return status;
}

Status check_finite(std::string_view name, double value) {
  if (std::isfinite(value)) return {};
  return {Code::invalid_argument,
          fmt::format("{} is {}; only finite numbers are stored, and 0 for \"not measured\"", name,
                      value)};
}
template <class T>
Status check_finite(std::string_view, const T&) {
  return {};
}

// Canonical bytes: every value with its length, so that two rows never run into the same bytes.
struct Canonical {
  std::uint64_t state = fnv1a("");

  void add(std::string_view value) {
    add(static_cast<std::int64_t>(value.size()));
    state = fnv1a(value, state);
  }
  void add(const std::string& value) { add(std::string_view(value)); }
  void add(const Uuid& value) {
    add(std::string_view(reinterpret_cast<const char*>(value.data()), value.size()));
  }
  void add(std::int64_t value) {
    char bytes[8];
    for (int i = 0; i < 8; ++i)
      bytes[i] = static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
    state = fnv1a({bytes, 8}, state);
  }
  void add(double value) {
    value += 0.0;  // SQLite does not keep the sign of zero
    std::int64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    add(bits);
  }
  void add(TrialKind value) { add(static_cast<std::int64_t>(value)); }
  void add(TrialStatus value) { add(static_cast<std::int64_t>(value)); }
};

void read(const sqlite::Query& query, int column, std::string& out) { out = query.text(column); }
void read(const sqlite::Query& query, int column, std::int64_t& out) {
  out = query.integer(column);
}
void read(const sqlite::Query& query, int column, double& out) { out = query.real(column); }
template <class Enum>
requires std::is_enum_v<Enum>
void read(const sqlite::Query& query, int column, Enum& out) {
  out = static_cast<Enum>(query.integer(column));
}

Uuid read_uuid(sqlite::Bytes bytes) {
  Uuid uuid{};
  if (bytes.size() == uuid.size()) std::memcpy(uuid.data(), bytes.data(), uuid.size());
  return uuid;
}

// Finds a row by its unique text, or makes it.
Result<std::int64_t> find_or_insert(sqlite::Connection& connection, const std::string& find,
                                    const std::string& insert, std::string_view value) {
  {
    sqlite::Query query(connection, find, value);
    if (query.next()) return query.integer(0);
    if (!query.status().ok()) return query.status();
  }
  Status status = sqlite::Query(connection, insert, value).run();
  if (!status.ok()) return status;
  return sqlite3_last_insert_rowid(connection.handle());
}

Result<std::int64_t> variant_id(sqlite::Connection& connection, const Variant& variant) {
  const std::string text = variant.text();
  {
    sqlite::Query query(connection, "SELECT id FROM variant WHERE text = ?", text);
    if (query.next()) return query.integer(0);
    if (!query.status().ok()) return query.status();
  }
  Status status =
      sqlite::Query(connection, "INSERT INTO variant(text, family, revision) VALUES(?, ?, ?)", text,
                    variant.family, variant.revision)
          .run();
  if (!status.ok()) return status;
  return sqlite3_last_insert_rowid(connection.handle());
}

}  // namespace

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Result<Uuid> file_uuid(sqlite::Connection& connection) {
  Status status = sqlite::Query(connection,
                                "INSERT INTO meta(key, value) VALUES('uuid', ?) "
                                "ON CONFLICT(key) DO NOTHING",
                                text(random_uuid()))
                      .run();
  if (!status.ok()) return status;
  const auto stored = connection.text("SELECT value FROM meta WHERE key = 'uuid'");
  if (!stored.ok()) return stored.status();
  auto uuid = parse_uuid(*stored);
  if (!uuid.ok()) return Status(Code::damaged, uuid.status().message());
  return uuid;
}

Result<std::int64_t> env_id(sqlite::Connection& connection, const Env& env) {
  const Digest hash = env.hash();
  {
    sqlite::Query query(connection, "SELECT id FROM env WHERE hash = ?", hash);
    if (query.next()) return query.integer(0);
    if (!query.status().ok()) return query.status();
  }
  Status status = sqlite::Query(connection,
                                "INSERT INTO env(hash, target, class, driver, toolkit, compiler, "
                                "library, product) VALUES(?, ?, ?, ?, ?, ?, ?, ?)",
                                hash, env.target, env.performance_class, env.driver, env.toolkit,
                                env.compiler, env.library, env.product)
                      .run();
  if (!status.ok()) return status;
  return sqlite3_last_insert_rowid(connection.handle());
}

Result<std::int64_t> problem_id(sqlite::Connection& connection, std::string_view key) {
  return find_or_insert(connection, "SELECT id FROM problem WHERE key = ?",
                        "INSERT INTO problem(key) VALUES(?)", key);
}

Result<std::int64_t> plan_id(sqlite::Connection& connection, const std::string& text) {
  {
    sqlite::Query query(connection, "SELECT id FROM plan WHERE text = ?", text);
    if (query.next()) return query.integer(0);
    if (!query.status().ok()) return query.status();
  }
  const auto plan = parse_plan(text);
  if (!plan.ok()) return plan.status();
  if (plan->text() != text)
    return Status(
        Code::invalid_argument,
        fmt::format("the plan \"{}\" is not in canonical form: \"{}\" is", text, plan->text()));
  Status status = sqlite::Query(connection, "INSERT INTO plan(text) VALUES(?)", text).run();
  if (!status.ok()) return status;
  const std::int64_t id = sqlite3_last_insert_rowid(connection.handle());
  std::int64_t position = 0;
  for (const auto& step : plan->steps) {
    const auto variant = variant_id(connection, step.variant);
    if (!variant.ok()) return variant.status();
    status = sqlite::Query(connection,
                           "INSERT INTO plan_step(plan_id, position, kind, variant_id) "
                           "VALUES(?, ?, ?, ?)",
                           id, position++, step_name(step.kind), *variant)
                 .run();
    if (!status.ok()) return status;
  }
  return id;
}

Status check(const Trial& trial) {
  Status status = check_name("the trial's problem", trial.problem);
  if (status.ok()) status = check_name("the trial's plan", trial.plan);
  if (status.ok()) status = check_env(trial.env);
#define X(type, name, meaning) \
  if (status.ok()) status = check_finite("the trial's " #name, trial.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  for (const double sample : trial.samples)
    if (status.ok()) status = check_finite("a sample of the trial", sample);
  return status;
}

Status check(const Winner& winner) {
  Status status = check_name("the winner's problem", winner.problem);
  if (status.ok()) status = check_name("the winner's plan", winner.plan);
  if (status.ok()) status = check_env(winner.env);
  for (const double value : {winner.speedup, winner.speedup_low, winner.speedup_high,
                             winner.median_ns, winner.regret, winner.noise})
    if (status.ok()) status = check_finite("a figure of the winner", value);
  return status;
}

std::string trial_fields(std::string_view prefix) {
  std::string out;
#define X(type, name, meaning) out += fmt::format("{}{}" #name, out.empty() ? "" : ", ", prefix);
  QTURN_TRIAL_FIELDS(X)
#undef X
  return out;
}

std::string trial_columns(std::string_view prefix) {
  return fmt::format("{0}uuid, {0}campaign, {1}, {0}samples, {0}detail, {0}checksum", prefix,
                     trial_fields(prefix));
}

std::int64_t checksum(const Trial& trial) {
  Canonical bytes;
  bytes.add(trial.uuid);
  bytes.add(trial.problem);
  bytes.add(trial.plan);
  bytes.add(trial.env->text());
  bytes.add(trial.campaign);
#define X(type, name, meaning) bytes.add(trial.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  for (const double sample : trial.samples) bytes.add(sample);
  return static_cast<std::int64_t>(bytes.state);
}

Status insert(sqlite::Connection& connection, const Trial& trial) {
  Status status = check(trial);
  if (!status.ok()) return status;
  const auto problem = problem_id(connection, trial.problem);
  if (!problem.ok()) return problem.status();
  const auto plan = plan_id(connection, trial.plan);
  if (!plan.ok()) return plan.status();
  const auto env = env_id(connection, *trial.env);
  if (!env.ok()) return env.status();

  static const std::string sql = [] {
    std::string marks;
#define X(type, name, meaning) marks += ", ?";
    QTURN_TRIAL_FIELDS(X)
#undef X
    return fmt::format(
        "INSERT INTO trial({}, problem_id, plan_id, env_id) VALUES(?, ?{}, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT(uuid) DO NOTHING",
        trial_columns(""), marks);
  }();
  sqlite::Query query(connection, sql);
  int index = 0;
  query.bind(++index, trial.uuid);
  query.bind(++index, trial.campaign);
#define X(type, name, meaning) query.bind(++index, trial.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  query.bind(++index, sqlite::Bytes(reinterpret_cast<const unsigned char*>(trial.samples.data()),
                                    trial.samples.size() * sizeof(double)));
  query.bind(++index, std::string_view(trial.detail).substr(0, longest_name));
  query.bind(++index, checksum(trial));
  query.bind(++index, *problem);
  query.bind(++index, *plan);
  query.bind(++index, *env);
  return query.run();
}

Status insert(sqlite::Connection& connection, const Winner& winner, Existing existing) {
  Status status = check(winner);
  if (!status.ok()) return status;
  const auto problem = problem_id(connection, winner.problem);
  if (!problem.ok()) return problem.status();
  const auto plan = plan_id(connection, winner.plan);
  if (!plan.ok()) return plan.status();
  const auto env = env_id(connection, *winner.env);
  if (!env.ok()) return env.status();
  return sqlite::Query(connection,
                       std::string(existing == Existing::replaced ? "INSERT OR REPLACE"
                                                                  : "INSERT OR IGNORE") +
                           " INTO winner(problem_id, target, class, plan_id, env_id, "
                           "choice, speedup, speedup_low, speedup_high, median_ns, regret, noise, "
                           "evidence, ties, certificate, decided) "
                           "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                       *problem, winner.env->target, winner.env->performance_class, *plan, *env,
                       winner.choice, winner.speedup, winner.speedup_low, winner.speedup_high,
                       winner.median_ns, winner.regret, winner.noise, winner.evidence, winner.ties,
                       winner.certificate, winner.decided)
      .run();
}

Env read_env(const sqlite::Query& query, int column) {
  Env env;
  for (std::string* field : {&env.target, &env.performance_class, &env.driver, &env.toolkit,
                             &env.compiler, &env.library, &env.product})
    *field = query.text(++column);
  return env;
}

Result<Envs> read_envs(sqlite::Connection& connection) {
  Envs envs;
  sqlite::Query query(connection,
                      "SELECT id, target, class, driver, toolkit, compiler, library, product "
                      "FROM env");
  while (query.next()) envs[query.integer(0)] = std::make_shared<const Env>(read_env(query, 0));
  if (!query.status().ok()) return query.status();
  return envs;
}

Trial read_trial(const sqlite::Query& query, int column) {
  Trial trial;
  trial.uuid = read_uuid(query.bytes(column++));
  trial.campaign = read_uuid(query.bytes(column++));
#define X(type, name, meaning) read(query, column++, trial.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  const auto samples = query.bytes(column++);
  trial.samples.resize(samples.size() / sizeof(double));
  if (!trial.samples.empty())
    std::memcpy(trial.samples.data(), samples.data(), trial.samples.size() * sizeof(double));
  trial.detail = query.text(column++);
  return trial;
}

std::string live_trial(std::string_view name) {
  return fmt::format(
      "NOT EXISTS(SELECT 1 FROM {0}.tombstone WHERE kind = 0 AND subject = t.uuid) AND "
      "NOT EXISTS(SELECT 1 FROM {0}.tombstone WHERE kind = 1 AND subject = t.campaign) AND "
      "NOT EXISTS(SELECT 1 FROM {0}.tombstone WHERE kind = 2 AND subject = e.hash)",
      name);
}

}  // namespace quarterturn::rows
