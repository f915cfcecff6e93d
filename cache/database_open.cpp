// How a tuning database is opened: whose file it is, of which version, on which file system, and
// what happens when it is damaged or cannot be written.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <ctime>
#include <thread>

#include "cache/content.hpp"
#include "cache/database_state.hpp"
#include "cache/file_lock.hpp"
#include "cache/filesystem.hpp"
#include "cache/salvage.hpp"
#include "cache/schema.hpp"

namespace quarterturn {
namespace {

using sqlite::Connection;
using sqlite::Transaction;

constexpr const char* remedy =
    "Set QTURN_CACHE_DIR, or the database option, to a folder on a "
    "writable local disk";

// A file name as a URI, in which '?', '#' and '%' have a meaning.
std::string immutable_uri(const std::string& path) {
  std::string out = "file:";
  for (const char c : path) {
    if (c == '?' || c == '#' || c == '%')
      out += fmt::format("%{:02X}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + "?immutable=1";
}

std::string with_path(const std::string& path, const Status& status) {
  return fmt::format("{}: {}", path, status.message());
}

std::string moved_name(const std::string& path) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char stamp[32] = {};
  std::strftime(stamp, sizeof stamp, "%Y%m%dT%H%M%SZ", &utc);
  std::string name = fmt::format("{}.damaged-{}", path, stamp);
  // rename would replace an older one of the same second.
  for (int i = 1; access(name.c_str(), F_OK) == 0; ++i)
    name = fmt::format("{}.damaged-{}-{}", path, stamp, i);
  return name;
}

}  // namespace

Database::State::~State() {
  const sqlite::Use use;
  if (use.status().ok())
    disconnect();
  else
    connection.abandon();
}

void Database::State::close_for_fork() {
  if (!connection || mode == Mode::memory) return;
  set_closing(Closing::leaves_log);
  connection.close();
}

void Database::State::disconnect() {
  if (!connection) return;
  FileLock lock;
  if (closing == Closing::writes_back) {
    // The last one to close deletes the log by its name. While a damaged file is moved aside, that
    // could be the log of the fresh one.
    auto shared = FileLock::acquire(path + ".lock", 0, options.wait, LockKind::shared);
    if (shared.ok())
      lock = std::move(*shared);
    else
      set_closing(Closing::leaves_log);
  }
  connection.close();
  closing = Closing::leaves_log;
}

void Database::State::set_closing(Closing value) {
  closing = value;
  sqlite3_db_config(connection.handle(), SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE,
                    value == Closing::leaves_log ? 1 : 0, nullptr);
}

Status Database::State::open_memory() {
  disconnect();
  auto opened =
      Connection::open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, options.wait);
  if (!opened.ok()) return opened.status();
  connection = std::move(*opened);
  mode = Mode::memory;
  return schema::migrate(connection, schema::steps());
}

Status Database::State::open() {
  if (path.empty()) return open_memory();
  if (path.find("://") != std::string::npos)
    return {Code::invalid_argument,
            fmt::format("\"{}\" is a URL; the tuning database is a file on a local disk", path)};
  Status status = make_absolute();
  if (status.ok()) status = open_file();
  const Code code = status.code();
  const bool can_fall_back = code == Code::read_only || code == Code::disk_full ||
                             code == Code::io_error || code == Code::busy;
  if (!can_fall_back || options.fallback == Fallback::none) return status;
  note(
      fmt::format("the tuning database {} cannot be used ({}); results are kept in memory until "
                  "this process ends. {}",
                  path, status.message(), remedy));
  return open_memory();
}

// The host may change its working folder between this and the next time the file is opened.
Status Database::State::make_absolute() {
  if (path.starts_with('/')) return {};
  char folder[PATH_MAX];
  if (getcwd(folder, sizeof folder) == nullptr)
    return system_status(errno, "find the working folder");
  path = fmt::format("{}/{}", folder, path);
  return {};
}

Status Database::State::open_file() {
  disconnect();
  struct stat info {};
  const bool exists = stat(path.c_str(), &info) == 0;
  if (exists && !S_ISREG(info.st_mode))
    return {Code::invalid_argument, fmt::format("{} is not an ordinary file", path)};
  if (!exists && options.access == Access::read_only)
    return {Code::io_error, fmt::format("there is no file {}", path)};

  const std::string folder = folder_of(path);
  const auto filesystem = filesystem_of(folder);
  if (filesystem.kind == FilesystemKind::network && options.network == NetworkFilesystem::refused)
    return {Code::network_filesystem,
            fmt::format("{} lies on a network file system ({}), where several machines writing one "
                        "SQLite file destroy it. {}; share results by `qturn db publish`",
                        path, filesystem.name, remedy)};
  if (!exists) {
    Status status = make_folder(folder);
    if (!status.ok()) return status;
    // mknod makes the file with the right mode and, unlike open and close, cannot disturb locks
    // that another thread takes on it at once.
    if (mknod(path.c_str(), S_IFREG | 0600, 0) != 0 && errno != EEXIST)
      return system_status(errno, fmt::format("create {}", path));
  }
  Status status = connect();
  if (status.code() == Code::damaged && options.access == Access::read_write &&
      mode == Mode::read_write)
    status = heal(status);
  if (!status.ok()) disconnect();
  return status;
}

// Who opens holds a shared lock, who moves a damaged file aside the exclusive one: between the
// moves of log and file nobody may start a new log beside the old file.
Status Database::State::connect() {
  if (options.access == Access::read_only) return connect_unlocked();
  // Looked at before anything is put beside it: a file that is not ours stays as it is, and so does
  // its folder.
  Status status = open_own();
  if (!status.ok()) return status;
  const auto lock = FileLock::acquire(path + ".lock", 0, options.wait, LockKind::shared);
  // Where no lock can be had, nothing can be renamed either.
  if (lock.status().code() == Code::busy) return lock.status();
  return connect_unlocked();
}

// Opens the connection and reads the first bytes, no more: not_ours when they are another
// program's.
Status Database::State::open_own() {
  disconnect();
  mode = Mode::read_write;
  auto opened = Connection::open(path, SQLITE_OPEN_READWRITE, options.wait);
  if (!opened.ok()) return opened.status();
  connection = std::move(*opened);
  const auto header = schema::read_header(connection);
  if (!header.ok()) return header.status();
  if (header->identity == schema::Identity::ours_damaged) return damaged_header();
  if (header->identity != schema::Identity::foreign) return {};
  return {Code::not_ours,
          fmt::format("{} is not a Quarterturn database and was left untouched; give another path",
                      path)};
}

Status Database::State::damaged_header() const {
  return {Code::damaged, fmt::format("the header of {} is damaged", path)};
}

Status Database::State::connect_unlocked() {
  if (options.access == Access::read_only) return connect_read_only(false);
  Status own = open_own();
  if (!own.ok()) return own;
  if (sqlite3_db_readonly(connection.handle(), "main") == 1) return connect_read_only(false);
  // Until the version is known, closing must not write the log back into the file.
  set_closing(Closing::leaves_log);
  const auto version = connection.integer("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version > schema::version) return connect_read_only(true);
  if (*version < schema::version) {
    Status status = schema::migrate(connection, schema::steps());
    if (!status.ok()) return status;
  }
  set_closing(Closing::writes_back);
  Status status = use_write_ahead_log();
  if (status.ok()) status = schema::check_tables(connection);
  return status;
}

Status Database::State::use_write_ahead_log() {
  const bool local = options.network == NetworkFilesystem::refused ||
                     filesystem_of(path).kind == FilesystemKind::local;
  const char* wanted = local ? "wal" : "delete";
  const auto deadline = std::chrono::steady_clock::now() + options.wait;
  auto pause = std::chrono::milliseconds(1);
  while (true) {
    // SQLite does not call its busy handler when the switch meets a lock, so the wait is here.
    const auto got = connection.text(fmt::format("PRAGMA journal_mode={}", wanted));
    if (got.ok()) {
      journal = *got;
      break;
    }
    if (got.status().code() != Code::busy || std::chrono::steady_clock::now() >= deadline)
      return got.status();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  if (journal != wanted)
    note(fmt::format("{} uses the journal mode {}, as its file system has no {}: slower, but safe",
                     path, journal, wanted));
  const bool full = options.durability == Durability::power || journal != "wal";
  return connection.execute(fmt::format("PRAGMA synchronous={}; PRAGMA journal_size_limit=67108864",
                                        full ? "FULL" : "NORMAL"));
}

Status Database::State::connect_read_only(bool newer) {
  disconnect();
  const auto look = [&](const std::string& name, int flags) -> Status {
    auto opened = Connection::open(name, flags | SQLITE_OPEN_READONLY, options.wait);
    if (!opened.ok()) return opened.status();
    connection = std::move(*opened);
    set_closing(Closing::leaves_log);
    const auto header = schema::read_header(connection);
    if (!header.ok()) return header.status();
    if (header->identity == schema::Identity::ours_damaged) return damaged_header();
    if (header->identity != schema::Identity::ours)
      return {Code::not_ours,
              fmt::format("{} is not a Quarterturn database; give another path", path)};
    return schema::check_readable(connection, schema::version);
  };
  Status status = look(path, 0);
  if (status.code() == Code::io_error || status.code() == Code::read_only ||
      status.code() == Code::disk_full) {
    // No shared-memory file and no right or no room to make one: then no writer is alive either.
    connection.close();
    status = look(immutable_uri(path), SQLITE_OPEN_URI);
  }
  mode = Mode::read_only;
  if (!status.ok()) return status;
  const auto version = connection.integer("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version < schema::version) status = copy_to_memory();
  if (status.ok()) status = schema::check_tables(connection);
  if (!status.ok()) return status;
  journal = "read-only";
  if (newer)
    note(
        fmt::format("{} was written by a newer Quarterturn (version {}); it is read, never written",
                    path, *version));
  else if (options.access == Access::read_write)
    note(fmt::format("{} cannot be written; it is read, and new results are not kept. {}", path,
                     remedy));
  return {};
}

// Replaces the connection by a copy in memory that has this library's schema.
Status Database::State::copy_to_memory() {
  auto opened =
      Connection::open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, options.wait);
  if (!opened.ok()) return opened.status();
  sqlite3_backup* backup =
      sqlite3_backup_init(opened->handle(), "main", connection.handle(), "main");
  if (backup == nullptr)
    return sqlite::status_of(opened->handle(), sqlite3_errcode(opened->handle()), "copy the file");
  int code = SQLITE_OK;
  do {
    code = sqlite3_backup_step(backup, 4096);
    if (code == SQLITE_BUSY || code == SQLITE_LOCKED) sqlite3_sleep(5);
  } while (code == SQLITE_OK || code == SQLITE_BUSY || code == SQLITE_LOCKED);
  sqlite3_backup_finish(backup);
  if (code != SQLITE_DONE) return sqlite::status_of(nullptr, code, fmt::format("copy {}", path));
  Status status = schema::migrate(*opened, schema::steps());
  if (!status.ok()) return status;
  disconnect();
  connection = std::move(*opened);
  return {};
}

Status Database::State::open_snapshot() {
  disconnect();
  mode = Mode::snapshot;
  if (path.find("://") != std::string::npos)
    return {Code::invalid_argument, fmt::format("\"{}\" is a URL; a snapshot is a file", path)};
  auto opened =
      Connection::open(immutable_uri(path), SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, options.wait);
  if (!opened.ok()) return {opened.status().code(), with_path(path, opened.status())};
  connection = std::move(*opened);
  const auto header = schema::read_header(connection);
  if (!header.ok()) return header.status();
  if (header->identity == schema::Identity::ours_damaged) return damaged_header();
  if (header->identity != schema::Identity::ours)
    return {Code::not_ours, fmt::format("{} is not a Quarterturn database", path)};
  Status status = schema::check_readable(connection, schema::version);
  if (!status.ok()) return {status.code(), with_path(path, status)};
  const auto version = connection.integer("PRAGMA user_version");
  if (!version.ok()) return version.status();
  if (*version < schema::version || filesystem_of(path).kind == FilesystemKind::network)
    status = copy_to_memory();
  if (status.ok()) status = schema::check_objects(connection, "main", schema::Extras::refused);
  if (status.ok() && verify == Verify::winners)
    status = check_stored_hash(connection, Content::winners);
  journal = "immutable";
  return status.ok() ? status : Status(status.code(), with_path(path, status));
}

bool Database::State::is_current() {
  if (mode != Mode::read_write) return true;
  int moved = 0;
  sqlite3_file_control(connection.handle(), "main", SQLITE_FCNTL_HAS_MOVED, &moved);
  return moved == 0;
}

Status Database::State::reopen() {
  if (!connection && mode == Mode::snapshot) return open_snapshot();
  return connection && is_current() ? Status() : open();
}

Status Database::State::run(const Work& work, Transaction::Kind kind) {
  Status current = reopen();
  if (!current.ok()) return current;
  Transaction transaction(connection, kind);
  if (!transaction.status().ok()) return transaction.status();
  Status status = work(connection);
  return status.ok() ? transaction.commit() : status;
}

Status Database::State::write(const Work& work) {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  const std::lock_guard lock(mutex);
  if (mode == Mode::read_only || mode == Mode::snapshot)
    return {Code::read_only, fmt::format("{} is open for reading only", path)};
  Status status;
  for (int attempt = 0; attempt < 3; ++attempt) {
    status = run(work, Transaction::Kind::immediate);
    if (status.ok() && is_current()) return status;
    if (status.ok()) continue;  // the file was moved aside during the commit: write to the new one
    if (status.code() != Code::damaged || mode != Mode::read_write) return status;
    Status healed = heal(status);
    if (!healed.ok()) return healed;
  }
  return status.ok() ? Status(Code::busy, fmt::format("{} is being replaced over and over", path))
                     : status;
}

Status Database::State::read(const Work& work) {
  const sqlite::Use use;
  if (!use.status().ok()) return use.status();
  const std::lock_guard lock(mutex);
  Status status = run(work, Transaction::Kind::deferred);
  if (status.code() != Code::damaged || mode != Mode::read_write) return status;
  Status healed = heal(status);
  if (!healed.ok()) return healed;
  return run(work, Transaction::Kind::deferred);
}

// After damage was met: whether the file is sound all the same, because the fault was passing.
bool Database::State::is_sound() {
  const auto header = schema::read_header(connection);
  if (!header.ok() || header->identity != schema::Identity::ours) return false;
  // Not quick_check: an index that does not fit its table fails queries, too.
  const auto verdict = connection.text("PRAGMA integrity_check(1)");
  return verdict.ok() && *verdict == "ok" &&
         schema::check_objects(connection, "main", schema::Extras::allowed).ok();
}

// Moves a damaged file of ours aside, starts a fresh one and carries over what can still be read.
Status Database::State::heal(const Status& damage) {
  if (connection && is_current() && is_sound()) return connect();
  std::string moved;
  {
    // In the file's own folder: a lock elsewhere would not be seen by everybody who sees the file.
    const auto lock = FileLock::acquire(path + ".lock", 0, options.wait);
    if (lock.status().code() == Code::busy) return lock.status();
    // Another process may have mended it while this one looked and waited.
    const bool mended = !connection || !is_current();
    if (connection) set_closing(Closing::leaves_log);
    disconnect();
    if (!mended) {
      moved = moved_name(path);
      // The log first: left beside a fresh file, it would be taken for that one's.
      for (const char* suffix : {"-wal", "-shm", "-journal", ""})
        if (rename((path + suffix).c_str(), (moved + suffix).c_str()) != 0 && errno != ENOENT)
          return system_status(errno, fmt::format("move the damaged {} aside", path));
    }
    if (mknod(path.c_str(), S_IFREG | 0600, 0) != 0 && errno != EEXIST)
      return system_status(errno, fmt::format("create {}", path));
    Status status = connect_unlocked();
    if (!status.ok() || moved.empty()) return status;
  }
  // Outside the lock: it may take long, and who works meanwhile only adds rows of his own.
  const auto saved = salvage(moved, connection);
  note(
      fmt::format("the tuning database {} was damaged ({}); it was moved to {} and a fresh one was "
                  "started with {} trials and {} winners saved from it",
                  path, damage.message(), moved, saved.trials, saved.winners));
  return {};
}

}  // namespace quarterturn
