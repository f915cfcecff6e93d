// Full, read-only and foreign disks: each run goes on with the best it can, and says so once.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "cache/database.hpp"
#include "tests/cache/fault_vfs.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

Trial numbered(int number) {
  Trial trial = test::trial(number);
  trial.uuid = test::uuid(number + 1);
  trial.samples.assign(200, 1.0);
  return trial;
}

}  // namespace

TEST_CASE("disk full: nothing is half-written, what was stored stays, and room helps") {
  test::Folder folder;
  const auto result = test::with_small_disk(folder.path, "1m", [&]() -> std::string {
    const auto path = folder / "x.db";
    auto db = Database::open(path);
    CHILD_OK(db);
    int stored = 0;
    Status status;
    for (; stored < 10000; ++stored) {
      status = db->add_trial(numbered(stored));
      if (!status.ok()) break;
    }
    CHILD_CHECK(status.code() == Code::disk_full);
    CHILD_CHECK(stored > 10);
    CHILD_CHECK(db->info()->trials == stored);
    CHILD_CHECK(db->check()->empty());
    CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_write);
    CHILD_CHECK(mount("qturn-test", folder.path.c_str(), "tmpfs", MS_REMOUNT, "size=4m") == 0);
    CHILD_OK(db->add_trial(numbered(stored)));
    CHILD_CHECK(db->info()->trials == stored + 1);
    return {};
  });
  if (test::skipped(result)) return;
  CHECK(result == "");
}

TEST_CASE("disk full at the start: results are kept in memory, or the error is given") {
  test::Folder folder;
  const auto result = test::with_small_disk(folder.path, "64k", [&]() -> std::string {
    test::write_file(folder / "filler", std::string(80000, 'x'));
    DatabaseOptions strict;
    strict.fallback = Fallback::none;
    CHILD_CHECK(Database::open(folder / "x.db", strict).status().code() == Code::disk_full);
    auto db = Database::open(folder / "x.db");
    CHILD_OK(db);
    CHILD_CHECK(db->mode() == DatabaseInfo::Mode::memory);
    CHILD_OK(db->add_trial(test::trial()));
    const auto notes = db->take_notes();
    CHILD_CHECK(notes.size() == 1);
    CHILD_CHECK(notes[0].find("QTURN_CACHE_DIR") != std::string::npos);
    return {};
  });
  if (test::skipped(result)) return;
  CHECK(result == "");
}

TEST_CASE("a file size limit reads as a full disk") {
  test::Folder folder;
  CHECK(test::Child([&]() -> std::string {
          auto db = Database::open(folder / "x.db");
          CHILD_OK(db);
          CHILD_OK(db->add_trial(numbered(0)));
          signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{300 * 1024, 300 * 1024};
          setrlimit(RLIMIT_FSIZE, &limit);
          int stored = 1;
          Status status;
          while ((status = db->add_trial(numbered(stored))).ok() && stored < 5000) ++stored;
          CHILD_CHECK(!status.ok());
          CHILD_CHECK(db->info()->trials == stored);
          CHILD_CHECK(db->check()->empty());
          return {};
        }).wait() == "");
}

TEST_CASE("read-only disk: a database there is read, and one message names the remedy") {
  test::Folder folder;
  const auto result = test::with_small_disk(folder.path, "4m", [&]() -> std::string {
    const auto path = folder / "x.db";
    {
      auto db = Database::open(path);
      CHILD_OK(db);
      for (int i = 0; i < 5; ++i) CHILD_OK(db->add_trial(numbered(i)));
    }
    CHILD_CHECK(test::remount(folder.path, MS_RDONLY));
    auto db = Database::open(path);
    CHILD_OK(db);
    CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_only);
    CHILD_CHECK(db->info()->trials == 5);
    CHILD_CHECK(db->add_trial(numbered(9)).code() == Code::read_only);
    CHILD_CHECK(db->export_snapshot(folder / "y.db").status().code() == Code::read_only);
    const auto notes = db->take_notes();
    CHILD_CHECK(notes.size() == 1);
    CHILD_CHECK(notes[0].find("QTURN_CACHE_DIR") != std::string::npos);

    auto fresh = Database::open(folder / "sub/none.db");
    CHILD_OK(fresh);
    CHILD_CHECK(fresh->mode() == DatabaseInfo::Mode::memory);
    CHILD_OK(fresh->add_trial(numbered(9)));
    CHILD_CHECK(fresh->take_notes().size() == 1);
    auto merged = fresh->merge(path);
    CHILD_OK(merged);
    CHILD_CHECK(merged->trials == 5);
    return {};
  });
  if (test::skipped(result)) return;
  CHECK(result == "");
}

TEST_CASE("read-only disk with the log of a killed writer: its rows are seen") {
  test::Folder folder;
  const auto result = test::with_small_disk(folder.path, "4m", [&]() -> std::string {
    const auto path = folder / "x.db";
    const auto writer = test::Child([&]() -> std::string {
                          auto db = Database::open(path);
                          CHILD_OK(db);
                          for (int i = 0; i < 5; ++i) CHILD_OK(db->add_trial(numbered(i)));
                          _exit(0);
                        }).wait();
    CHILD_CHECK(writer.empty());
    CHILD_CHECK(test::remount(folder.path, MS_RDONLY));
    auto db = Database::open(path);
    CHILD_OK(db);
    CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_only);
    CHILD_CHECK(db->info()->trials == 5);
    return {};
  });
  if (test::skipped(result)) return;
  CHECK(result == "");
}

