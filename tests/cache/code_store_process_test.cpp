// One build a key a machine, whoever asks and whoever is killed.
#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <random>
#include <thread>

#include "cache/code_store.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace std::chrono_literals;

namespace {

CodeKey key(int number) { return {fmt::format("source={}", number), "so"}; }

}  // namespace

TEST_CASE("code_store: 16 processes that ask for one key build once") {
  test::Folder folder(test::Place::disk);
  const auto results = test::together(16, [&](int i) -> std::string {
    auto store = CodeStore::open(folder / "new/code");
    CHILD_OK(store);
    const auto entry =
        store->get_or_build(key(1), [&](const std::string& output) -> Result<CodeInfo> {
          test::write_file(folder / fmt::format("built-{}", i), "");
          std::this_thread::sleep_for(100ms);
          test::write_file(output, "code");
          return CodeInfo{};
        });
    CHILD_OK(entry);
    CHILD_CHECK(*CodeStore::read_code(*entry) == "code");
    CHILD_CHECK(store->take_notes().empty());
    return {};
  });
  for (const auto& result : results) CHECK(result == "");
  CHECK(test::names_in(folder.path).size() == 2);  // "new" and one "built-"
  CHECK(test::names_in(folder / "new/code/tmp").empty());
}

TEST_CASE("code_store: threads that ask for one key build once, different keys in parallel") {
  test::Folder folder;
  auto store = CodeStore::open(folder / "code");
  REQUIRE(store.ok());
  std::atomic<int> builds = 0, running = 0, most = 0, failed = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      const auto entry =
          store->get_or_build(key(i % 2), [&](const std::string& output) -> Result<CodeInfo> {
            ++builds;
            const int now = ++running;
            int seen = most;
            while (seen < now && !most.compare_exchange_weak(seen, now)) {
            }
            std::this_thread::sleep_for(200ms);
            --running;
            test::write_file(output, "code");
            return CodeInfo{};
          });
      if (!entry.ok()) ++failed;
    });
  for (auto& thread : threads) thread.join();
  CHECK(builds == 2);
  CHECK(most == 2);
  CHECK(failed == 0);
}

TEST_CASE("code_store: a killed builder is replaced at once by one that waits") {
  test::Folder folder;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  test::Child builder([&]() -> std::string {
    auto store = CodeStore::open(folder / "code");
    CHILD_OK(store);
    (void)store->get_or_build(key(1), [&](const std::string& output) -> Result<CodeInfo> {
      test::write_file(output, "half of the co");
      const auto ignored = write(ready[1], "x", 1);
      (void)ignored;
      pause();
      return CodeInfo{};
    });
    return {};
  });
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  std::thread killer([&] {
    std::this_thread::sleep_for(50ms);
    builder.kill_now();
  });
  auto store = CodeStore::open(folder / "code");
  REQUIRE(store.ok());
  const auto start = std::chrono::steady_clock::now();
  const auto entry = store->get_or_build(key(1), [](const std::string& output) -> Result<CodeInfo> {
    test::write_file(output, "code");
    return CodeInfo{};
  });
  killer.join();
  REQUIRE(entry.ok());
  CHECK(*CodeStore::read_code(*entry) == "code");
  CHECK(std::chrono::steady_clock::now() - start < 10s);
  CHECK(store->usage().entries == 1);
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("code_store: who waits too long builds for himself and says which file") {
  test::Folder folder;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  test::Child stuck([&]() -> std::string {
    auto store = CodeStore::open(folder / "code");
    CHILD_OK(store);
    (void)store->get_or_build(key(1), [&](const std::string&) -> Result<CodeInfo> {
      const auto ignored = write(ready[1], "x", 1);
      (void)ignored;
      pause();
      return CodeInfo{};
    });
    return {};
  });
  char byte;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CodeStoreOptions options;
  options.lock_wait = 50ms;
  auto store = CodeStore::open(folder / "code", options);
  const auto entry = store->get_or_build(key(1), [](const std::string& output) -> Result<CodeInfo> {
    test::write_file(output, "code");
    return CodeInfo{};
  });
  REQUIRE(entry.ok());
  CHECK(entry->origin == CodeOrigin::built);
  const auto notes = store->take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("/lock") != std::string::npos);
  stuck.kill_now();
  (void)stuck.wait();
  close(ready[0]);
  close(ready[1]);
}

TEST_CASE("code_store: killed at any moment, no torn entry is ever seen") {
  std::mt19937 random(11);
  test::Folder folder(test::Place::disk);
  int complete = 0;
  for (int round = 0; round < 25; ++round) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    test::Child writer([&]() -> std::string {
      auto store = CodeStore::open(folder / "code");
      CHILD_OK(store);
      for (int i = 0;; ++i) {
        CHILD_OK(store->get_or_build(key(round * 1000 + i),
                                     [](const std::string& output) -> Result<CodeInfo> {
                                       test::write_file(output, std::string(50000, 'c'));
                                       return CodeInfo{};
                                     }));
        if (write(ends[1], "x", 1) != 1) return "pipe";
      }
    });
    close(ends[1]);
    char byte;
    for (auto wanted = random() % 5; wanted > 0 && read(ends[0], &byte, 1) == 1; --wanted) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    writer.kill_now();
    (void)writer.wait();
    close(ends[0]);
    auto store = CodeStore::open(folder / "code");
    REQUIRE(store.ok());
    for (int i = 0; store->find(key(round * 1000 + i)).has_value(); ++i) ++complete;
    CHECK(store->take_notes().empty());  // torn entries would be noted
  }
  CHECK(complete > 20);
  auto store = CodeStore::open(folder / "code");
  CHECK(store->usage().entries == complete);
}

TEST_CASE("code_store: a build folder that cannot be removed costs nothing, and goes later") {
  test::Folder folder;
  const auto result = test::Child([&]() -> std::string {
                        if (unshare(CLONE_NEWNS) != 0 ||
                            mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
                          return "SKIPPED: mounting is not permitted here";
                        auto store = CodeStore::open(folder / "code");
                        CHILD_OK(store);
                        // Something is mounted in it: removing answers EBUSY, as on NFS.
                        const auto entry = store->get_or_build(
                            key(1), [&](const std::string& output) -> Result<CodeInfo> {
                              const auto busy = output + ".busy";
                              std::filesystem::create_directory(busy);
                              if (mount("busy", busy.c_str(), "tmpfs", 0, "size=64k") != 0)
                                return Status(Code::internal, "cannot mount");
                              test::write_file(output, "code");
                              return CodeInfo{};
                            });
                        CHILD_OK(entry);
                        CHILD_CHECK(*CodeStore::read_code(*entry) == "code");
                        CHILD_CHECK(store->take_notes().empty());
                        return {};
                      }).wait();
  if (test::skipped(result)) return;
  CHECK(result == "");
  // The mount ended with the child; what was left is a folder like any other.
  auto store = CodeStore::open(folder / "code");
  const auto found = store->find(key(1));
  REQUIRE(found.has_value());
  CHECK(*CodeStore::read_code(*found) == "code");
}
