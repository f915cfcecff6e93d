// What a Database holds: its connection, and how the file behind it is opened, watched and mended.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cache/database.hpp"
#include "cache/fork_gate.hpp"
#include "cache/sqlite.hpp"

namespace quarterturn {

struct Database::State final : sqlite::ClosedByFork {
  using Mode = DatabaseInfo::Mode;
  using Work = std::function<Status(sqlite::Connection&)>;

  std::mutex mutex;  // guards everything below
  std::string path;
  DatabaseOptions options;
  Verify verify = Verify::winners;
  Mode mode = Mode::memory;
  sqlite::Connection connection;
  std::vector<std::string> notes;
  std::set<std::string> said;  // all that was ever among them
  std::string journal;

  ~State();
  void close_for_fork() override;

  /// Opens `path`, mending or falling back as the options say.
  Status open();
  Status open_memory();
  Status open_snapshot();

  /// Runs work in one transaction, on the file that is at the path now. When another process has
  /// replaced a damaged file meanwhile, or this one finds it damaged, work runs again on the new
  /// one.
  Status write(const Work& work);
  Status read(const Work& work);

  /// Once: opening a file again after a fork finds again what was said.
  void note(const std::string& message) {
    if (said.insert(message).second) notes.push_back(message);
  }

  /// For callers that hold a Use and the mutex: one attempt, and nothing is mended.
  Status run(const Work& work, sqlite::Transaction::Kind kind);
  /// On the file that is at the path now: opens it where a fork closed it or it was replaced.
  Status reopen();

 private:
  Status make_absolute();
  Status open_file();
  Status connect();
  Status open_own();
  Status damaged_header() const;
  Status connect_unlocked();
  bool is_sound();
  Status connect_read_only(bool newer);
  Status copy_to_memory();
  Status use_write_ahead_log();
  Status heal(const Status& damage);
  bool is_current();
  void disconnect();

  /// What closing does with the write-ahead log.
  enum class Closing { writes_back, leaves_log };
  Closing closing = Closing::leaves_log;
  void set_closing(Closing value);
};

}  // namespace quarterturn
