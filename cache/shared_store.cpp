#include "cache/shared_store.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "cache/rows.hpp"
#include "cache/store_schema.hpp"
#include "generator/digest.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kUploadBatch = 500, kDownloadBatch = 5000;
// Plans and problems that a client remembers the numbers of.
constexpr std::size_t kMostKnown = 200000;
constexpr std::string_view kUnfinished = "search=unfinished";

template <class T>
constexpr const char* column_type() {
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_same_v<T, double>) return "double precision";
  return "bigint";
}

bool is_storable(const Trial& t) {
  for (const std::string* text :
       {&t.problem, &t.plan, &t.sizes, &t.profile, &t.extra, &t.env->target,
        &t.env->performance_class, &t.env->driver, &t.env->toolkit, &t.env->compiler,
        &t.env->library, &t.env->product})
    if (!pg::is_utf8(*text)) return false;
  return true;
}

std::string digest_text(const Digest& digest) {
  return pg::bytes_text(digest.data(), digest.size());
}

std::string place_of(const Winner& w) {
  return w.problem + '\n' + w.env->target + '\n' + w.env->performance_class;
}

// Columns of a trial in the order of the INSERT and the SELECT below.
const std::string& trial_insert() {
  static const std::string sql = [] {
    std::string types = "$1::uuid[], $2::uuid[]";
    int number = 2;
    const auto column = [&](const char* type) {
      types += fmt::format(", ${}::{}[]", ++number, type);
    };
#define X(type, name, meaning) column(column_type<type>());
    QTURN_TRIAL_FIELDS(X)
#undef X
    for (const auto* type : {"bytea", "text", "bigint", "bigint", "bigint", "bigint"}) column(type);
    return fmt::format(
        "INSERT INTO quarterturn.trial({0}, problem_id, plan_id, env_id) "
        "SELECT * FROM unnest({1}) ON CONFLICT (uuid) DO NOTHING",
        rows::trial_columns(""), types);
  }();
  return sql;
}

// Rows `t` of trial or winner whose env and problem a filter names: values $1 and $2.
constexpr const char* kFilteredRows =
    "JOIN quarterturn.problem p ON p.id = t.problem_id "
    "JOIN quarterturn.plan l ON l.id = t.plan_id WHERE t.env_id = ANY($1::bigint[])";
std::string filtered(bool of_problems) {
  return std::string(kFilteredRows) + (of_problems ? " AND p.name = ANY($2::bytea[])" : "");
}

std::string stored_trial_select(bool of_problems) {
  return fmt::format("SELECT p.text, l.text, t.env_id, {} FROM quarterturn.trial t {}",
                     rows::trial_columns("t."), filtered(of_problems));
}

void read_column(const pg::Rows& row, int column, std::string& out) { out = row.text(0, column); }
void read_column(const pg::Rows& row, int column, std::int64_t& out) {
  out = row.integer(0, column);
}
void read_column(const pg::Rows& row, int column, double& out) { out = row.real(0, column); }
template <class Enum>
requires std::is_enum_v<Enum>
void read_column(const pg::Rows& row, int column, Enum& out) {
  out = static_cast<Enum>(row.integer(0, column));
}

using StoreEnvs = std::map<std::int64_t, std::shared_ptr<const Env>>;

// Of one target, or of all.
Result<StoreEnvs> store_envs(pg::Connection& connection, const std::string& target) {
  const auto rows = connection.execute(
      "SELECT id, target, class, driver, toolkit, compiler, library, product "
      "FROM quarterturn.env WHERE $1::text IN ('', target)",
      {target});
  if (!rows.ok()) return rows.status();
  StoreEnvs out;
  for (int i = 0; i < rows->count(); ++i) {
    Env env;
    int column = 0;
    for (std::string* field : {&env.target, &env.performance_class, &env.driver, &env.toolkit,
                               &env.compiler, &env.library, &env.product})
      *field = rows->text(i, ++column);
    out[rows->integer(i, 0)] = std::make_shared<const Env>(std::move(env));
  }
  return out;
}

