// Many processes, and processes that are killed.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "cache/database.hpp"
#include "tests/cache/fault_vfs.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

Trial numbered(int number) {
  Trial trial = test::trial(number);
  trial.uuid = test::uuid(number + 1);
  return trial;
}

}  // namespace

TEST_CASE("processes: 16 at once in an empty folder make one schema and lose no row") {
  test::Folder folder(test::Place::disk);
  const auto path = folder / "new/tuning.db";
  const auto results = test::together(16, [&](int i) -> std::string {
    auto db = Database::open(path);
    CHILD_OK(db);
    CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_write);
    for (int j = 0; j < 25; ++j) CHILD_OK(db->add_trial(numbered(100 * i + j)));
    CHILD_OK(db->record_miss({"p", "t", "c", 1, 10}));
    CHILD_OK(db->set_winner(test::winner(i)));
    CHILD_CHECK(db->take_notes().empty());
    return db->info()->uuid;
  });
  for (const auto& result : results) CHECK(result == results[0]);
  CHECK(results[0].size() == 36);
  auto db = Database::open(path);
  REQUIRE(db.ok());
  CHECK(db->info()->trials == 16 * 25);
  CHECK(db->info()->winners == 16);
  CHECK(db->misses("t", "c")->at(0).calls == 16);
  CHECK(db->check()->empty());
  CHECK(test::names_in(folder / "new").size() <= 4);  // file, lock, log and its index
}

TEST_CASE("processes: 64 that store trials one by one lose none") {
  test::Folder folder;
  const auto path = folder / "x.db";
  const auto results = test::together(64, [&](int i) -> std::string {
    auto db = Database::open(path);
    CHILD_OK(db);
    CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_write);
    for (int j = 0; j < 6; ++j) CHILD_OK(db->add_trial(numbered(100 * i + j)));
    return {};
  });
  for (const auto& result : results) CHECK(result == "");
  auto db = Database::open(path);
  std::set<Uuid> found;
  for (const auto& trial : test::live_trials(*db)) found.insert(trial.uuid);
  CHECK(found.size() == 64 * 6);
  CHECK(db->check()->empty());
}

TEST_CASE("processes: nodes that have a /tmp of their own exclude each other all the same") {
  // Locks in a temporary folder would guard nothing here: 2 nodes of 8 writers.
  test::Folder folder(test::Place::memory);
  if (folder.path.starts_with("/tmp/")) {
    std::puts("SKIPPED: there is no place beside /tmp");
    return;
  }
  const auto path = folder / "x.db";
  const auto results = test::together(2, [&](int node) -> std::string {
    return test::with_small_disk("/tmp", "1m", [&]() -> std::string {
      setenv("TMPDIR", node == 0 ? "/tmp" : "/tmp/other", 1);
      for (const auto& result : test::together(8, [&](int i) -> std::string {
             auto db = Database::open(path);
             CHILD_OK(db);
             CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_write);
             for (int j = 0; j < 10; ++j)
               CHILD_OK(db->add_trial(numbered(1000 * node + 100 * i + j)));
             return {};
           }))
        if (!result.empty()) return result;
      return test::names_in("/tmp").empty() ? "" : "something was left in /tmp";
    });
  });
  for (const auto& result : results) {
    if (test::skipped(result)) return;
    CHECK(result == "");
  }
  auto db = Database::open(path);
  CHECK(db->info()->trials == 2 * 8 * 10);
  CHECK(db->check()->empty());
}

TEST_CASE("processes: a wait for another writer is bounded") {
  test::Folder folder;
  DatabaseOptions options;
  options.wait = std::chrono::milliseconds(100);
  auto db = Database::open(folder / "x.db", options);
  REQUIRE(db.ok());
  sqlite3* other = nullptr;
  sqlite3_open((folder / "x.db").c_str(), &other);
  sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr);
  const auto start = std::chrono::steady_clock::now();
  CHECK(db->add_trial(numbered(1)).code() == Code::busy);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
  CHECK(db->info()->trials == 0);  // reading goes on
  sqlite3_exec(other, "ROLLBACK", nullptr, nullptr, nullptr);
  sqlite3_close(other);
  CHECK(db->add_trial(numbered(1)).ok());
}

