#include "cache/database.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/content.hpp"
#include "cache/database_state.hpp"
#include "cache/rows.hpp"
#include "cache/schema.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Query;

// Columns of a winner `w` with its problem `p` and plan `l`, as read_winner expects them.
constexpr const char* winner_select =
    "SELECT w.env_id, p.key, l.text, w.choice, w.speedup, w.speedup_low, w.speedup_high, "
    "w.median_ns, w.regret, w.noise, w.evidence, w.ties, w.certificate, w.decided "
    "FROM winner w JOIN problem p ON p.id = w.problem_id JOIN plan l ON l.id = w.plan_id ";

Winner read_winner(const Query& query) {
  Winner winner;
  winner.problem = query.text(1);
  winner.plan = query.text(2);
  winner.choice = static_cast<Choice>(query.integer(3));
  winner.speedup = query.real(4);
  winner.speedup_low = query.real(5);
  winner.speedup_high = query.real(6);
  winner.median_ns = query.real(7);
  winner.regret = query.real(8);
  winner.noise = query.real(9);
  winner.evidence = query.integer(10);
  winner.ties = query.text(11);
  winner.certificate = query.text(12);
  winner.decided = query.integer(13);
  return winner;
}

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

// Trials `t` with env `e`, problem `p` and plan `l`; read by read_trials.
std::string trial_select() {
  return fmt::format(
      "SELECT t.env_id, p.key, l.text, {} FROM trial t JOIN env e ON e.id = t.env_id "
      "JOIN problem p ON p.id = t.problem_id JOIN plan l ON l.id = t.plan_id WHERE {} ",
      rows::trial_columns("t."), rows::live_trial("main"));
}

Status read_trials(Connection& connection, Query& query, std::vector<Trial>& out) {
  const auto envs = rows::read_envs(connection);
  if (!envs.ok()) return envs.status();
  while (query.next()) {
    Trial trial = rows::read_trial(query, 3);
    const auto env = envs->find(query.integer(0));
    if (env == envs->end()) return {Code::damaged, "a trial refers to an env that is missing"};
    trial.env = env->second;
    trial.problem = query.text(1);
    trial.plan = query.text(2);
    out.push_back(std::move(trial));
  }
  return query.status();
}

std::int64_t or_now(std::int64_t time) { return time != 0 ? time : rows::nanoseconds_now(); }

std::int64_t file_bytes(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? info.st_size : 0;
}

}  // namespace

Database::Database(std::unique_ptr<State> state) : state_(std::move(state)) {}
Database::Database(Database&&) noexcept = default;
Database& Database::operator=(Database&&) noexcept = default;
Database::~Database() = default;

Result<Database> Database::open(const std::string& path, const DatabaseOptions& options) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->options = options;
  Status status = state->open();
  if (!status.ok()) return status;
  return Database(std::move(state));
}

Database::State& Database::state() {
  if (state_->process == getpid() || state_->mode == DatabaseInfo::Mode::memory) return *state_;
  // A forked child: what it inherited is the parent's, down to the mutex, and is left alone.
  auto fresh = std::make_unique<State>();
  fresh->path = state_->path;
  fresh->options = state_->options;
  const auto mode = state_->mode;
  State* inherited = state_.release();
  inherited->connection.abandon();
  state_ = std::move(fresh);
  Status status = mode == DatabaseInfo::Mode::snapshot ? state_->open_snapshot() : state_->open();
  if (!status.ok()) {
    state_->note(fmt::format("after a fork: {}", status.message()));
    (void)state_->open_memory();
  }
  return *state_;
}

std::vector<std::string> Database::take_notes() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  return std::exchange(s.notes, {});
}

DatabaseInfo::Mode Database::mode() const {
  const std::lock_guard lock(state_->mutex);
  return state_->mode;
}

// ---- trials ----

Status Database::add_env(const Env& env) {
  return state().write([&](Connection& c) { return rows::env_id(c, env).status(); });
}

Status Database::add_trial(const Trial& trial) { return add_trials({&trial, 1}); }

Status Database::add_trials(std::span<const Trial> trials) {
  std::vector<Trial> given(trials.begin(), trials.end());
  for (auto& trial : given) {
    Status status = rows::check(trial);
    if (!status.ok()) return status;
    // Before the transaction: when it has to be repeated, it must not make a second trial.
    if (trial.uuid == Uuid{}) trial.uuid = random_uuid();
  }
  return state().write([&](Connection& c) {
    Status status;
    for (const auto& trial : given)
      if (status.ok()) status = rows::insert(c, trial);
    return status;
  });
}