// A trial as it stands in a row, or damaged.
Result<Trial> stored_trial(const pg::Rows& row, const StoreEnvs& envs) {
  Trial trial;
  trial.problem = row.text(0, 0);
  trial.plan = row.text(0, 1);
  const auto uuid = parse_uuid(row.text(0, 3)), campaign = parse_uuid(row.text(0, 4));
  const auto env = envs.find(row.integer(0, 2));
  if (!uuid.ok() || !campaign.ok() || env == envs.end())
    return Status(Code::damaged, "a trial of the store names no env, or itself wrongly");
  trial.uuid = *uuid;
  trial.campaign = *campaign;
  trial.env = env->second;
  int column = 5;
#define X(type, name, meaning) read_column(row, column++, trial.name);
  QTURN_TRIAL_FIELDS(X)
#undef X
  const auto samples = row.bytes(0, column++);
  trial.samples.resize(samples.size() / sizeof(double));
  if (!trial.samples.empty())
    std::memcpy(trial.samples.data(), samples.data(), trial.samples.size() * sizeof(double));
  trial.detail = row.text(0, column++);
  if (rows::checksum(trial) != row.integer(0, column))
    return Status(Code::damaged, fmt::format("the trial {} of the store is not what its checksum "
                                             "says",
                                             text(trial.uuid)));
  return trial;
}

}  // namespace

bool is_finished(const Winner& winner) {
  return winner.certificate.find(kUnfinished) == std::string::npos;
}

Status adopt_winners(Database& into, const std::vector<Winner>& winners) {
  std::vector<Winner> wanted;
  for (const auto& winner : winners) {
    const auto ours =
        into.winner_of(winner.problem, winner.env->target, winner.env->performance_class);
    if (!ours.ok()) return ours.status();
    if (!ours->has_value() || (!is_finished(**ours) && is_finished(winner)))
      wanted.push_back(winner);
  }
  return into.set_winners(wanted);
}

Result<SharedStore> SharedStore::open(const std::string& url, std::chrono::seconds silence) {
  auto connection = pg::Connection::open(url, silence);
  if (!connection.ok()) return connection.status();
  if (auto status = store_schema::check(*connection); !status.ok()) return status;
  return SharedStore(std::move(*connection));
}

// ---- upload ----

// Everybody adds names in the same order, so that nobody waits for somebody who waits for him.
Status SharedStore::know_names(
    const std::vector<std::pair<std::string_view, std::string_view>>& rows) {
  std::vector<std::string_view> problems, plans;
  for (const auto& [problem, plan] : rows) {
    problems.push_back(problem);
    plans.push_back(plan);
  }
  if (auto status = know("problem", problems, problems_); !status.ok()) return status;
  return know("plan", plans, plans_);
}

Status SharedStore::know(const char* table, const std::vector<std::string_view>& texts, Ids& ids) {
  if (ids.size() > kMostKnown) ids.clear();
  std::map<std::string, std::string_view> missing;  // by digest
  for (const auto text : texts)
    if (ids.find(text) == ids.end()) missing[digest_text(sha256(text))] = text;
  if (missing.empty()) return {};
  pg::Array names, values;
  for (const auto& [name, text] : missing) {
    names.add(name);
    values.add(text);
  }
  auto rows = connection_.execute(
      fmt::format("INSERT INTO quarterturn.{}(name, text) SELECT * FROM "
                  "unnest($1::bytea[], $2::text[]) ON CONFLICT (name) DO NOTHING",
                  table),
      {names.text(), values.text()});
  if (!rows.ok()) return rows.status();
  rows = connection_.execute(
      fmt::format("SELECT id, name FROM quarterturn.{} WHERE name = ANY($1::bytea[])", table),
      {names.text()});
  if (!rows.ok()) return rows.status();
  for (int i = 0; i < rows->count(); ++i)
    if (const auto found = missing.find(std::string(rows->text(i, 1))); found != missing.end())
      ids[std::string(found->second)] = rows->integer(i, 0);
  for (const auto& [name, text] : missing)
    if (ids.find(text) == ids.end())
      return {Code::damaged, fmt::format("{} does not keep what is added", connection_.name())};
  return {};
}