TEST_CASE("another user's folder: read what is there, keep the rest in memory") {
  if (geteuid() != 0) {
    MESSAGE("SKIPPED: only root can become another user");
    return;
  }
  test::Folder folder;
  REQUIRE(chmod(folder.path.c_str(), 0755) == 0);
  {
    auto db = Database::open(folder / "x.db");
    REQUIRE(db->add_trial(numbered(1)).ok());
  }
  REQUIRE(chmod((folder / "x.db").c_str(), 0644) == 0);
  CHECK(test::Child([&]() -> std::string {
          CHILD_CHECK(setgid(65534) == 0 && setuid(65534) == 0);
          auto db = Database::open(folder / "x.db");
          CHILD_OK(db);
          CHILD_CHECK(db->mode() == DatabaseInfo::Mode::read_only);
          CHILD_CHECK(db->info()->trials == 1);
          auto none = Database::open(folder / "y.db");
          CHILD_OK(none);
          CHILD_CHECK(none->mode() == DatabaseInfo::Mode::memory);
          return {};
        }).wait() == "");
  REQUIRE(chmod((folder / "x.db").c_str(), 0600) == 0);
  CHECK(test::Child([&]() -> std::string {
          CHILD_CHECK(setgid(65534) == 0 && setuid(65534) == 0);
          auto db = Database::open(folder / "x.db");
          CHILD_OK(db);
          CHILD_CHECK(db->mode() == DatabaseInfo::Mode::memory);
          CHILD_CHECK(db->take_notes().size() == 1);
          return {};
        }).wait() == "");
}

TEST_CASE("a file system without shared memory or locks ends in memory, with one message") {
  for (const bool locks : {false, true}) {
    test::Folder folder;
    CHECK(test::Child([&]() -> std::string {
            test::install_faults();
            (locks ? test::faults().no_locks : test::faults().no_shared_memory) = true;
            auto db = Database::open(folder / "x.db");
            CHILD_OK(db);
            CHILD_OK(db->add_trial(test::trial()));
            CHILD_CHECK(db->info()->trials == 1);
            CHILD_CHECK(db->take_notes().size() == 1);
            return {};
          }).wait() == "");
  }
}

TEST_CASE("failing writes at every operation lose no stored row and no consistency") {
  for (const auto kind : {test::Faults::Kind::full, test::Faults::Kind::io_error}) {
    long operations = 0;
    for (long at = 1; at <= std::max(operations, 1L); at += at < 40 ? 1 : 7) {
      test::Folder folder;
      const auto result = test::Child([&]() -> std::string {
                            test::install_faults();
                            test::faults().kind = kind;
                            test::faults().at = operations == 0 ? 1 << 30 : at;
                            DatabaseOptions strict;
                            strict.fallback = Fallback::none;
                            auto db = Database::open(folder / "x.db", strict);
                            int stored = 0;
                            for (int i = 0; db.ok() && i < 6; ++i)
                              if (db->add_trial(numbered(i)).ok()) ++stored;
                            if (db.ok()) (void)db->set_winner(test::winner());
                            return fmt::format("{} {}", stored, test::faults().count);
                          }).wait();
      int stored = -1;
      long count = 0;
      REQUIRE(std::sscanf(result.c_str(), "%d %ld", &stored, &count) == 2);
      if (operations == 0) {
        operations = count;
        REQUIRE(stored == 6);
        at = 0;
        continue;
      }
      auto db = Database::open(folder / "x.db");
      REQUIRE(db.ok());
      CHECK(db->take_notes().empty());  // nothing had to be mended
      CHECK(db->info()->trials == stored);
      CHECK(db->check()->empty());
      CHECK(db->add_trial(numbered(50)).ok());
    }
    CHECK(operations > 20);
  }
}

TEST_CASE("a read that fails costs the call, never the database") {
  // A disk or network that answers EIO once is no damaged file: nothing may be moved aside.
  test::Folder folder;
  const auto path = folder / "x.db";
  {
    auto db = Database::open(path);
    for (int i = 0; i < 20; ++i) REQUIRE(db->add_trial(test::trial(i)).ok());
    REQUIRE(db->set_winner(test::winner()).ok());
  }
  const auto work = [&](long first, long last) {
    return test::Child([&]() -> std::string {
      test::install_faults();
      test::faults().first_bad_read = first;
      test::faults().last_bad_read = last;
      {
        auto db = Database::open(path);
        CHILD_OK(db);
        (void)db->winners(test::env()->target);
        (void)db->add_trial(test::trial(100));
        (void)db->recent_trials(test::env()->target, 100);
      }
      return std::to_string(test::faults().reads);
    });
  };
  const long reads = std::stol(work(0, 0).wait());
  REQUIRE(reads > 10);
  std::int64_t stored = 0;
  for (long at = 1; at <= reads; ++at)
    for (const long last : {at, 1L << 40}) {  // once, and from then on
      const auto result = work(at, last).wait();
      CHECK_MESSAGE(result.find_first_not_of("0123456789") == std::string::npos, result);
      auto db = Database::open(path);
      REQUIRE_MESSAGE(db.ok(), db.status().message());
      CHECK(db->take_notes().empty());
      CHECK(db->mode() == DatabaseInfo::Mode::read_write);
      const auto trials = db->info()->trials;
      CHECK(trials >= std::max<std::int64_t>(20, stored));
      stored = trials;
      CHECK(db->info()->winners == 1);
      CHECK(db->check()->empty());
    }
  for (const auto& name : test::names_in(folder.path))
    CHECK_MESSAGE(name.find("damaged") == std::string::npos, name);
}
