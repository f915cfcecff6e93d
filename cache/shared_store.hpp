// SharedStore: rows of many tuning databases in one PostgreSQL database. They are those of the
// SQLite database, under the same names and by the same rules: a union of what is immutable, and of
// two winners the one whose search was finished, else the first. A store adds nothing of its own,
// so that everything in it can be had from the databases that were added, and the other way round.
//
// Not thread-safe; its owner locks. Errors are those of pg::Connection.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cache/database.hpp"
#include "cache/postgresql.hpp"

namespace quarterturn {

/// What a store was given of one database: later calls send what is new.
struct UploadMark {
  std::int64_t trials = 0;                     ///< the last row of its table
  Uuid last{};                                 ///< the trial in it
  std::map<std::string, std::string> winners;  ///< by place: what was sent
  std::size_t quarantined = 0, tombstones = 0;
  std::int64_t left_behind = 0;  ///< trials that PostgreSQL cannot hold
};

struct UploadReport {
  std::int64_t trials = 0;   ///< new in the store
  std::int64_t known = 0;    ///< were there
  std::int64_t winners = 0;  ///< that the store took
};

struct DownloadReport {
  std::int64_t trials = 0, winners = 0;  ///< rows that the store has
  std::int64_t new_trials = 0;           ///< that the database had not
};

/// Which rows a download is about; empty: all.
struct StoreFilter {
  std::string target;
  std::vector<std::string> problems;
};

class SharedStore {
 public:
  /// With a schema that is as it should be (store_schema::check).
  static Result<SharedStore> open(const std::string& url,
                                  std::chrono::seconds silence = std::chrono::seconds(30));

  pg::Connection& connection() { return connection_; }

  enum class Tombstones { included, left_out };
  /// Adds what the database has and `mark` does not know of yet: trials in batches, each of which
  /// arrives whole or not at all; then winners and quarantine, and tombstones, for which the role
  /// must be the admin's. Trials of simulated devices and such as were taken back stay behind. A
  /// row that PostgreSQL cannot hold (text that is no UTF-8) stays behind, too: not_supported says
  /// how many, when all else has arrived.
  Result<UploadReport> upload(Database& from, UploadMark& mark, Tombstones tombstones);

  /// Adds the store's rows to a database, all of one moment: a union. Every trial is held against
  /// its checksum, every row is checked as if a stranger had written it: damaged names the first
  /// that is wrong.
  Result<DownloadReport> download(Database& into, const StoreFilter& filter = {});

  Result<bool> holds(const Uuid& trial);

  /// Problems of a target that have an answer whose search was finished.
  Result<std::vector<std::string>> answered(std::string_view target);

 private:
  explicit SharedStore(pg::Connection connection) : connection_(std::move(connection)) {}

  using Ids = std::map<std::string, std::int64_t, std::less<>>;
  Status know(const char* table, const std::vector<std::string_view>& texts, Ids& ids);
  Status know_envs(const std::vector<std::shared_ptr<const Env>>& envs);
  Status know_names(const std::vector<std::pair<std::string_view, std::string_view>>& rows);
  Result<std::int64_t> add_trials(const std::vector<Trial>& trials);
  Result<std::int64_t> add_winners(const std::vector<Winner>& winners, const std::string& source);
  Status add_quarantine(const std::vector<Quarantine>& entries);
  Status add_tombstones(const std::vector<Tombstone>& tombstones);

  pg::Connection connection_;
  Ids problems_, plans_, envs_;  // of this store; an env by its text
};

/// Takes winners over by the rule above.
Status adopt_winners(Database& into, const std::vector<Winner>& winners);
/// Whether a winner's search came to its end.
bool is_finished(const Winner& winner);

}  // namespace quarterturn