Status SharedStore::know_envs(const std::vector<std::shared_ptr<const Env>>& envs) {
  std::map<std::string, const Env*> missing;  // by hash
  for (const auto& env : envs)
    if (envs_.find(env->text()) == envs_.end()) missing[digest_text(env->hash())] = env.get();
  for (const auto& [hash, env] : missing) {
    auto rows = connection_.execute(
        "INSERT INTO quarterturn.env(hash, target, class, driver, toolkit, compiler, library, "
        "product) VALUES($1::bytea, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (hash) DO NOTHING",
        {hash, env->target, env->performance_class, env->driver, env->toolkit, env->compiler,
         env->library, env->product});
    if (!rows.ok()) return rows.status();
    rows = connection_.execute("SELECT id FROM quarterturn.env WHERE hash = $1::bytea", {hash});
    if (!rows.ok()) return rows.status();
    if (rows->count() != 1)
      return {Code::damaged, fmt::format("{} does not keep what is added", connection_.name())};
    envs_[env->text()] = rows->integer(0, 0);
  }
  return {};
}

Result<std::int64_t> SharedStore::add_trials(const std::vector<Trial>& trials) {
  std::vector<std::pair<std::string_view, std::string_view>> names;
  std::vector<std::shared_ptr<const Env>> envs;
  for (const auto& trial : trials) {
    names.emplace_back(trial.problem, trial.plan);
    if (envs.empty() || envs.back() != trial.env) envs.push_back(trial.env);
  }
  Status status = know_envs(envs);
  if (status.ok()) status = know_names(names);
  if (!status.ok()) return status;
  std::size_t columns = 8;
#define X(type, name, meaning) ++columns;
  QTURN_TRIAL_FIELDS(X)
#undef X
  std::vector<pg::Array> arrays(columns);
  for (const auto& trial : trials) {
    std::size_t at = 0;
    arrays[at++].add(text(trial.uuid));
    arrays[at++].add(text(trial.campaign));
#define X(type, name, meaning) arrays[at++].add(trial.name);
    QTURN_TRIAL_FIELDS(X)
#undef X
    arrays[at++].add_bytes(trial.samples.data(), trial.samples.size() * sizeof(double));
    arrays[at++].add(pg::as_utf8(trial.detail));
    arrays[at++].add(rows::checksum(trial));
    arrays[at++].add(problems_.find(trial.problem)->second);
    arrays[at++].add(plans_.find(trial.plan)->second);
    arrays[at++].add(envs_.find(trial.env->text())->second);
  }
  std::vector<std::string> values;
  for (const auto& array : arrays) values.push_back(array.text());
  const auto rows = connection_.execute(trial_insert(), values);
  if (!rows.ok()) return rows.status();
  return rows->changed();
}

Result<std::int64_t> SharedStore::add_winners(const std::vector<Winner>& winners,
                                              const std::string& source) {
  if (winners.empty()) return 0;
  std::vector<std::pair<std::string_view, std::string_view>> names;
  std::vector<std::shared_ptr<const Env>> envs;
  for (const auto& winner : winners) {
    names.emplace_back(winner.problem, winner.plan);
    envs.push_back(winner.env);
  }
  Status status = know_envs(envs);
  if (status.ok()) status = know_names(names);
  if (!status.ok()) return status;
  std::vector<pg::Array> a(16);
  for (const auto& w : winners) {
    std::size_t at = 0;
    a[at++].add(problems_.find(w.problem)->second);
    a[at++].add(w.env->target);
    a[at++].add(w.env->performance_class);
    a[at++].add(plans_.find(w.plan)->second);
    a[at++].add(envs_.find(w.env->text())->second);
    a[at++].add(w.choice);
    for (const double value :
         {w.speedup, w.speedup_low, w.speedup_high, w.median_ns, w.regret, w.noise})
      a[at++].add(value);
    a[at++].add(w.evidence);
    a[at++].add(w.ties);
    a[at++].add(w.certificate);
    a[at++].add(w.decided);
  }
  std::vector<std::string> values;
  for (const auto& array : a) values.push_back(array.text());
  values.push_back(source);
  // A database replaces its own; else the rule of adopt_winners.
  const auto rows = connection_.execute(
      fmt::format(
          "INSERT INTO quarterturn.winner AS w(problem_id, target, class, plan_id, env_id, choice, "
          "speedup, speedup_low, speedup_high, median_ns, regret, noise, evidence, ties, "
          "certificate, decided, source) "
          "SELECT u.*, $17::uuid FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], "
          "$5::bigint[], $6::bigint[], $7::double precision[], $8::double precision[], "
          "$9::double precision[], $10::double precision[], $11::double precision[], "
          "$12::double precision[], $13::bigint[], $14::text[], $15::text[], $16::bigint[]) AS u "
          "ON CONFLICT (problem_id, target, class) DO UPDATE SET plan_id = excluded.plan_id, "
          "env_id = excluded.env_id, choice = excluded.choice, speedup = excluded.speedup, "
          "speedup_low = excluded.speedup_low, speedup_high = excluded.speedup_high, "
          "median_ns = excluded.median_ns, regret = excluded.regret, noise = excluded.noise, "
          "evidence = excluded.evidence, ties = excluded.ties, "
          "certificate = excluded.certificate, decided = excluded.decided, "
          "source = excluded.source "
          "WHERE w.source = excluded.source OR (strpos(w.certificate, '{0}') > 0 AND "
          "strpos(excluded.certificate, '{0}') = 0)",
          kUnfinished),
      values);
  if (!rows.ok()) return rows.status();
  return rows->changed();
}

