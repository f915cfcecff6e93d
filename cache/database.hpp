// Database: the tuning database, one SQLite file that many processes of one machine share.
//
// Rows are of two sorts. Immutable ones (env, problem, plan, variant, trial, tombstone) are named
// by content or UUID, so merging files is a union. Derived ones (winner) can be rebuilt from
// trials. Integer ids are local to a file and never leave it.
//
// Durability: a call that returns ok has its rows in the file. They survive the death of any
// process (kill -9 included). With Durability::process they survive a power cut up to the last few
// tens of seconds, which the kernel had not written yet; with Durability::power all of them do, for
// one fsync a call. The file stays consistent in both.
//
// Threads: every member function may be called from any thread. Forks: files are closed before, and
// parent and child open them again at their next call (fork_gate.hpp). A child that was forked in
// the midst of a call that took longer than two seconds gets busy from every function.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/records.hpp"
#include "generator/status.hpp"
#include "generator/variant.hpp"

namespace quarterturn {

enum class Durability { process, power };
enum class NetworkFilesystem { refused, allowed };
enum class Access { read_write, read_only };
/// What open does when the file can be neither written nor read.
enum class Fallback {
  memory,  ///< keep results in memory for this process, and say so in notes()
  none,    ///< return the error
};

struct DatabaseOptions {
  Access access = Access::read_write;
  Fallback fallback = Fallback::memory;
  Durability durability = Durability::process;
  NetworkFilesystem network = NetworkFilesystem::refused;
  std::chrono::milliseconds wait{10000};  ///< for other processes' writes; then Code::busy
};

struct DatabaseInfo {
  enum class Mode { read_write, read_only, memory, snapshot };
  std::string path;  ///< empty in memory
  Mode mode = Mode::memory;
  std::int64_t schema_version = 0, min_reader = 0;
  std::string uuid, journal, sqlite_version;
  std::int64_t bytes = 0;  ///< file and write-ahead log
  std::int64_t envs = 0, problems = 0, plans = 0, variants = 0, trials = 0, winners = 0;
  std::int64_t artifacts = 0, quarantined = 0, tombstones = 0, misses = 0;
};

struct MergeReport {
  std::int64_t trials = 0;      ///< new here
  std::int64_t known = 0;       ///< were here already
  std::int64_t conflicts = 0;   ///< same UUID, other content: this file's row was kept
  std::int64_t simulated = 0;   ///< trials of simulated devices, which are never taken
  std::int64_t tombstones = 0;  ///< new here
  std::int64_t quarantined = 0;
};

struct RecoverReport {
  std::int64_t trials = 0, winners = 0, tombstones = 0, quarantined = 0;
};

struct PruneOptions {
  std::int64_t before = 0;      ///< trials, quarantine and records of code older than this go:
                                ///< nanoseconds since 1970; 0 = none for their age
  std::int64_t most_bytes = 0;  ///< the oldest trials go until the file needs no more; 0 = no limit
  bool dry_run = false;         ///< reports, and changes nothing
};

struct PruneReport {
  std::int64_t trials = 0;   ///< taken back now
  std::int64_t dropped = 0;  ///< rows of these and of such as were taken back earlier
  std::int64_t quarantined = 0, artifacts = 0;
  std::int64_t bytes_before = 0, bytes_after = 0;  ///< in use, without free pages
  bool shrunk = false;  ///< the file gave its free pages back; else it keeps them for later rows
};

enum class TrialRows { included, left_out };
enum class MissRows { included, left_out };
struct SnapshotOptions {
  TrialRows trials = TrialRows::included;
  MissRows misses = MissRows::left_out;
};

/// Which rows a content hash covers.
enum class Content {
  all,      ///< winners, trials, quarantine, tombstones
  winners,  ///< what dispatch depends on: ranks that agree on this serve the same plans
};

/// What open_snapshot compares with the hashes stored in the file. Hashing 20,000 winners takes
/// some 40 ms; Database::check compares everything.
enum class Verify { winners, nothing };

/// A family whose admission on a class of devices, under one compiler, is on record.
struct AdmittedFamily {
  std::string family;  ///< Variant::family_text()
  std::string target, performance_class, compiler;
  std::int64_t last = 0;  ///< admission, nanoseconds since 1970
};

/// A problem on a class of devices: one whose stored winner does not rest on the trials that are
/// here now, or one that was timed at all.
struct Undecided {
  std::string problem, target, performance_class;
};

/// What dispatch reads of the winners of one target; texts that rows share are there once.
struct StoredAnswers {
  struct Row {
    std::size_t key = 0, key_size = 0;  ///< of the problem, in `keys`
    std::uint32_t plan = 0, env = 0;    ///< into the lists below
  };
  std::string_view problem(const Row& row) const {
    return std::string_view(keys).substr(row.key, row.key_size);
  }
  std::vector<Row> rows;
  std::string keys;
  std::vector<std::string> plans;
  std::vector<std::shared_ptr<const Env>> envs;
};

class Database {
 public:
  /// Opens or creates. `path` empty: in memory. A new folder gets mode 0700, a new file 0600.
  /// A damaged file of ours is moved aside and salvaged (see notes). Errors: not_ours,
  /// newer_version, network_filesystem, invalid_argument; and with Fallback::none also read_only,
  /// disk_full, io_error, busy.
  static Result<Database> open(const std::string& path, const DatabaseOptions& options = {});

  /// Opens a file that nobody writes any more (what export_snapshot made). Takes no lock and writes
  /// nothing; from a network file system it is read into memory first. Triggers, views and unknown
  /// objects are refused.
  static Result<Database> open_snapshot(const std::string& path, Verify verify = Verify::winners);

