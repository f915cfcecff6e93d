// Damaged files of ours: moved aside, salvaged, said once, and no call fails for it.
#include <doctest/doctest.h>

#include <random>

#include "cache/database.hpp"
#include "cache/file_lock.hpp"
#include "cache/rows.hpp"
#include "tests/cache/fault_vfs.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

constexpr int stored = 400;

// A closed database, with its log written back into the file.
std::string sound_file(const std::string& path) {
  auto db = Database::open(path);
  REQUIRE(db.ok());
  std::vector<Trial> trials;
  for (int i = 0; i < stored; ++i) {
    trials.push_back(test::trial(i));
    trials.back().uuid = test::uuid(i + 1);
  }
  REQUIRE(db->add_trials(trials).ok());
  for (int i = 0; i < 20; ++i) REQUIRE(db->set_winner(test::winner(i)).ok());
  db = Database::open("");
  return test::read_file(path);
}

std::int64_t moved_aside(const std::string& folder) {
  std::int64_t count = 0;
  for (const auto& name : test::names_in(folder))
    if (name.find(".damaged-") != std::string::npos && !name.ends_with("-wal") &&
        !name.ends_with("-shm"))
      ++count;
  return count;
}

// Overwrites a leaf in the middle of the trial table, and returns how many rows were on it.
long break_leaf(const std::string& path) {
  auto bytes = test::read_file(path);
  const auto leaf =
      std::stoul(test::raw(path,
                           "SELECT pageno FROM dbstat WHERE name = 'trial' AND pagetype = 'leaf' "
                           "ORDER BY path LIMIT 1 OFFSET 10"));
  const auto rows = std::stol(test::raw(
      path, fmt::format("SELECT ncell FROM dbstat WHERE name = 'trial' AND pageno = {}", leaf)));
  for (std::size_t i = 0; i < 4096; ++i)
    bytes[(leaf - 1) * 4096 + i] = static_cast<char>(i * 7 + 1);
  test::write_file(path, bytes);
  return rows;
}

// What a run does with a database: every call must succeed, whatever the file's state.
void use(Database& db) {
  const auto held = test::env();
  const Env& here = *held;
  CHECK(db.winners(here.target).ok());
  for (int i = 0; i < 7; ++i) {
    const auto found = db.trials(test::trial(i).problem, here.target, here.performance_class);
    CHECK_MESSAGE(found.ok(), found.status().message());
  }
  const auto trial = test::trial(100000);
  const Status added = db.add_trial(trial);
  CHECK_MESSAGE(added.ok(), added.message());
  CHECK(db.set_winner(test::winner(50)).ok());
  CHECK(db.undecided().ok());
  CHECK(db.info().ok());
}

}  // namespace

TEST_CASE("damage: a file cut short is moved aside and a fresh one started") {
  test::Folder folder;
  const auto path = folder / "tuning.db";
  const auto bytes = sound_file(path);
  for (const std::size_t size :
       {bytes.size() / 2, bytes.size() - 4096, std::size_t{4096}, std::size_t{200}}) {
    std::filesystem::remove(path);
    test::write_file(path, bytes.substr(0, size));
    auto db = Database::open(path);
    REQUIRE_MESSAGE(db.ok(), db.status().message());
    use(*db);
    CHECK(db->mode() == DatabaseInfo::Mode::read_write);
    const auto notes = db->take_notes();
    REQUIRE(notes.size() == 1);
    CHECK(notes[0].find("moved to") != std::string::npos);
    CHECK(db->take_notes().empty());
    CHECK(db->check()->empty());
  }
  CHECK(moved_aside(folder.path) == 4);
}

TEST_CASE("damage: a page of garbage costs only the rows on it") {
  test::Folder folder;
  const auto path = folder / "tuning.db";
  (void)sound_file(path);
  const long rows_on_leaf = break_leaf(path);
  REQUIRE(rows_on_leaf > 0);
  auto db = Database::open(path);
  REQUIRE(db.ok());
  use(*db);
  const auto notes = db->take_notes();
  REQUIRE(notes.size() == 1);
  CHECK_MESSAGE(notes[0].find(fmt::format("{} trials and 20 winners saved",
                                          stored - rows_on_leaf)) != std::string::npos,
                notes[0]);
  CHECK(db->check()->empty());
  CHECK(db->info()->trials == stored - rows_on_leaf + 1);
}

