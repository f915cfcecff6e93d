// How tuning databases are merged, and published as snapshots.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "cache/content.hpp"
#include "cache/database_state.hpp"
#include "cache/filesystem.hpp"
#include "cache/rows.hpp"
#include "cache/salvage.hpp"
#include "cache/schema.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Transaction;

constexpr const char* drop_maps =
    "DROP TABLE temp.map_env; DROP TABLE temp.map_problem; DROP TABLE temp.map_variant; "
    "DROP TABLE temp.map_plan;";

// A snapshot that replaces a file in use would be read with that file's log, and writers would go
// on in a file without a name.
Status check_replaceable(const std::string& path, const std::string& source) {
  struct stat old {
  }, own{};
  const bool exists = stat(path.c_str(), &old) == 0;
  if (exists && !source.empty() && stat(source.c_str(), &own) == 0 && old.st_dev == own.st_dev &&
      old.st_ino == own.st_ino)
    return Status(Code::invalid_argument,
                  fmt::format("{} is the database itself, which a snapshot of it would destroy; "
                              "give another path",
                              path));
  for (const char* suffix : {"-wal", "-journal"}) {
    const std::string log = path + suffix;
    struct stat info {};
    if (lstat(log.c_str(), &info) == 0)
      return Status(Code::invalid_argument,
                    fmt::format("{} exists: {} is in use as a database, or was, and its log would "
                                "be taken for the snapshot's; give another path",
                                log, path));
  }
  if (!exists || !S_ISREG(old.st_mode)) return {};
  auto there = Database::open_snapshot(path, Verify::nothing);
  if (!there.ok()) return {};
  const auto info = there->info();
  if (!info.ok() || info->uuid.empty()) return {};
  return Status(Code::invalid_argument,
                fmt::format("{} is a tuning database, and no snapshot: it is not replaced; give "
                            "another path, or add to it by `qturn db merge`",
                            path));
}

Status sync_folder(const std::string& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return system_status(errno, fmt::format("open the folder {}", folder));
  const int failed = fsync(file);
  const int error = errno;
  close(file);
  if (failed != 0) return system_status(error, fmt::format("sync the folder {}", folder));
  return {};
}

// Room for the pages that a merge visits in no order: the indexes of millions of trials.
class LargeCache {
 public:
  explicit LargeCache(Connection& connection) : connection_(connection) { set(-256 * 1024); }
  ~LargeCache() { set(-2000); }  // SQLite's own
  LargeCache(const LargeCache&) = delete;
  LargeCache& operator=(const LargeCache&) = delete;

 private:
  void set(int kibibytes) {
    (void)connection_.execute(fmt::format("PRAGMA main.cache_size={}", kibibytes));
  }

  Connection& connection_;
};

struct Counts {
  std::int64_t trials = 0, tombstones = 0, quarantined = 0;
};

Status count(Connection& c, const char* name, Counts& out) {
  sqlite::Query query(c, fmt::format("SELECT (SELECT count(*) FROM {0}.trial), "
                                     "(SELECT count(*) FROM {0}.tombstone), "
                                     "(SELECT count(*) FROM {0}.quarantine)",
                                     name));
  if (query.next()) out = {query.integer(0), query.integer(1), query.integer(2)};
  return query.status();
}

}  // namespace

Result<Database> Database::open_snapshot(const std::string& path, Verify verify) {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  auto state = std::make_unique<State>();
  state->path = path;
  state->verify = verify;
  Status status = state->open_snapshot();
  if (!status.ok()) return status;
  return Database(std::move(state));
}

Result<MergeReport> Database::merge(const std::string& from) {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  State source;
  source.path = from;
  source.options.access = Access::read_only;
  source.options.fallback = Fallback::none;
  struct stat log {};
  // With a write-ahead log, somebody has the file open or died with it: read it with its log.
  const bool has_log = stat((from + "-wal").c_str(), &log) == 0 && log.st_size > 0;
  Status status = has_log ? source.open() : source.open_snapshot();
  if (status.ok() && has_log)
    status = schema::check_objects(source.connection, "main", schema::Extras::refused);
  if (!status.ok()) return Status(status.code(), fmt::format("{}: {}", from, status.message()));
  const auto verdict = source.connection.text("PRAGMA quick_check(1)");
  if (!verdict.ok()) return verdict.status();
  if (*verdict != "ok")
    return Status(Code::damaged, fmt::format("{} is damaged: {}", from, *verdict));

  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  if (s.mode == DatabaseInfo::Mode::read_only || s.mode == DatabaseInfo::Mode::snapshot)
    return Status(Code::read_only, fmt::format("{} is open for reading only", s.path));
  status = s.reopen();
  if (status.ok()) status = attach_copy(s.connection, source.connection);
  if (!status.ok()) return status;
  MergeReport report;
  const LargeCache cache(s.connection);
  status = s.run(
      [&](Connection& c) {
        Counts before, after, given;
        Status done = count(c, "main", before);
        if (done.ok()) done = count(c, "source", given);
        const auto conflicts = c.integer(
            "SELECT count(*) FROM source.trial s JOIN main.trial m USING(uuid) "
            "WHERE s.checksum <> m.checksum");
        const auto simulated = c.integer(
            fmt::format("SELECT count(*) FROM source.trial t JOIN source.env e ON e.id = t.env_id "
                        "WHERE substr(e.class, 1, {}) = '{}'",
                        kSimulatedClass.size(), kSimulatedClass));
        if (done.ok()) done = conflicts.status();
        if (done.ok()) done = simulated.status();
        if (done.ok())
          done = add_source(c, TrialRows::included, MissRows::included, Notes::kept,
                            SimulatedRows::left_out);
        if (done.ok()) done = c.execute(drop_maps);
        if (done.ok()) done = count(c, "main", after);
        if (!done.ok()) return done;
        report.trials = after.trials - before.trials;
        report.simulated = *simulated;
        report.known = given.trials - report.trials - report.simulated;
        report.conflicts = *conflicts;
        report.tombstones = after.tombstones - before.tombstones;
        report.quarantined = after.quarantined - before.quarantined;
        return done;
      },
      Transaction::Kind::immediate);
  (void)detach_copy(s.connection);
  if (!status.ok()) return status;
  return report;
}