Status SharedStore::add_quarantine(const std::vector<Quarantine>& entries) {
  Status status;
  for (const auto& e : entries) {
    const auto name =
        sha256(fmt::format("{}\n{}\n{}\n{}\n{}\n{}", e.subject, e.problem, e.target,
                           e.performance_class, e.compiler, static_cast<int>(e.reason)));
    if (status.ok() && !is_simulated(e.performance_class))
      status =
          connection_
              .execute(
                  "INSERT INTO quarterturn.quarantine AS q VALUES($1::bytea, $2, $3, $4, "
                  "$5, $6, $7, $8, $9, $10, $11) ON CONFLICT (name) DO UPDATE SET "
                  "count = greatest(q.count, excluded.count), "
                  "first = least(q.first, excluded.first), "
                  "last = greatest(q.last, excluded.last), "
                  "detail = greatest(q.detail COLLATE \"C\", excluded.detail)",
                  {digest_text(name), e.subject, e.problem, e.target, e.performance_class,
                   e.compiler, std::to_string(static_cast<int>(e.reason)), std::to_string(e.count),
                   std::to_string(e.first), std::to_string(e.last), pg::as_utf8(e.detail)})
              .status();
  }
  return status;
}

Status SharedStore::add_tombstones(const std::vector<Tombstone>& tombstones) {
  Status status;
  for (const auto& t : tombstones)
    if (status.ok())
      status = connection_
                   .execute(
                       "INSERT INTO quarterturn.tombstone AS t VALUES($1, $2::bytea, $3, $4) "
                       "ON CONFLICT (kind, subject) DO UPDATE SET at = excluded.at, "
                       "reason = excluded.reason WHERE excluded.at < t.at OR "
                       "(excluded.at = t.at AND excluded.reason COLLATE \"C\" > t.reason)",
                       {std::to_string(static_cast<int>(t.kind)),
                        pg::bytes_text(t.subject.data(), t.subject.size()), std::to_string(t.at),
                        pg::as_utf8(t.reason)})
                   .status();
  return status;
}

