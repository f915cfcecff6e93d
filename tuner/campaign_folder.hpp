// CampaignFolder: what the workers of a campaign leave beside its file, on a file system that all
// of them share. Every file appears by rename and belongs to one worker, so that none needs a lock.
//
//   <file>.d/shard-0003-1f2e3d4c.db    what a worker has committed: a snapshot, replaced as a whole
//   <file>.d/shard-0003-1f2e3d4c.json  what it said last (Heartbeat)
//   <file>.d/shard-0003.code.tar       code that the first of two stages compiled
//
// The eight digits name the worker's database: a worker that goes on elsewhere has others, takes up
// what is there, and leaves it in place. Copies of one shard are put together by a union.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cache/database.hpp"
#include "cache/shared_store.hpp"
#include "tuner/campaign.hpp"

namespace quarterturn {

/// A problem that has no answer, and why.
struct CampaignFailure {
  std::string problem, reason;
};

/// What a worker says of itself, a few times a minute.
struct Heartbeat {
  enum class State {
    running,
    done,         ///< every problem has its answer
    incomplete,   ///< it went through all, and some failed
    interrupted,  ///< asked to end: the same command goes on
    stopped       ///< it could not go on: `trouble` says why
  };
  std::size_t shard = 0;
  std::string campaign, worker;  ///< Campaign::id, and the digits in the file's name
  std::string stage;             ///< "tune" or "compile"
  State state = State::running;
  std::string host, device, performance_class, job;  ///< job: "4711_3" of Slurm; may be empty
  std::size_t problems = 0, answered = 0;
  std::int64_t tried = 0, failed = 0, compiled = 0;
  double seconds = 0;            ///< spent in this run
  double estimated_seconds = 0;  ///< that was said of what this run answered
  double interval = 60;          ///< seconds between copies
  std::string now;               ///< what it works on
  std::string trouble;           ///< a full disk, ...; empty: none
  std::int64_t written = 0;      ///< nanoseconds since 1970, by the worker's clock
  std::vector<CampaignFailure> failures;

  std::string text() const;
};
std::string_view state_name(Heartbeat::State state);
/// damaged: it cannot be understood.
Result<Heartbeat> parse_heartbeat(std::string_view text);

/// A heartbeat with the times of its file. Clocks of machines are not compared: a file's age is
/// told by the file system that keeps it.
struct SeenHeartbeat {
  Heartbeat heartbeat;
  double age = 0;   ///< seconds since the file was written
  double skew = 0;  ///< seconds that the worker's clock is ahead of the file system's
};

class CampaignFolder {
 public:
  /// Of the campaign in `file`; nothing is made yet.
  explicit CampaignFolder(const std::string& file) : path_(file + ".d") {}

  const std::string& path() const { return path_; }
  Status make() const;

  std::string database(std::size_t shard, const std::string& worker) const;
  std::string heartbeat(std::size_t shard, const std::string& worker) const;
  std::string code(std::size_t shard) const;

  struct Copy {
    std::size_t shard = 0;
    std::string worker, path;
  };
  /// Databases of every shard, or of one; by name.
  Result<std::vector<Copy>> databases() const;
  Result<std::vector<Copy>> databases(std::size_t shard) const;
  /// What cannot be read is left out.
  Result<std::vector<SeenHeartbeat>> heartbeats() const;

 private:
  Result<std::vector<Copy>> files(std::string_view ending) const;

  std::string path_;
};

/// Temporary name, fsync, rename, fsync of the folder: whoever looks sees the old or the new bytes,
/// also after a power cut. A leftover is removed when it fails.
Status replace_durably(const std::string& path, std::string_view bytes);
Status copy_durably(const std::string& from, const std::string& to);

/// Adds everything in `from` to `into`: trials by union, and winners where there is none yet or one
/// whose search was not finished.
Result<MergeReport> adopt(Database& into, const std::string& from);

}  // namespace quarterturn