Result<Digest> Database::export_snapshot(const std::string& path, const SnapshotOptions& options) {
  if (path.empty() || path.find("://") != std::string::npos)
    return Status(Code::invalid_argument,
                  fmt::format("\"{}\" is not a path a snapshot can be written to", path));
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  {
    const std::lock_guard lock(state_->mutex);
    const auto& source = state_->mode == DatabaseInfo::Mode::memory ? std::string() : state_->path;
    if (auto free = check_replaceable(path, source); !free.ok()) return free;
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, unique_name());
  const auto make = [&]() -> Result<Digest> {
    if (mknod(temporary.c_str(), S_IFREG | 0600, 0) != 0)
      return system_status(errno, fmt::format("create {}", temporary));
    auto opened =
        Connection::open(temporary, SQLITE_OPEN_READWRITE, std::chrono::milliseconds(1000));
    if (!opened.ok()) return opened.status();
    Connection& c = *opened;
    Status status = schema::migrate(c, schema::steps());
    if (!status.ok()) return status;
    {
      State& s = *state_;
      const std::lock_guard lock(s.mutex);
      status = s.reopen();
      if (status.ok()) status = attach_copy(c, s.connection);
      if (!status.ok()) return status;
    }
    Transaction transaction(c, Transaction::Kind::immediate);
    status = transaction.status();
    if (status.ok())
      status = add_source(c, options.trials, options.misses, Notes::left_out, SimulatedRows::kept);
    if (status.ok()) status = add_source_winners(c);
    if (status.ok()) status = c.execute(drop_maps);
    // Copies of a snapshot must not share the UUID that misses are counted by.
    if (status.ok()) status = c.execute("DELETE FROM meta WHERE key = 'uuid'");
    if (!status.ok()) return status;
    const auto hash = store_hashes(c);
    if (!hash.ok()) return hash.status();
    status = transaction.commit();  // SQLite syncs the file here
    if (!status.ok()) return status;
    (void)detach_copy(c);
    return *hash;
  };
  auto hash = make();
  Status status = hash.status();
  // A snapshot is for others to read.
  if (status.ok() && chmod(temporary.c_str(), 0644) != 0)
    status = system_status(errno, fmt::format("set the mode of {}", temporary));
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = system_status(errno, fmt::format("rename {} to {}", temporary, path));
  if (status.ok()) status = sync_folder(folder_of(path));
  if (status.ok()) return hash;
  unlink(temporary.c_str());
  unlink((temporary + "-journal").c_str());
  return status;
}

Result<RecoverReport> Database::recover(const std::string& damaged, const std::string& to) {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  struct stat info {};
  if (stat(damaged.c_str(), &info) != 0)
    return system_status(errno, fmt::format("read {}", damaged));
  if (stat(to.c_str(), &info) == 0)
    return Status(Code::invalid_argument,
                  fmt::format("{} exists already: what is recovered goes into a fresh file", to));
  DatabaseOptions options;
  options.fallback = Fallback::none;
  auto fresh = open(to, options);
  if (!fresh.ok()) return fresh.status();
  const auto saved = salvage(damaged, fresh->state_->connection);
  if (saved.trials + saved.winners + saved.tombstones + saved.quarantined == 0) {
    *fresh = Database(std::make_unique<State>());
    unlink(to.c_str());
    unlink((to + ".lock").c_str());
    return Status(Code::miss,
                  fmt::format("nothing of {} can be read as a tuning database", damaged));
  }
  return RecoverReport{saved.trials, saved.winners, saved.tombstones, saved.quarantined};
}

Result<Digest> Database::content_hash(Content content) {
  Digest digest{};
  Status status = state_->read([&](Connection& c) {
    const auto hash = hash_content(c, content);
    if (hash.ok()) digest = *hash;
    return hash.status();
  });
  if (!status.ok()) return status;
  return digest;
}

}  // namespace quarterturn