Result<UploadReport> SharedStore::upload(Database& from, UploadMark& mark, Tombstones tombstones) {
  UploadReport out;
  for (;;) {
    auto last = mark.trials;
    auto trials = from.trials_after(last, kUploadBatch);
    if (!trials.ok()) return trials.status();
    if (last == mark.trials) break;
    std::erase_if(*trials, [&](const Trial& trial) {
      if (is_simulated(trial.env->performance_class)) return true;
      mark.left_behind += !is_storable(trial);
      return !is_storable(trial);
    });
    if (!trials->empty()) {
      const auto added = add_trials(*trials);
      if (!added.ok()) return added.status();
      out.trials += *added;
      out.known += static_cast<std::int64_t>(trials->size()) - *added;
    }
    mark.trials = last;
    if (!trials->empty()) mark.last = trials->back().uuid;
  }
  const auto targets = from.targets();
  if (!targets.ok()) return targets.status();
  const auto info = from.info();
  if (!info.ok()) return info.status();
  // A snapshot names no file: it is a source of its own.
  const auto source = info->uuid.empty() ? text(random_uuid()) : info->uuid;
  for (const auto& target : *targets) {
    auto winners = from.winners(target);
    if (!winners.ok()) return winners.status();
    std::map<std::string, std::string> sent;
    std::erase_if(*winners, [&](const Winner& w) {
      if (is_simulated(w.env->performance_class)) return true;
      const auto place = place_of(w);
      const auto said = fmt::format("{} {} {} {}", w.plan, w.evidence, w.decided, w.certificate);
      const auto known = mark.winners.find(place);
      if (known != mark.winners.end() && known->second == said) return true;
      sent[place] = said;
      return false;
    });
    for (std::size_t at = 0; at < winners->size(); at += kUploadBatch) {
      const auto end = std::min(winners->size(), at + kUploadBatch);
      const auto added = add_winners({winners->begin() + static_cast<std::ptrdiff_t>(at),
                                      winners->begin() + static_cast<std::ptrdiff_t>(end)},
                                     source);
      if (!added.ok()) return added.status();
      out.winners += *added;
    }
    for (auto& [place, said] : sent) mark.winners[place] = std::move(said);
  }
  const auto quarantined = from.quarantine();
  if (!quarantined.ok()) return quarantined.status();
  if (quarantined->size() != mark.quarantined) {
    if (auto status = add_quarantine(*quarantined); !status.ok()) return status;
    mark.quarantined = quarantined->size();
  }
  if (tombstones == Tombstones::included) {
    const auto all = from.tombstones();
    if (!all.ok()) return all.status();
    if (all->size() != mark.tombstones) {
      if (auto status = add_tombstones(*all); !status.ok()) return status;
      mark.tombstones = all->size();
    }
  }
  if (mark.left_behind > 0)
    return Status(Code::not_supported,
                  fmt::format("{} trials hold text that is no UTF-8, which PostgreSQL does not "
                              "take: they are not in the store",
                              mark.left_behind));
  return out;
}

// ---- download ----