TEST_CASE("damage: flipped bits anywhere end in a database that works") {
  test::Folder folder;
  const auto bytes = sound_file(folder / "tuning.db");
  std::mt19937 random(20240229);
  int healed = 0, reported = 0;
  for (int round = 0; round < 80; ++round) {
    const auto path = folder / fmt::format("{}/tuning.db", round);
    std::filesystem::create_directory(folder / std::to_string(round));
    auto damaged = bytes;
    // Bytes 0 to 99 say whose file it is; without them it is not ours to mend.
    if (round % 2 == 0) {
      for (int flips = 1 + round % 3; flips > 0; --flips) {
        const auto at = 100 + random() % (damaged.size() - 100);
        damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
      }
    } else {
      const auto at = 100 + random() % (damaged.size() - 612);
      for (int i = 0; i < 512; ++i) damaged[at + i] = static_cast<char>(random());
    }
    test::write_file(path, damaged);
    // As somebody else's file: any answer will do, but it is an answer and the file stays.
    if (auto other = Database::open_snapshot(path); other.ok()) {
      (void)other->winners(test::env()->target);
      (void)test::live_trials(*other);
      (void)other->check();
    }
    auto into = Database::open("");
    REQUIRE(into.ok());
    if (!into->merge(path).ok()) CHECK(into->info()->trials == 0);
    CHECK(test::read_file(path) == damaged);

    auto db = Database::open(path);
    REQUIRE_MESSAGE(db.ok(), db.status().message());
    use(*db);
    use(*db);
    if (moved_aside(folder / std::to_string(round)) > 0) {
      ++healed;
      CHECK(db->take_notes().size() ==
            static_cast<std::size_t>(moved_aside(folder / std::to_string(round))));
    }
    const auto faults = db->check();
    REQUIRE(faults.ok());
    if (!faults->empty()) ++reported;
  }
  MESSAGE("of 80 damaged files " << healed << " were mended in use, " << reported
                                 << " more are reported by check");
  CHECK(healed > 5);
  CHECK(reported > 5);
}

TEST_CASE("damage: a flipped bit in a stored time is found by check and not carried over") {
  test::Folder folder;
  const auto path = folder / "x.db";
  (void)sound_file(path);
  CHECK(test::raw(path, "UPDATE trial SET median_ns = median_ns / 8 WHERE rowid = 5") == "");
  auto db = Database::open(path);
  const auto faults = db->check();
  REQUIRE(faults->size() == 1);
  CHECK(faults->front().find(text(test::uuid(5))) != std::string::npos);
  db = Database::open("");
  const long lost = break_leaf(path);
  db = Database::open(path);
  REQUIRE(db.ok());
  const auto kept = test::live_trials(*db);
  CHECK(kept.size() == static_cast<std::size_t>(stored - lost - 1));
  for (const auto& trial : kept) CHECK(trial.uuid != test::uuid(5));
}

TEST_CASE("damage: a lost header of ours is damage, a lost name is somebody else's file") {
  test::Folder folder;
  const auto path = folder / "x.db";
  auto bytes = sound_file(path);
  bytes[3] ^= 1;  // "SQLite format 3" no more, but our application id is there
  test::write_file(path, bytes);
  auto db = Database::open(path);
  REQUIRE(db.ok());
  use(*db);
  CHECK(moved_aside(folder.path) == 1);
  db = Database::open("");
  bytes[70] ^= 1;  // neither
  test::write_file(folder / "y.db", bytes);
  CHECK(Database::open(folder / "y.db").status().code() == Code::not_ours);
}

TEST_CASE("damage: a file in another text encoding is merged into nothing, and breaks nothing") {
  test::Folder folder;
  const auto path = folder / "given.db";
  auto bytes = sound_file(path);
  for (const char encoding : {'\2', '\3', '\4'}) {
    CAPTURE(encoding);
    bytes[59] = encoding;
    test::write_file(path, bytes);
    auto into = Database::open("");
    REQUIRE(into.ok());
    const auto merged = into->merge(path);
    CHECK(merged.status().code() == Code::damaged);
    CHECK(into->check()->empty());
    use(*into);
    CHECK(!Database::open_snapshot(path).ok());
    CHECK(test::read_file(path) == bytes);
  }
  // As one's own it is saved like any damaged file.
  auto own = Database::open(path);
  REQUIRE_MESSAGE(own.ok(), own.status().message());
  use(*own);
  CHECK(moved_aside(folder.path) == 1);
}

TEST_CASE("damage: a stale log beside a new file is never replayed into it") {
  test::Folder folder;
  const auto path = folder / "x.db";
  // A process dies with its rows in the log; then the file itself is damaged.
  CHECK(test::Child([&]() -> std::string {
          auto db = Database::open(path);
          CHILD_OK(db);
          CHILD_OK(db->add_trial(test::trial(1)));
          _exit(0);
        }).wait() == "");
  REQUIRE(std::filesystem::file_size(path + "-wal") > 0);
  auto bytes = test::read_file(path);
  for (std::size_t i = 100; i < bytes.size(); ++i) bytes[i] = 'x';
  test::write_file(path, bytes);
  std::filesystem::resize_file(path + "-wal", 32 + 24 + 4096 + 100);  // its first frame and a bit
  auto db = Database::open(path);
  REQUIRE(db.ok());
  use(*db);
  CHECK(db->check()->empty());
  CHECK(db->info()->trials <= 2);
}

