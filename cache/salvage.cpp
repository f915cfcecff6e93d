#include "cache/salvage.hpp"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "cache/rows.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Query;
using sqlite::Transaction;

// Writes in short transactions, so that other processes can use the fresh file meanwhile.
class Batches {
 public:
  explicit Batches(Connection& into) : into_(into) {}
  ~Batches() { finish(); }

  /// Before each insertion.
  void step() {
    if (transaction_ && ++rows_ % 500 == 0) finish();
    if (!transaction_) transaction_.emplace(into_, Transaction::Kind::immediate);
  }
  void finish() {
    if (transaction_) (void)transaction_->commit();
    transaction_.reset();
  }

 private:
  Connection& into_;
  std::optional<Transaction> transaction_;
  int rows_ = 0;
};

// Calls `each` for every row that can be reached from either end. `order`: the columns to sort by,
// first one first. Rows may come twice; `each` must bear it.
void scan(Connection& from, const std::string& select, const std::string& ascending,
          const std::string& descending, const std::function<void(const Query&)>& each) {
  {
    Query query(from, select + " ORDER BY " + ascending);
    while (query.next()) each(query);
    if (query.status().ok()) return;
  }
  Query query(from, select + " ORDER BY " + descending);
  while (query.next()) each(query);
}

std::map<std::int64_t, std::string> texts(Connection& from, const std::string& select) {
  std::map<std::int64_t, std::string> out;
  scan(from, select, "id", "id DESC", [&](const Query& row) { out[row.integer(0)] = row.text(1); });
  return out;
}

}  // namespace

Salvaged salvage(const std::string& damaged, Connection& into) {
  Salvaged saved;
  auto opened = Connection::open(damaged, SQLITE_OPEN_READWRITE, std::chrono::milliseconds(1000));
  if (!opened.ok()) return saved;
  Connection& from = *opened;
  sqlite3_db_config(from.handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);

  const auto problems = texts(from, "SELECT id, key FROM problem");
  const auto plans = texts(from, "SELECT id, text FROM plan");
  rows::Envs envs;
  scan(from, "SELECT id, target, class, driver, toolkit, compiler, library, product, hash FROM env",
       "id", "id DESC", [&](const Query& row) {
         const auto env = std::make_shared<const Env>(rows::read_env(row, 0));
         const auto hash = row.bytes(8);
         const auto expected = env->hash();
         if (std::equal(hash.begin(), hash.end(), expected.begin(), expected.end()))
           envs[row.integer(0)] = env;
       });
  // Fills in what a row refers to by id; false when that is lost.
  const auto resolve = [&](const Query& row, int column, auto& record) {
    const auto problem = problems.find(row.integer(column));
    const auto plan = plans.find(row.integer(column + 1));
    const auto env = envs.find(row.integer(column + 2));
    if (problem == problems.end() || plan == plans.end() || env == envs.end()) return false;
    record.problem = problem->second;
    record.plan = plan->second;
    record.env = env->second;
    return true;
  };

  Batches batches(into);
  const std::string columns = rows::trial_columns("");
  scan(from, fmt::format("SELECT problem_id, plan_id, env_id, {} FROM trial", columns), "rowid",
       "rowid DESC", [&](const Query& row) {
         Trial trial = rows::read_trial(row, 3);
         if (!resolve(row, 0, trial)) return;
         if (rows::checksum(trial) != row.integer(row.columns() - 1)) return;
         batches.step();
         if (rows::insert(into, trial).ok()) saved.trials += into.changes();
       });
  std::set<std::string> decided;
  scan(from,
       "SELECT problem_id, plan_id, env_id, choice, speedup, speedup_low, speedup_high, median_ns, "
       "regret, noise, evidence, ties, certificate, decided FROM winner",
       "problem_id, target, class", "problem_id DESC, target DESC, class DESC",
       [&](const Query& row) {
         Winner winner;
         if (!resolve(row, 0, winner)) return;
         winner.choice = static_cast<Choice>(row.integer(3));
         winner.speedup = row.real(4);
         winner.speedup_low = row.real(5);
         winner.speedup_high = row.real(6);
         winner.median_ns = row.real(7);
         winner.regret = row.real(8);
         winner.noise = row.real(9);
         winner.evidence = row.integer(10);
         winner.ties = row.text(11);
         winner.certificate = row.text(12);
         winner.decided = row.integer(13);
         batches.step();
         if (!rows::insert(into, winner, rows::Existing::kept).ok()) return;
         decided.insert(winner.problem + '\n' + winner.env->text());
       });
  saved.winners = static_cast<std::int64_t>(decided.size());
  scan(from, "SELECT kind, subject, at, reason FROM tombstone", "kind, subject",
       "kind DESC, subject DESC", [&](const Query& row) {
         batches.step();
         const Status status =
             Query(into,
                   "INSERT OR IGNORE INTO tombstone(kind, subject, at, reason) VALUES(?, ?, ?, ?)",
                   row.integer(0), row.bytes(1), row.integer(2), row.text(3))
                 .run();
         if (status.ok()) saved.tombstones += into.changes();
       });
  const std::string key = "subject, problem, target, class, compiler, reason";
  scan(from, fmt::format("SELECT {}, count, first, last, detail FROM quarantine", key), key,
       "subject DESC, problem DESC, target DESC, class DESC, compiler DESC, reason DESC",
       [&](const Query& row) {
         batches.step();
         const Status status =
             Query(into,
                   "INSERT OR IGNORE INTO quarantine(subject, problem, target, class, compiler, "
                   "reason, count, first, last, detail) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   row.text(0), row.text(1), row.text(2), row.text(3), row.text(4), row.integer(5),
                   row.integer(6), row.integer(7), row.integer(8), row.text(9))
                 .run();
         if (status.ok()) saved.quarantined += into.changes();
       });
  return saved;
}

}  // namespace quarterturn