TEST_CASE("processes: a lock held over the start leaves the newcomer working in memory") {
  test::Folder folder;
  sqlite3* other = nullptr;
  sqlite3_open((folder / "x.db").c_str(), &other);
  sqlite3_exec(other, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr);
  DatabaseOptions options;
  options.wait = std::chrono::milliseconds(100);
  auto db = Database::open(folder / "x.db", options);
  REQUIRE(db.ok());
  CHECK(db->mode() == DatabaseInfo::Mode::memory);
  CHECK(db->add_trial(numbered(1)).ok());
  CHECK(db->take_notes().size() == 1);
  options.fallback = Fallback::none;
  CHECK(Database::open(folder / "x.db", options).status().code() == Code::busy);
  sqlite3_close(other);
}

TEST_CASE("processes: killed at any moment, every acknowledged trial is there") {
  std::mt19937 random(7);
  test::Folder folder(test::Place::disk);
  const auto path = folder / "x.db";
  int acknowledged = 0;
  for (int round = 0; round < 25; ++round) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    test::Child writer([&]() -> std::string {
      auto db = Database::open(path);
      CHILD_OK(db);
      for (int i = 0;; ++i) {
        CHILD_OK(db->add_trial(numbered(round * 100000 + i)));
        if (write(ends[1], &i, sizeof i) != sizeof i) return "pipe";
      }
    });
    close(ends[1]);
    int last = -1;
    const auto next = [&] {
      int i = 0;
      if (read(ends[0], &i, sizeof i) != sizeof i) return false;
      last = i;
      return true;
    };
    // In some rounds before the first trial, in others after a few, and always at a random moment.
    const auto wanted = static_cast<int>(random() % 12) - 1;
    while (last < wanted && next()) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    writer.kill_now();
    (void)writer.wait();
    while (next()) {
    }
    close(ends[0]);
    acknowledged += last + 1;
    auto db = Database::open(path);
    REQUIRE(db.ok());
    CHECK(db->take_notes().empty());
    std::set<Uuid> found;
    for (const auto& trial : test::live_trials(*db)) found.insert(trial.uuid);
    for (int i = 0; i <= last; ++i) CHECK(found.contains(test::uuid(round * 100000 + i + 1)));
  }
  CHECK(acknowledged >= 25);
  CHECK(Database::open(path)->check()->empty());
}

TEST_CASE("processes: killed at each file operation of a first run, nothing acknowledged is lost") {
  long operations = 0;
  for (long at = 0; at <= operations; ++at) {
    test::Folder folder;
    const auto path = folder / "x.db";
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    test::Child writer([&]() -> std::string {
      test::install_faults();
      test::faults().kind = test::Faults::Kind::die;
      test::faults().at = at == 0 ? 1 << 30 : at;
      {
        auto db = Database::open(path);
        CHILD_OK(db);
        for (int i = 0; i < 4; ++i) {
          CHILD_OK(db->add_trial(numbered(i)));
          if (write(ends[1], &i, sizeof i) != sizeof i) return "pipe";
        }
        CHILD_OK(db->set_winner(test::winner()));
      }
      return std::to_string(test::faults().count);
    });
    close(ends[1]);
    const auto result = writer.wait();
    int acknowledged = 0;
    for (int i; read(ends[0], &i, sizeof i) == sizeof i;) acknowledged = i + 1;
    close(ends[0]);
    if (at == 0) {
      operations = std::stol(result);
      REQUIRE(operations > 20);
      continue;
    }
    CHECK(result == "exit status 42");
    auto db = Database::open(path);
    REQUIRE_MESSAGE(db.ok(), db.status().message());
    CHECK(db->mode() == DatabaseInfo::Mode::read_write);
    CHECK(db->take_notes().empty());
    CHECK(db->info()->trials >= acknowledged);
    CHECK(db->info()->trials <= acknowledged + 1);
    CHECK(db->check()->empty());
    CHECK(db->add_trial(numbered(77)).ok());
  }
}

TEST_CASE("processes: a trial is durable however its process ends") {
  // exit, _exit, a signal, an exception that nobody catches: each right after the call returned.
  const std::vector<std::function<void()>> ends{
      [] { std::exit(0); },   [] { _exit(0); },         [] { raise(SIGTERM); },
      [] { raise(SIGKILL); }, [] { std::terminate(); }, [] { std::quick_exit(3); }};
  test::Folder folder;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    test::Child child([&]() -> std::string {
      std::freopen("/dev/null", "w", stderr);
      signal(SIGABRT, SIG_DFL);
      signal(SIGTERM, SIG_DFL);
      auto db = Database::open(folder / "x.db");
      CHILD_OK(db);
      CHILD_OK(db->add_trial(numbered(static_cast<int>(i))));
      ends[i]();
      return {};
    });
    (void)child.wait();
    auto db = Database::open(folder / "x.db");
    CHECK(db->info()->trials == static_cast<std::int64_t>(i + 1));
  }
}