TEST_CASE("damage: rows that are only in the log of a killed process are saved with it") {
  test::Folder folder;
  const auto path = folder / "x.db";
  { REQUIRE(Database::open(folder / "like.db").ok()); }
  const auto page = std::stoul(
      test::raw(folder / "like.db", "SELECT rootpage FROM sqlite_schema WHERE name = 'miss'"));
  CHECK(test::Child([&]() -> std::string {
          auto db = Database::open(path);
          CHILD_OK(db);
          for (int i = 0; i < 5; ++i) CHILD_OK(db->add_trial(test::trial(i)));
          _exit(0);
        }).wait() == "");
  auto bytes = test::read_file(path);
  REQUIRE(bytes.size() >= page * 4096);
  for (std::size_t i = 0; i < 4096; ++i) bytes[(page - 1) * 4096 + i] = 'x';
  test::write_file(path, bytes);
  auto db = Database::open(path);
  REQUIRE(db.ok());
  CHECK(db->misses("t", "c").ok());  // meets the damage
  const auto notes = db->take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("5 trials") != std::string::npos);
  CHECK(db->info()->trials == 5);
  CHECK(db->check()->empty());
}

TEST_CASE("damage: a trial that is stored while another process mends the file is not lost") {
  test::Folder folder;
  const auto path = folder / "x.db";
  CHECK(test::Child([&]() -> std::string {
          test::install_faults();
          auto db = Database::open(path);
          CHILD_OK(db);
          CHILD_OK(db->add_trial(test::trial(1)));
          // Between begin and commit the file is moved aside under this process's feet.
          test::faults().before = [&] {
            for (const char* suffix : {"-wal", "-shm", ""})
              std::filesystem::rename(path + suffix, path + ".damaged-by-test" + suffix);
          };
          CHILD_OK(db->add_trial(test::trial(2)));
          CHILD_CHECK(!test::faults().before);
          _exit(0);
        }).wait() == "");
  auto db = Database::open(path);
  REQUIRE(db.ok());
  const auto found = test::live_trials(*db);
  REQUIRE(found.size() == 1);
  CHECK(found[0].median_ns == test::trial(2).median_ns);
  CHECK(db->check()->empty());
}

TEST_CASE("damage: processes that mend one file at once agree, and no row is lost") {
  test::Folder folder;
  const auto path = folder / "x.db";
  (void)sound_file(path);
  const long lost = break_leaf(path);
  const auto results = test::together(12, [&](int i) -> std::string {
    auto db = Database::open(path);
    CHILD_OK(db);
    if (i % 2 == 0) CHILD_OK(db->recent_trials(test::env()->target, 1000));  // meets the damage
    for (int j = 0; j < 20; ++j) {
      Trial trial = test::trial(j);
      trial.uuid = test::uuid(10000 + 100 * i + j);
      CHILD_OK(db->add_trial(trial));
    }
    return {};
  });
  for (const auto& result : results) CHECK(result == "");
  CHECK(moved_aside(folder.path) == 1);
  auto db = Database::open(path);
  REQUIRE(db.ok());
  CHECK(db->check()->empty());
  std::int64_t mine = 0;
  for (const auto& trial : test::live_trials(*db))
    if (trial.uuid[15 - 1] >= 0x27) ++mine;  // uuid(10000) and above
  CHECK(mine == 12 * 20);
  CHECK(db->info()->trials == stored - lost + mine);
}

TEST_CASE("damage: nobody opens the file while another moves it and its log aside") {
  test::Folder folder;
  const auto path = folder / "x.db";
  (void)sound_file(path);
  DatabaseOptions options;
  options.fallback = Fallback::none;
  options.wait = std::chrono::milliseconds(50);
  auto open_before = Database::open(path, options);
  REQUIRE(open_before.ok());
  {
    const auto mending = FileLock::acquire(path + ".lock", 0, options.wait);
    REQUIRE(mending.ok());
    CHECK(Database::open(path, options).status().code() == Code::busy);
    CHECK(open_before->add_trial(test::trial(1)).ok());  // who has it open goes on
    // And who closes it deletes no log by a name that may be the fresh file's by now.
    open_before = Database::open("");
    CHECK(std::filesystem::file_size(path + "-wal") > 0);
  }
  CHECK(Database::open(path, options).ok());
}

TEST_CASE("damage: a process that has the file open follows when another mends it") {
  test::Folder folder;
  const auto path = folder / "x.db";
  auto first = Database::open(path);
  REQUIRE(first.ok());
  REQUIRE(first->add_trial(test::trial(1)).ok());
  // Moved aside under the first one's feet, as a mending process does.
  for (const char* suffix : {"-wal", "-shm", ""})
    std::filesystem::rename(path + suffix, path + ".damaged-by-test" + suffix);
  auto second = Database::open(path);
  REQUIRE(second.ok());
  REQUIRE(second->add_trial(test::trial(2)).ok());
  REQUIRE(first->add_trial(test::trial(3)).ok());
  CHECK(first->info()->trials == 2);
  CHECK(second->info()->trials == 2);
  CHECK(second->check()->empty());
}
