// Databases that are not ours, newer, damaged or cannot be written, and homes that are missing.
#include <doctest/doctest.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <cstdio>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

void execute(const std::string& database, const std::string& sql) {
  sqlite3* handle = nullptr;
  REQUIRE(sqlite3_open(database.c_str(), &handle) == SQLITE_OK);
  char* message = nullptr;
  const int code = sqlite3_exec(handle, sql.c_str(), nullptr, nullptr, &message);
  CHECK_MESSAGE(code == SQLITE_OK, (message ? message : ""));
  sqlite3_close(handle);
}

}  // namespace

TEST_CASE("a file that is not ours is refused and stays as it is") {
  const Home home;
  const auto path = (home / "notes.txt").string();
  const std::string text =
      "shopping list: milk, bread, and a good deal more than sixteen bytes of it\n";
  std::ofstream(path) << text;
  for (const auto& command : std::vector<std::vector<std::string>>{
           small_tune({"--db", path}), {"db", "info", "--db", path}, {"check", "--db", path}}) {
    const auto outcome = home.run(command);
    CHECK_MESSAGE(outcome.code == 3, outcome.err);
    CHECK_MESSAGE(outcome.err.find(path) != std::string::npos, outcome.err);
  }
  CHECK(read_file(path) == text);
  // Another program's SQLite file.
  const auto other = (home / "other.db").string();
  execute(other, "CREATE TABLE songs(title); INSERT INTO songs VALUES('x');");
  const auto before = read_file(other);
  CHECK(home.run(small_tune({"--db", other})).code == 3);
  CHECK(read_file(other) == before);
}

TEST_CASE("a database of a newer version is refused and stays as it is") {
  const Home home;
  const auto path = (home / "tuning.db").string();
  CHECK(home.run({"db", "info", "--db", path}).code == 3);  // nothing is made by looking
  CHECK(!std::filesystem::exists(path));
  REQUIRE(home.run({"explain", "--shape", "4x96x128", "--db", path}).code == 0);
  execute(path, "PRAGMA user_version = 9999; PRAGMA wal_checkpoint(TRUNCATE);");
  // Whoever wrote it says that readers of our version will not do.
  execute(
      path,
      "UPDATE meta SET value = '9999' WHERE key = 'min_reader'; PRAGMA wal_checkpoint(TRUNCATE);");
  const auto before = read_file(path);
  const auto outcome = home.run(small_tune({"--db", path}));
  CHECK(outcome.code == 3);
  CHECK_MESSAGE(outcome.err.find("newer") != std::string::npos, outcome.err);
  CHECK(read_file(path) == before);
}

TEST_CASE("a damaged database is moved aside, said once, and work goes on") {
  const Home home;
  const auto path = (home / "tuning.db").string();
  REQUIRE(home.run(small_tune({"--db", path}, "1")).code == 0);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096);
    const std::string garbage(8192, '\x5a');
    file.write(garbage.data(), static_cast<std::streamsize>(garbage.size()));
  }
  const auto outcome = home.run(small_tune({"--db", path}, "1"));
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK_MESSAGE(outcome.err.find("damaged") != std::string::npos, outcome.err);
  bool aside = false;
  for (const auto& entry : std::filesystem::directory_iterator(home / ""))
    aside = aside || entry.path().filename().string().find("tuning.db.") == 0;
  CHECK(aside);
  CHECK(home.run({"db", "check", "--db", path}).code == 0);
}

TEST_CASE("with no home at all the account's or memory serves, and the answer is still right") {
  Home home;
  home.unset("HOME");
  home.set("QTURN_CACHE_DIR", "/proc/quarterturn-cannot-be-made");
  const auto outcome = home.run(small_tune({}, "1"));
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.lines().at(0).at("answer") == "default");
  CHECK_MESSAGE(outcome.err.find("memory") != std::string::npos, outcome.err);
  home.set("QTURN_CACHE_DIR", "relative/folder");
  const auto relative = home.run(small_tune());
  CHECK(relative.code == 2);
  CHECK(relative.says("QTURN_CACHE_DIR"));
}

TEST_CASE("a read-only home: work goes on in memory and says so once") {
  Home home;
  home.become_nobody();
  home.unset("QTURN_CODE_CACHE");
  chmod((home / "").c_str(), 0555);
  const auto outcome = home.run({"explain", "--shape", "4x96x128"});
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  const auto said = outcome.err.find("results are kept in memory");
  CHECK_MESSAGE(said != std::string::npos, outcome.err);
  CHECK(outcome.err.find("results are kept in memory", said + 1) == std::string::npos);
}

TEST_CASE("a read-only database is read, new results are not kept, and that is said") {
  Home home;
  REQUIRE(home.run(small_tune({}, "1")).code == 0);
  REQUIRE(home.info("winners") == 1);
  home.become_nobody();
  const std::filesystem::path folder = std::filesystem::path(home.database()).parent_path();
  chmod(home.database().c_str(), 0444);
  chmod(folder.c_str(), 0555);
  const auto outcome = home.run({"explain", "--shape", "4x96x128", "--threads", "2", "--json"});
  chmod(folder.c_str(), 0755);
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.lines().at(0).at("match") == "exact");
  CHECK_MESSAGE(outcome.err.find("new results are not kept") != std::string::npos, outcome.err);
}

TEST_CASE("a full disk ends with a clear message and keeps what was stored") {
  Home home;
  const auto disk = (home / "small-disk").string();
  std::filesystem::create_directory(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=256k") != 0) {
    std::puts("SKIPPED: may not mount a small disk here");
    return;
  }
  const auto path = disk + "/tuning.db";
  const auto info = home.run({"explain", "--shape", "4x96x128", "--db", path});
  Outcome outcome;
  if (info.code == 0) {
    std::ofstream filler(disk + "/filler", std::ios::binary);
    const std::string kilobyte(1024, 'x');
    while (filler.write(kilobyte.data(), 1024) && filler.flush()) {
    }
    filler.close();
    outcome = home.run(small_tune({"--db", path}, "1"));
  }
  const auto sound = home.run({"db", "check", "--db", path});
  umount(disk.c_str());
  REQUIRE_MESSAGE(info.code == 0, info.err);
  CHECK((outcome.code == 3 || outcome.code == 0));
  CHECK_MESSAGE(outcome.says("full"), outcome.err);
  CHECK(sound.code == 0);
}