Result<DownloadReport> SharedStore::download(Database& into, const StoreFilter& filter) {
  const auto before = into.info();
  if (!before.ok()) return before.status();
  const pg::Transaction transaction(connection_, pg::Transaction::Kind::snapshot);
  if (!transaction.status().ok()) return transaction.status();
  const auto envs = store_envs(connection_, filter.target);
  if (!envs.ok()) return envs.status();
  pg::Array env_ids;
  for (const auto& [id, env] : *envs) env_ids.add(id);
  std::vector<std::string> values{env_ids.text()};
  const bool some = !filter.problems.empty();
  if (some) {
    pg::Array names;
    for (const auto& problem : filter.problems) names.add(digest_text(sha256(problem)));
    values.push_back(names.text());
  }
  DownloadReport out;
  std::vector<Trial> batch;
  const auto put = [&] {
    Status status = into.add_trials(batch);
    // What the database refuses as a value is the store's fault here.
    if (status.code() == Code::invalid_argument) status = Status(Code::damaged, status.message());
    batch.clear();
    return status;
  };
  Status status = connection_.each(stored_trial_select(some), values, [&](const pg::Rows& row) {
    auto trial = stored_trial(row, *envs);
    if (!trial.ok()) return trial.status();
    if (is_simulated(trial->env->performance_class)) return Status();
    ++out.trials;
    batch.push_back(std::move(*trial));
    return batch.size() < kDownloadBatch ? Status() : put();
  });
  if (status.ok()) status = put();
  if (!status.ok()) return status;

  std::vector<Winner> winners;
  status = connection_.each(
      "SELECT p.text, l.text, t.env_id, t.choice, t.speedup, t.speedup_low, t.speedup_high, "
      "t.median_ns, t.regret, t.noise, t.evidence, t.ties, t.certificate, t.decided "
      "FROM quarterturn.winner t " +
          filtered(some),
      values, [&](const pg::Rows& row) {
        Winner w;
        const auto env = envs->find(row.integer(0, 2));
        if (env == envs->end()) return Status(Code::damaged, "a winner of the store has no env");
        w.problem = row.text(0, 0);
        w.plan = row.text(0, 1);
        w.env = env->second;
        w.choice = row.integer(0, 3) == 0 ? Choice::tuned : Choice::fallback;
        int column = 4;
        for (double* value :
             {&w.speedup, &w.speedup_low, &w.speedup_high, &w.median_ns, &w.regret, &w.noise})
          *value = row.real(0, column++);
        w.evidence = row.integer(0, column++);
        w.ties = row.text(0, column++);
        w.certificate = row.text(0, column++);
        w.decided = row.integer(0, column);
        if (is_simulated(w.env->performance_class)) return Status();
        ++out.winners;
        winners.push_back(std::move(w));
        return Status();
      });
  if (status.ok()) status = adopt_winners(into, winners);
  if (status.code() == Code::invalid_argument) status = Status(Code::damaged, status.message());
  if (!status.ok()) return status;

  const auto quarantined = connection_.execute(
      "SELECT subject, problem, target, class, compiler, reason, count, first, last, detail "
      "FROM quarterturn.quarantine WHERE $1::text IN ('', target)",
      {filter.target});
  if (!quarantined.ok()) return quarantined.status();
  const auto known = into.quarantine();
  if (!known.ok()) return known.status();
  const auto identity = [](const Quarantine& q) {
    return std::tuple(q.subject, q.problem, q.target, q.performance_class, q.compiler, q.reason);
  };
  std::set<decltype(identity(Quarantine{}))> ours;
  for (const auto& q : *known) ours.insert(identity(q));
  for (int i = 0; i < quarantined->count(); ++i) {
    Quarantine q;
    int column = 0;
    for (std::string* field :
         {&q.subject, &q.problem, &q.target, &q.performance_class, &q.compiler})
      *field = quarantined->text(i, column++);
    q.reason = static_cast<QuarantineReason>(quarantined->integer(i, column++));
    q.count = quarantined->integer(i, column++);
    q.first = quarantined->integer(i, column++);
    q.last = quarantined->integer(i, column++);
    q.detail = quarantined->text(i, column);
    // Counts add up where an entry is there; a union takes it once.
    if (ours.count(identity(q)) > 0 || is_simulated(q.performance_class)) continue;
    if (status = into.add_quarantine(q); !status.ok()) return status;
  }

  const auto tombstones =
      connection_.execute("SELECT kind, subject, at, reason FROM quarterturn.tombstone");
  if (!tombstones.ok()) return tombstones.status();
  for (int i = 0; i < tombstones->count(); ++i) {
    const auto subject = tombstones->bytes(i, 1);
    Tombstone t;
    t.kind = static_cast<TombstoneKind>(tombstones->integer(i, 0));
    t.subject.assign(subject.begin(), subject.end());
    t.at = tombstones->integer(i, 2);
    t.reason = tombstones->text(i, 3);
    if (status = into.add_tombstone(t); !status.ok()) return status;
  }
  const auto after = into.info();
  if (!after.ok()) return after.status();
  out.new_trials = after->trials - before->trials;
  return out;
}

Result<bool> SharedStore::holds(const Uuid& trial) {
  const auto rows =
      connection_.execute("SELECT 1 FROM quarterturn.trial WHERE uuid = $1::uuid", {text(trial)});
  if (!rows.ok()) return rows.status();
  return rows->count() > 0;
}

Result<std::vector<std::string>> SharedStore::answered(std::string_view target) {
  std::vector<std::string> out;
  const Status status =
      connection_.each(fmt::format("SELECT DISTINCT p.text FROM quarterturn.winner w "
                                   "JOIN quarterturn.problem p ON p.id = w.problem_id "
                                   "WHERE w.target = $1 AND strpos(w.certificate, '{}') = 0",
                                   kUnfinished),
                       std::vector<std::string>{std::string(target)}, [&](const pg::Rows& row) {
                         out.emplace_back(row.text(0, 0));
                         return Status();
                       });
  if (!status.ok()) return status;
  return out;
}

}  // namespace quarterturn
