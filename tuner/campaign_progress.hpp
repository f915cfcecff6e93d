// CampaignProgress: what the workers of a campaign have done so far, by the files that they leave,
// and everything of it in one database.
#pragma once

#include <string>
#include <vector>

#include "cache/leases.hpp"
#include "cache/shared_store.hpp"
#include "tuner/campaign.hpp"
#include "tuner/campaign_folder.hpp"
#include "tuner/redecide.hpp"

namespace quarterturn {

struct ShardProgress {
  std::size_t shard = 0;
  /// "waiting" (nobody began it), "silent" (said to run, and not heard of for three copies), or
  /// what its latest heartbeat says (state_name).
  std::string state = "waiting";
  std::size_t problems = 0, answered = 0;
  std::int64_t trials = 0;     ///< copied out
  std::int64_t compiled = 0;   ///< kernels, by its workers
  std::size_t workers = 0;     ///< that it had
  std::string host, job, now;  ///< of the latest; empty where nobody began
  double age = 0;              ///< seconds since that was heard of
  double left = 0;             ///< estimated seconds of work
};

struct CampaignProgress {
  std::vector<ShardProgress> shards;
  std::vector<SeenHeartbeat> workers;  ///< all that were heard of, the latest last
  leases::LotCounts lots;              ///< in the shared store, where one was asked
  std::size_t problems = 0, answered = 0, running = 0;
  std::int64_t trials = 0;
  double pace = 1;                   ///< time that problems took over what was estimated
  double seconds_left = 0;           ///< with as many workers as run now (one, where none does)
  std::vector<std::string> classes;  ///< performance classes that workers said they are
  std::vector<CampaignFailure> failures;
  std::vector<std::string> notes;  ///< what an operator should know: troubles, clocks that are off
};

/// Reads only, but for a file of a moment that tells the file system's time. With a shared store,
/// what it was given counts, too.
Result<CampaignProgress> progress_of(const Campaign& campaign, const CampaignFolder& folder,
                                     SharedStore* store = nullptr);

struct Collected {
  std::size_t problems = 0, answered = 0, copies = 0;
  std::int64_t trials = 0;     ///< new in the database
  std::int64_t conflicts = 0;  ///< of one name and different content: should never be
  std::int64_t uploaded = 0;   ///< trials of left files that the store had not
  std::string not_uploaded;    ///< why left files were not given to the store; empty: they were
  Redecided decided;
  std::vector<CampaignFailure> missing;  ///< problems without an answer, and why
};

/// Adds all that was copied out to `into`, and all that a shared store has of the campaign, and
/// decides. The same again changes nothing. The store is given what only files have.
Result<Collected> collect(const Campaign& campaign, const CampaignFolder& folder, Database& into,
                          SharedStore* store = nullptr);

}  // namespace quarterturn