Result<std::vector<Trial>> Database::trials(std::string_view problem, std::string_view target,
                                            std::string_view performance_class) {
  std::vector<Trial> out;
  Status status = state().read([&](Connection& c) {
    out.clear();
    static const std::string sql =
        trial_select() +
        "AND p.key = ? AND e.target = ? AND e.class = ? ORDER BY t.started, t.uuid";
    Query query(c, sql, problem, target, performance_class);
    return read_trials(c, query, out);
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Trial>> Database::recent_trials(std::string_view target, std::size_t limit) {
  std::vector<Trial> out;
  Status status = state().read([&](Connection& c) {
    out.clear();
    static const std::string sql =
        trial_select() + "AND e.target = ? ORDER BY t.rowid DESC LIMIT ?";
    Query query(c, sql, target, limit);
    return read_trials(c, query, out);
  });
  if (!status.ok()) return status;
  return out;
}

Result<bool> Database::has_admission(std::string_view family, std::int32_t revision,
                                     std::string_view target) {
  bool found = false;
  Status status = state().read([&](Connection& c) {
    static const std::string sql = fmt::format(
        "SELECT 1 FROM env e JOIN trial t ON t.env_id = e.id AND t.kind = 1 AND t.status = 0 "
        "JOIN plan_step s ON s.plan_id = t.plan_id JOIN variant v ON v.id = s.variant_id "
        "WHERE e.target = ? AND v.family = ? AND v.revision = ? AND {} LIMIT 1",
        rows::live_trial("main"));
    Query query(c, sql, target, family, revision);
    found = query.next();
    return query.status();
  });
  if (!status.ok()) return status;
  return found;
}

Status Database::add_tombstone(const Tombstone& tombstone) {
  const std::size_t size = tombstone.kind == TombstoneKind::env ? Digest{}.size() : Uuid{}.size();
  bool zero = true;
  for (const auto byte : tombstone.subject) zero = zero && byte == 0;
  if (tombstone.subject.size() != size || zero)
    return {Code::invalid_argument,
            fmt::format("the subject of a tombstone has {} bytes; {} are needed, not all zero",
                        tombstone.subject.size(), size)};
  const auto at = or_now(tombstone.at);
  return state().write([&](Connection& c) {
    // Of two tombstones for one subject the earlier is kept, so that merging has one result.
    return Query(c,
                 "INSERT INTO tombstone(kind, subject, at, reason) VALUES(?, ?, ?, ?) "
                 "ON CONFLICT(kind, subject) DO UPDATE SET at = excluded.at, "
                 "reason = excluded.reason WHERE excluded.at < at "
                 "OR (excluded.at = at AND excluded.reason > reason)",
                 tombstone.kind, sqlite::Bytes(tombstone.subject), at, tombstone.reason)
        .run();
  });
}

// ---- winners ----

Status Database::set_winner(const Winner& winner) {
  Status status = rows::check(winner);
  if (!status.ok()) return status;
  return state().write([&](Connection& c) { return rows::insert(c, winner); });
}

Status Database::remove_winner(std::string_view problem, std::string_view target,
                               std::string_view performance_class) {
  return state().write([&](Connection& c) {
    return Query(c,
                 "DELETE FROM winner WHERE problem_id = (SELECT id FROM problem WHERE key = ?) "
                 "AND target = ? AND class = ?",
                 problem, target, performance_class)
        .run();
  });
}

Result<std::optional<Winner>> Database::winner_of(std::string_view problem, std::string_view target,
                                                  std::string_view performance_class) {
  std::optional<Winner> out;
  Status status = state().read([&](Connection& c) {
    out.reset();
    static const std::string sql =
        std::string(winner_select) + "WHERE p.key = ? AND w.target = ? AND w.class = ?";
    Query query(c, sql, problem, target, performance_class);
    if (!query.next()) return query.status();
    out = read_winner(query);
    Query env(c,
              "SELECT id, target, class, driver, toolkit, compiler, library, product "
              "FROM env WHERE id = ?",
              query.integer(0));
    if (env.next())
      out->env = std::make_shared<const Env>(rows::read_env(env, 0));
    else if (env.status().ok())
      return Status(Code::damaged, "a winner's env is missing");
    return env.status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Winner>> Database::winners(std::string_view target) {
  std::vector<Winner> out;
  Status status = state().read([&](Connection& c) {
    out.clear();
    const auto envs = rows::read_envs(c);
    if (!envs.ok()) return envs.status();
    static const std::string sql = std::string(winner_select) + "WHERE w.target = ?";
    Query query(c, sql, target);
    while (query.next()) {
      const auto env = envs->find(query.integer(0));
      if (env == envs->end()) return Status(Code::damaged, "a winner's env is missing");
      out.push_back(read_winner(query));
      out.back().env = env->second;
    }
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Undecided>> Database::undecided() {
  std::vector<Undecided> out;
  Status status = state().read([&](Connection& c) {
    out.clear();
    static const std::string sql = fmt::format(
        "WITH live AS (SELECT t.problem_id AS problem_id, e.target AS target, e.class AS class, "
        "count(*) AS evidence FROM trial t JOIN env e ON e.id = t.env_id "
        "WHERE t.kind IN (0, 2) AND {} GROUP BY 1, 2, 3) "
        "SELECT p.key, n.target, n.class FROM live n JOIN problem p ON p.id = n.problem_id "
        "LEFT JOIN winner w USING(problem_id, target, class) WHERE w.evidence IS NOT n.evidence "
        "UNION ALL "
        "SELECT p.key, w.target, w.class FROM winner w JOIN problem p ON p.id = w.problem_id "
        "LEFT JOIN live n USING(problem_id, target, class) "
        "WHERE w.evidence > 0 AND n.evidence IS NULL ORDER BY 1, 2, 3",
        rows::live_trial("main"));
    Query query(c, sql);
    while (query.next()) out.push_back({query.text(0), query.text(1), query.text(2)});
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

// ---- quarantine ----

Status Database::add_quarantine(const Quarantine& entry) {
  if (entry.subject.empty() || entry.target.empty() || entry.compiler.empty())
    return {Code::invalid_argument, "a quarantine needs a subject, a target and a compiler"};
  const auto last = or_now(entry.last);
  const auto first = entry.first != 0 ? entry.first : last;
  return state().write([&](Connection& c) {
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
  for (const auto& step : plan.steps) subjects.push_back(step.variant.text());
  std::optional<Quarantine> out;
  Status status = state().read([&](Connection& c) {
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
  Status status = state().read([&](Connection& c) {
    out.clear();
    Query query(c, quarantine_select);
    while (query.next()) out.push_back(read_quarantine(query));
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Status Database::remove_quarantine(const Quarantine& entry) {
  return state().write([&](Connection& c) {
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
  Status status = state().write([&](Connection& c) {
    Status done =
        Query(c, "DELETE FROM quarantine WHERE target = ? AND compiler <> ?", target, compiler)
            .run();
    dropped = c.changes();
    return done;
  });
  if (!status.ok()) return status;
  return dropped;
}

// ---- misses ----

Status Database::record_misses(std::span<const Miss> misses) {
  return state().write([&](Connection& c) {
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

Result<std::vector<Miss>> Database::misses(std::string_view target,
                                           std::string_view performance_class) {
  std::vector<Miss> out;
  Status status = state().read([&](Connection& c) {
    out.clear();
    // total() cannot overflow, unlike sum().
    Query query(c,
                "SELECT m.problem, total(m.calls), total(m.ns) FROM miss m "
                "LEFT JOIN problem p ON p.key = m.problem "
                "LEFT JOIN winner w ON w.problem_id = p.id AND w.target = m.target "
                "AND w.class = m.class WHERE m.target = ? AND m.class = ? "
                "AND w.problem_id IS NULL GROUP BY m.problem ORDER BY 3 DESC, 1",
                target, performance_class);
    while (query.next())
      out.push_back({query.text(0), std::string(target), std::string(performance_class),
                     query.integer(1), query.integer(2)});
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

// ---- compiled code ----

Status Database::put_artifact(const Artifact& a) {
  const auto used = or_now(a.last_used);
  return state().write([&](Connection& c) {
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
  Status status = state().read([&](Connection& c) {
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

// ---- the file ----

Result<DatabaseInfo> Database::info() {
  State& s = state();
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
  std::vector<std::string> faults;
  State& s = state();
  const std::lock_guard lock(s.mutex);
  Connection& c = s.connection;
  const auto collect = [&](const char* sql) {
    Query query(c, sql);
    while (query.next())
      if (query.text(0) != "ok") faults.push_back(query.text(0));
    if (!query.status().ok()) faults.push_back(query.status().message());
  };
  collect("PRAGMA quick_check");
  collect(
      "SELECT 'row of ' || \"table\" || ' refers to a missing row of ' || parent "
      "FROM pragma_foreign_key_check");
  if (const Status objects = schema::check_objects(c, "main"); !objects.ok())
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
