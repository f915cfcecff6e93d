// Campaign: problems of one target divided over shards, each of which one worker of a cluster
// tunes. A value, its text and its price: nothing here touches a device or a folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/session.hpp"

namespace quarterturn {

struct CampaignProblem {
  Item item;
  std::size_t shard = 0;
  std::size_t candidates = 0;  ///< that its search tries at most
  double compile_seconds = 0;  ///< of one core
  double device_seconds = 0;   ///< admitting and timing
  double device_bytes = 0;

  bool operator==(const CampaignProblem&) const = default;
};

/// How problems are searched, beside what the library holds for right.
struct CampaignSearch {
  std::size_t candidates = 0;     ///< of each problem at most; 0 = standard_budget
  double problem_time_limit = 0;  ///< seconds; 0 = none
  std::string strategy = "learned";
  std::int64_t rounds = RaceSettings{}.screening_rounds;

  bool operator==(const CampaignSearch&) const = default;
};

/// Problems that one worker does together, as they share a prepared weight.
struct CampaignLot {
  std::size_t shard = 0;
  double seconds = 0;  ///< estimated, of one core and the device
  std::vector<CampaignProblem> problems;
};

struct Campaign {
  std::string target;  ///< Target::key: a worker on another one refuses
  CampaignSearch search;
  std::size_t shards = 0;
  std::vector<CampaignProblem> problems;  ///< by shard, the longest first

  bool operator==(const Campaign&) const = default;

  /// JSON, a problem a line, in a fixed order (docs/cluster.md).
  std::string text() const;
  /// Names the campaign by what it says: 12 hex digits.
  std::string id() const;
  std::vector<Item> items_of(std::size_t shard) const;
  /// All problems, the longest lot first: always in the same order.
  std::vector<CampaignLot> lots() const;
};

/// invalid_argument names what is wrong, newer_version: a later version wrote it.
Result<Campaign> parse_campaign(std::string_view text);

/// Divides what is not decided: problems that share a prepared weight stay together, as they are
/// given one layout; the longest go first, each to the shard with least to do, at `cores` compilers
/// a worker. Shard 0 has most to do. Equal arguments, equal campaign, whatever the order of
/// `estimates`; fewer shards where there is not enough to divide.
Campaign divide(std::string target, CampaignSearch search, const std::vector<Estimate>& estimates,
                std::size_t shards, std::size_t cores);

enum class CampaignForm {
  one_stage,  ///< workers with a device compile, admit and time
  two_stage   ///< workers without one compile, then others admit and time
};

struct CampaignWorkers {
  std::size_t count = 1;  ///< at a time, in each stage
  std::size_t cores = 1;  ///< of each
};

struct CampaignPrice {
  double core_hours = 0;    ///< compiling
  double device_hours = 0;  ///< for which devices are held, those of which they wait for compilers
                            ///< included
  double seconds = 0;       ///< until the last shard is done, if nothing else runs
  double device_bytes = 0;  ///< most that a worker needs at a time
  double host_bytes = 0;    ///< of a worker: its compilers and the data of trials
};

CampaignPrice price(const Campaign& campaign, const CampaignWorkers& workers, CampaignForm form);

/// Which shards a worker is to do, one after the other, by what starts it: an array task of Slurm
/// does its own; of `size` ranks of an MPI program or processes of srun, one does rank,
/// rank + size, ... `variable` gives the environment, empty for what is not set.
Result<std::vector<std::size_t>> shards_of_environment(
    const std::function<std::string(const char*)>& variable, std::size_t shards);

}  // namespace quarterturn
