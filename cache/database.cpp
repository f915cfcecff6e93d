#include "cache/database.hpp"

#include <fmt/format.h>

#include <unordered_map>

#include "cache/database_state.hpp"
#include "cache/rows.hpp"

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

// Trials `t` with env `e`, problem `p` and plan `l`; read by read_trials.
std::string trial_select() {
  return fmt::format(
      "SELECT t.env_id, p.key, l.text, {}, t.rowid FROM trial t JOIN env e ON e.id = t.env_id "
      "JOIN problem p ON p.id = t.problem_id JOIN plan l ON l.id = t.plan_id WHERE {} ",
      rows::trial_columns("t."), rows::live_trial("main"));
}

Status read_trials(Connection& connection, Query& query, std::vector<Trial>& out,
                   std::int64_t* last = nullptr) {
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
    if (last) *last = query.integer(query.columns() - 1);
  }
  return query.status();
}

}  // namespace

Database::Database(std::unique_ptr<State> state) : state_(std::move(state)) {}
Database::Database(Database&&) noexcept = default;
Database& Database::operator=(Database&&) noexcept = default;
Database::~Database() = default;

Result<Database> Database::open(const std::string& path, const DatabaseOptions& options) {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  auto state = std::make_unique<State>();
  state->path = path;
  state->options = options;
  Status status = state->open();
  if (!status.ok()) return status;
  return Database(std::move(state));
}

std::vector<std::string> Database::take_notes() {
  const sqlite::Use use;
  if (!use.status().ok()) return {};
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->notes, {});
}

DatabaseInfo::Mode Database::mode() const {
  const sqlite::Use use;
  if (!use.status().ok()) return state_->mode;
  const std::lock_guard lock(state_->mutex);
  return state_->mode;
}

// ---- trials ----

Status Database::add_env(const Env& env) {
  return state_->write([&](Connection& c) { return rows::env_id(c, env).status(); });
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
  return state_->write([&](Connection& c) {
    Status status;
    for (const auto& trial : given)
      if (status.ok()) status = rows::insert(c, trial);
    return status;
  });
}

