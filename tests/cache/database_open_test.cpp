// Whose file it is, and of which version; what is refused stays untouched, byte for byte.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include "cache/database.hpp"
#include "cache/schema.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

DatabaseOptions strict() {
  DatabaseOptions options;
  options.fallback = Fallback::none;
  return options;
}

// Every file of a folder with its bytes.
std::vector<std::pair<std::string, std::string>> bytes_of(const std::string& folder) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& name : test::names_in(folder))
    out.emplace_back(name, test::read_file(folder + "/" + name));
  return out;
}

void fill(const std::string& path, int trials = 5) {
  auto db = Database::open(path);
  REQUIRE(db.ok());
  for (int i = 0; i < trials; ++i) REQUIRE(db->add_trial(test::trial(i)).ok());
}

}  // namespace

TEST_CASE("database.open refuses what is not ours and leaves it untouched") {
  test::Folder folder;
  test::write_file(folder / "text.db", "this is no database\n");
  test::write_file(folder / "zeros.db", std::string(10000, '\0'));
  test::write_file(folder / "short.db", "SQLite format 3");
  CHECK(test::raw(folder / "foreign.db", "PRAGMA application_id=1234; CREATE TABLE t(a)") == "");
  CHECK(test::raw(folder / "plain.db",
                  "CREATE TABLE meta(key, value); INSERT INTO meta VALUES(1, 2)") == "");
  CHECK(test::raw(folder / "versioned.db", "CREATE TABLE trial(a); PRAGMA user_version=1") == "");
  const auto before = bytes_of(folder.path);
  for (const auto& [name, bytes] : before)
    for (const auto& options : {DatabaseOptions{}, strict()}) {
      CHECK_MESSAGE(Database::open(folder / name, options).status().code() == Code::not_ours, name);
      CHECK(Database::open_snapshot(folder / name).status().code() == Code::not_ours);
      auto db = Database::open("");
      CHECK(db->merge(folder / name).status().code() == Code::not_ours);
    }
  CHECK(bytes_of(folder.path) == before);
}

TEST_CASE("database.open leaves another program's live write-ahead log alone") {
  test::Folder folder;
  const auto path = folder / "foreign.db";
  test::Child writer([&]() -> std::string {
    sqlite3* handle = nullptr;
    sqlite3_open(path.c_str(), &handle);
    sqlite3_exec(handle,
                 "PRAGMA application_id=5; PRAGMA journal_mode=WAL; CREATE TABLE t(a); "
                 "INSERT INTO t VALUES(1)",
                 nullptr, nullptr, nullptr);
    _exit(0);  // without closing: the log stays
  });
  CHECK(writer.wait() == "");
  const auto before = bytes_of(folder.path);
  REQUIRE(before.size() == 3);
  CHECK(Database::open(path).status().code() == Code::not_ours);
  CHECK(bytes_of(folder.path) == before);
}

TEST_CASE("database.open reads a newer version when that allows it, and never writes it") {
  for (const bool allowed : {true, false})
    for (const bool in_log : {false, true}) {
      test::Folder folder;
      const auto path = folder / "tuning.db";
      fill(path);
      const std::string upgrade = fmt::format(
          "PRAGMA user_version=99; UPDATE meta SET value = '{}' WHERE key = 'min_reader'; "
          "ALTER TABLE trial ADD COLUMN future TEXT; CREATE TABLE future(a)",
          allowed ? 1 : 99);
      // Either checkpointed into the file, or only in the log that a killed process left.
      CHECK(test::Child([&]() -> std::string {
              if (!in_log) return test::raw(path, upgrade);
              sqlite3* handle = nullptr;
              sqlite3_open(path.c_str(), &handle);
              sqlite3_exec(handle, upgrade.c_str(), nullptr, nullptr, nullptr);
              _exit(0);
            }).wait() == "");
      const auto file = test::read_file(path);
      const auto log = test::read_file(path + "-wal");
      CHECK(log.empty() == !in_log);
      auto db = Database::open(path);
      if (allowed) {
        REQUIRE(db.ok());
        CHECK(db->mode() == DatabaseInfo::Mode::read_only);
        CHECK(db->info()->trials == 5);
        CHECK(db->info()->schema_version == 99);
        CHECK(
            db->trials(test::trial(0).problem, test::env()->target, test::env()->performance_class)
                ->size() == 1);
        CHECK(db->add_trial(test::trial()).code() == Code::read_only);
        CHECK(db->take_notes().size() == 1);
      } else {
        CHECK(db.status().code() == Code::newer_version);
        CHECK(db.status().message().find("99") != std::string::npos);
      }
      db = Database::open("");  // closes it
      CHECK(test::read_file(path) == file);
      CHECK(test::read_file(path + "-wal") == log);
      for (const auto& name : test::names_in(folder.path))
        CHECK(name.find("damaged") == std::string::npos);
    }
}