  /// Carries what can be read of a damaged file over into a fresh one at `to`, which must not exist
  /// yet; the damaged one is left as it is. miss: nothing of it could be read.
  static Result<RecoverReport> recover(const std::string& damaged, const std::string& to);

  Database(Database&&) noexcept;
  Database& operator=(Database&&) noexcept;
  ~Database();

  /// What must be said once to the user: moved aside, in memory only, no write-ahead log. Each
  /// message is returned once; later trouble adds new ones.
  std::vector<std::string> take_notes();

  DatabaseInfo::Mode mode() const;

  // ---- trials ----
  Status add_env(const Env& env);
  /// Durable when it returns. A trial that is there already (same UUID) is left as it is.
  Status add_trial(const Trial& trial);
  Status add_trials(std::span<const Trial> trials);  ///< all or none
  /// Without those that a tombstone took back, in a fixed order (started, then uuid).
  Result<std::vector<Trial>> trials(std::string_view problem, std::string_view target,
                                    std::string_view performance_class);
  /// Of every class of a target, for surrogates and seeds; stops after `limit`, newest first.
  Result<std::vector<Trial>> recent_trials(std::string_view target, std::size_t limit);
  /// In the order in which they were added, after the row `last`, at most `limit`; `last` becomes
  /// the last one's, or stays where there is none. 0: from the first.
  Result<std::vector<Trial>> trials_after(std::int64_t& last, std::size_t limit);
  /// Every problem and class with trials that are evidence.
  Result<std::vector<Undecided>> measured();
  /// Whether an admission trial of this family and revision ended ok on such a device: of the same
  /// target and class, under the same compiler.
  Result<bool> has_admission(std::string_view family, std::int32_t revision, const Env& here);
  /// Every family that has_admission answers for, in a fixed order.
  Result<std::vector<AdmittedFamily>> admitted_families();
  Status add_tombstone(const Tombstone& tombstone);
  /// In a fixed order.
  Result<std::vector<Tombstone>> tombstones();
  /// Targets that something was measured on, in a fixed order.
  Result<std::vector<std::string>> targets();

  // ---- winners ----
  /// Replaces the one of the same problem and class.
  Status set_winner(const Winner& winner) { return set_winners({&winner, 1}); }
  Status set_winners(std::span<const Winner> winners);  ///< all or none
  Status remove_winner(std::string_view problem, std::string_view target,
                       std::string_view performance_class);
  Result<std::optional<Winner>> winner_of(std::string_view problem, std::string_view target,
                                          std::string_view performance_class);
  /// Every winner of a target in one query, all performance classes. Rows of one env share one Env
  /// object.
  Result<std::vector<Winner>> winners(std::string_view target);
  /// The same for the dispatcher's table: 20,000 take some 20 ms.
  Result<StoredAnswers> answers(std::string_view target);
  /// Problems that need a decision: the trials that are evidence are not those the winner counted.
  Result<std::vector<Undecided>> undecided();

  // ---- quarantine ----
  /// Repeats add to count and renew last.
  Status add_quarantine(const Quarantine& entry);
  /// The first reason not to run a plan: the plan itself, one of its variants or one of their
  /// families, for this problem or for all, on this target and class, under exactly this compiler.
  Result<std::optional<Quarantine>> quarantine_of(const Plan& plan, std::string_view problem,
                                                  const Env& here);
  Result<std::vector<Quarantine>> quarantine();
  /// Lifts an entry here; a merge from a file that still holds it brings it back.
  Status remove_quarantine(const Quarantine& entry);
  /// Drops what other compilers of this target caused; returns how many.
  Result<std::int64_t> expire_quarantine(std::string_view target, std::string_view compiler);

  // ---- misses ----
  Status record_miss(const Miss& miss) { return record_misses({&miss, 1}); }
  Status record_misses(std::span<const Miss> misses);  ///< adds to what is there
  /// Summed over sources, most time first; without problems whose search is finished by now. An
  /// empty class stands for all.
  Result<std::vector<Miss>> misses(std::string_view target, std::string_view performance_class);
  /// The same with those problems: what was served stale or borrowed is counted, too.
  Result<std::vector<Miss>> servings(std::string_view target, std::string_view performance_class);
  /// Of a problem that has its answer. A merge from a file that still holds them brings them back,
  /// but not into misses().
  Status clear_misses(std::string_view problem, std::string_view target,
                      std::string_view performance_class);

  // ---- compiled code ----
  Status put_artifact(const Artifact& artifact);
  Result<std::optional<Artifact>> artifact(const Digest& key);

  // ---- the file ----
  Result<DatabaseInfo> info();
  /// Every fault found, one a line: pages, foreign keys, row checksums, unknown schema objects.
  /// Empty: sound. Reads everything.
  Result<std::vector<std::string>> check();
  /// Union of the immutable rows of another file, in one transaction, without what simulated
  /// devices left; winners are not merged, see undecided(). The source is opened as a snapshot when
  /// nobody has it open, and never changed.
  Result<MergeReport> merge(const std::string& from);
  /// Keeps every winner with the trials of its plan. Other trials go the way that tombstones take
  /// them: a merge from a file that still has them does not bring them back into any decision.
  Result<PruneReport> prune(const PruneOptions& options);
  /// Writes a read-only copy (temporary name, fsync, rename) that holds no host, user or path name:
  /// no artifacts, no details, and misses only when asked. Returns its content hash.
  Result<Digest> export_snapshot(const std::string& path, const SnapshotOptions& options = {});
  /// SHA-256 over sorted canonical rows: the same for equal content, whatever the order of
  /// insertion.
  Result<Digest> content_hash(Content content = Content::all);

 private:
  struct State;
  explicit Database(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace quarterturn