Result<std::vector<Trial>> Database::trials(std::string_view problem, std::string_view target,
                                            std::string_view performance_class) {
  std::vector<Trial> out;
  Status status = state_->read([&](Connection& c) {
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
  Status status = state_->read([&](Connection& c) {
    out.clear();
    static const std::string sql =
        trial_select() + "AND e.target = ? ORDER BY t.rowid DESC LIMIT ?";
    Query query(c, sql, target, limit);
    return read_trials(c, query, out);
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Trial>> Database::trials_after(std::int64_t& last, std::size_t limit) {
  std::vector<Trial> out;
  std::int64_t reached = last;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    reached = last;
    static const std::string sql = trial_select() + "AND t.rowid > ? ORDER BY t.rowid LIMIT ?";
    Query query(c, sql, last, limit);
    return read_trials(c, query, out, &reached);
  });
  if (!status.ok()) return status;
  last = reached;
  return out;
}

Result<std::vector<Undecided>> Database::measured() {
  std::vector<Undecided> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    static const std::string sql = fmt::format(
        "SELECT DISTINCT p.key, e.target, e.class FROM trial t JOIN env e ON e.id = t.env_id "
        "JOIN problem p ON p.id = t.problem_id WHERE t.kind IN (0, 2) AND {} ORDER BY 1, 2, 3",
        rows::live_trial("main"));
    Query query(c, sql);
    while (query.next()) out.push_back({query.text(0), query.text(1), query.text(2)});
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<bool> Database::has_admission(std::string_view family, std::int32_t revision,
                                     const Env& here) {
  bool found = false;
  Status status = state_->read([&](Connection& c) {
    static const std::string sql = fmt::format(
        "SELECT 1 FROM env e JOIN trial t ON t.env_id = e.id AND t.kind = 1 AND t.status = 0 "
        "JOIN plan_step s ON s.plan_id = t.plan_id JOIN variant v ON v.id = s.variant_id "
        "WHERE e.target = ? AND e.class = ? AND e.compiler = ? AND v.family = ? "
        "AND v.revision = ? AND {} LIMIT 1",
        rows::live_trial("main"));
    Query query(c, sql, here.target, here.performance_class, here.compiler, family, revision);
    found = query.next();
    return query.status();
  });
  if (!status.ok()) return status;
  return found;
}

Result<std::vector<AdmittedFamily>> Database::admitted_families() {
  std::vector<AdmittedFamily> out;
  Status status = state_->read([&](Connection& c) {
    out.clear();
    static const std::string sql = fmt::format(
        "SELECT v.family || '/' || v.revision, e.target, e.class, e.compiler, max(t.started) "
        "FROM env e JOIN trial t ON t.env_id = e.id AND t.kind = 1 AND t.status = 0 "
        "JOIN plan_step s ON s.plan_id = t.plan_id JOIN variant v ON v.id = s.variant_id "
        "WHERE {} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        rows::live_trial("main"));
    Query query(c, sql);
    while (query.next())
      out.push_back({query.text(0), query.text(1), query.text(2), query.text(3), query.integer(4)});
    return query.status();
  });
  if (!status.ok()) return status;
  return out;
}

Status Database::add_tombstone(const Tombstone& tombstone) {
  const std::size_t size = tombstone.kind == TombstoneKind::env ? Digest{}.size() : Uuid{}.size();
  bool zero = true;
  for (const auto byte : tombstone.subject) zero = zero && byte == 0;
  if (tombstone.subject.size() != size || zero)
    return {Code::invalid_argument,
            fmt::format("the subject of a tombstone has {} bytes; {} are needed, not all zero",
                        tombstone.subject.size(), size)};
  const auto at = rows::or_now(tombstone.at);
  return state_->write([&](Connection& c) {
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

Status Database::set_winners(std::span<const Winner> winners) {
  for (const auto& winner : winners) {
    Status status = rows::check(winner);
    if (!status.ok()) return status;
  }
  return state_->write([&](Connection& c) {
    Status status;
    for (const auto& winner : winners)
      if (status.ok()) status = rows::insert(c, winner, rows::Existing::replaced);
    return status;
  });
}

Status Database::remove_winner(std::string_view problem, std::string_view target,
                               std::string_view performance_class) {
  return state_->write([&](Connection& c) {
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
  Status status = state_->read([&](Connection& c) {
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
  Status status = state_->read([&](Connection& c) {
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

Result<StoredAnswers> Database::answers(std::string_view target) {
  StoredAnswers out;
  Status status = state_->read([&](Connection& c) {
    out = {};
    const auto envs = rows::read_envs(c);
    if (!envs.ok()) return envs.status();
    std::unordered_map<std::int64_t, std::uint32_t> plan_at, env_at;
    Query query(c,
                "SELECT p.key, w.plan_id, w.env_id FROM winner w "
                "JOIN problem p ON p.id = w.problem_id WHERE w.target = ?",
                target);
    while (query.next()) {
      const auto env = envs->find(query.integer(2));
      if (env == envs->end()) return Status(Code::damaged, "a winner's env is missing");
      const auto [env_index, new_env] =
          env_at.try_emplace(env->first, static_cast<std::uint32_t>(out.envs.size()));
      if (new_env) out.envs.push_back(env->second);
      const auto plan =
          plan_at.try_emplace(query.integer(1), static_cast<std::uint32_t>(plan_at.size())).first;
      const auto key = query.view(0);
      out.rows.push_back({out.keys.size(), key.size(), plan->second, env_index->second});
      out.keys += key;
    }
    if (!query.status().ok()) return query.status();
    out.plans.resize(plan_at.size());
    for (const auto& [id, at] : plan_at) {
      Query text(c, "SELECT text FROM plan WHERE id = ?", id);
      if (text.next()) out.plans[at] = text.text(0);
      if (!text.status().ok()) return text.status();
    }
    return Status();
  });
  if (!status.ok()) return status;
  return out;
}

Result<std::vector<Undecided>> Database::undecided() {
  std::vector<Undecided> out;
  Status status = state_->read([&](Connection& c) {
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

}  // namespace quarterturn