TEST_CASE("database.open takes an empty file as a new one and refuses what is no file") {
  test::Folder folder;
  test::write_file(folder / "empty.db", "");
  auto db = Database::open(folder / "empty.db", strict());
  REQUIRE(db.ok());
  CHECK(db->add_trial(test::trial()).ok());
  CHECK(Database::open(folder.path, strict()).status().code() == Code::invalid_argument);
  CHECK(Database::open(folder.path).status().code() == Code::invalid_argument);
  REQUIRE(mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(Database::open(folder / "pipe").status().code() == Code::invalid_argument);
  CHECK(Database::open("s3://bucket/tuning.db").status().code() == Code::invalid_argument);
  CHECK(Database::open_snapshot("s3://bucket/tuning.db").status().code() == Code::invalid_argument);
  CHECK(!std::filesystem::exists("s3:"));
}

TEST_CASE("database.open for reading needs a file and writes nothing") {
  test::Folder folder;
  DatabaseOptions options = strict();
  options.access = Access::read_only;
  CHECK(Database::open(folder / "none.db", options).status().code() == Code::io_error);
  CHECK(test::names_in(folder.path).empty());
  fill(folder / "x.db");
  const auto before = test::read_file(folder / "x.db");
  {
    auto db = Database::open(folder / "x.db", options);
    REQUIRE(db.ok());
    CHECK(db->info()->trials == 5);
    CHECK(db->set_winner(test::winner()).code() == Code::read_only);
    CHECK(db->take_notes().empty());  // it was asked for
  }
  CHECK(test::read_file(folder / "x.db") == before);
}

TEST_CASE("database.open takes names that mean something in a URI") {
  test::Folder folder;
  for (const auto* name : {"a?mode=memory", "b#c", "d%41", "e f", "file:g", "h'i;j"}) {
    fill(folder / name);
    CHECK(std::filesystem::exists(folder / name));
    auto snapshot = Database::open_snapshot(folder / name);
    REQUIRE_MESSAGE(snapshot.ok(), snapshot.status().message());
    CHECK(snapshot->info()->trials == 5);
    auto db = Database::open("");
    CHECK(db->merge(folder / name)->trials == 5);
  }
}

TEST_CASE("database.open runs no trigger that somebody put into the local file") {
  test::Folder folder;
  fill(folder / "x.db");
  CHECK(test::raw(folder / "x.db",
                  "CREATE TRIGGER bad AFTER INSERT ON trial BEGIN DELETE FROM trial; END") == "");
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  CHECK(db->add_trial(test::trial(9)).ok());
  CHECK(db->info()->trials == 6);
  CHECK(db->check()->size() == 1);  // but check names it
  db = Database::open("");
  CHECK(Database::open_snapshot(folder / "x.db").status().code() == Code::damaged);
  CHECK(db->merge(folder / "x.db").status().code() == Code::damaged);
}

TEST_CASE("database in a forked child is reopened there and leaves the parent's alone") {
  test::Folder folder;
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  REQUIRE(db->add_trial(test::trial(1)).ok());
  CHECK(test::Child([&]() -> std::string {
          CHILD_OK(db->add_trial(test::trial(2)));
          CHILD_CHECK(db->info()->trials == 2);
          { Database moved = std::move(*db); }  // closes the child's own connection
          return {};
        }).wait() == "");
  CHECK(test::Child([&]() -> std::string {
          { Database untouched = std::move(*db); }  // inherited, never used, destroyed
          return {};
        }).wait() == "");
  REQUIRE(db->add_trial(test::trial(3)).ok());
  CHECK(db->info()->trials == 3);
  CHECK(db->check()->empty());
}
