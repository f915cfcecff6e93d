// Databases over forks: of processes whose threads are inside SQLite, or have files open.
#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "cache/fork_gate.hpp"
#include "support.hpp"

using namespace quarterturn;

TEST_CASE("fork.a child's rows outlive its parent's closing of the file") {
  test::Folder folder;
  const auto path = folder / "x.db";
  int closed[2];
  REQUIRE(pipe2(closed, O_CLOEXEC) == 0);
  std::optional<Result<Database>> db(Database::open(path));
  REQUIRE(db->ok());
  REQUIRE((*db)->add_trial(test::trial(1)).ok());
  test::Child child([&]() -> std::string {
    close(closed[1]);
    CHILD_OK((*db)->add_trial(test::trial(2)));
    char byte;
    const auto ignored = read(closed[0], &byte, 1);
    (void)ignored;
    CHILD_OK((*db)->add_trial(test::trial(3)));
    CHILD_CHECK((*db)->info()->trials == 3);
    return {};
  });
  // Until the child's row is there, closing would prove nothing.
  for (int i = 0; i < 5000 && (*db)->info()->trials < 2; ++i) usleep(1000);
  CHECK((*db)->info()->trials == 2);
  db.reset();
  CHECK(test::raw(path, "SELECT count(*) FROM trial") == "2");
  close(closed[1]);
  close(closed[0]);
  CHECK(child.wait() == "");
  auto again = Database::open(path);
  REQUIRE(again.ok());
  CHECK(again->info()->trials == 3);
  CHECK(again->check()->empty());
}

TEST_CASE("fork.children made while other threads write read and write at once") {
  test::Folder folder;
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  std::atomic<bool> stop{false};
  std::atomic<int> written{0};
  std::vector<std::thread> writers;
  for (int t = 0; t < 2; ++t)
    writers.emplace_back([&, t] {
      for (int i = 0; !stop; ++i)
        written += db->add_trial(test::trial(100000 * (t + 1) + i)).ok() ? 1 : 0;
    });
  constexpr int kChildren = 12;
  for (int i = 0; i < kChildren; ++i)
    CHECK(test::Child([&]() -> std::string {
            alarm(60);
            CHILD_OK(db->add_trial(test::trial(1000 + i)));
            auto other = Database::open(folder / "x.db");
            CHILD_OK(other.status());
            CHILD_CHECK(other->info()->trials > i);
            return {};
          }).wait() == "");
  stop = true;
  for (auto& writer : writers) writer.join();
  CHECK(db->info()->trials == written + kChildren);
  CHECK(db->check()->empty());
}

TEST_CASE("fork.threads that fork at once do not wait for ever") {
  test::Folder folder;
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  // In a child of its own: what hangs is ended there.
  CHECK(test::Child([&]() -> std::string {
          alarm(60);
          std::atomic<int> lost{0};
          std::vector<std::thread> threads;
          for (int t = 0; t < 4; ++t)
            threads.emplace_back([&, t] {
              for (int i = 0; i < 50; ++i) {
                const pid_t pid = fork();
                if (pid == 0) _exit(i % 10 == 0 && !db->add_trial(test::trial(100 * t + i)).ok());
                int status = 0;
                waitpid(pid, &status, 0);
                lost += status != 0;
              }
            });
          for (auto& thread : threads) thread.join();
          CHILD_CHECK(lost == 0);
          return {};
        }).wait() == "");
  CHECK(db->info()->trials == 4 * 5);
}

TEST_CASE("fork.what is said of a file is not said again when it is opened again") {
  test::Folder folder;
  REQUIRE(Database::open(folder / "x.db").ok());
  CHECK(test::raw(folder / "x.db", "PRAGMA user_version=1000") == "");
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  CHECK(db->take_notes().size() == 1);
  CHECK(test::Child([] { return std::string(); }).wait() == "");
  CHECK(db->info().ok());
  CHECK(db->take_notes().empty());
}

TEST_CASE("fork.a child of the midst of a use, or past pthread_atfork, is refused at once") {
  test::Folder folder;
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  REQUIRE(db->add_trial(test::trial(1)).ok());
  const auto refused = [&]() -> std::string {
    alarm(60);
    CHILD_CHECK(db->add_trial(test::trial(2)).code() == Code::busy);
    CHILD_CHECK(db->info().status().code() == Code::busy);
    CHILD_CHECK(db->check().status().code() == Code::busy);
    CHILD_CHECK(Database::open(folder / "y.db").status().code() == Code::busy);
    CHILD_CHECK(Database::open("").status().code() == Code::busy);
    CHILD_CHECK(db->take_notes().empty());
    { Database destroyed = std::move(*db); }
    // Its children know no better.
    return test::Child([&]() -> std::string {
             CHILD_CHECK(Database::open("").status().code() == Code::busy);
             return {};
           })
        .wait();
  };
  {
    const sqlite::Use use;
    CHECK(test::Child(refused).wait() == "");
  }
  const auto pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (pid == 0) _exit(refused().empty() ? 7 : 1);
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  REQUIRE(db->add_trial(test::trial(3)).ok());
  CHECK(db->info()->trials == 2);
}
