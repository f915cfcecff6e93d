#include "runtime/cpu/thread_pool.hpp"

#include <doctest/doctest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

using quarterturn::cpu::ThreadPool;

namespace {

struct Counts {
  std::vector<std::atomic<int>> calls;
  explicit Counts(std::size_t parts) : calls(parts) {}
  static void count(const void* context, std::int64_t part) {
    auto& self = *static_cast<Counts*>(const_cast<void*>(context));
    self.calls[static_cast<std::size_t>(part)].fetch_add(1);
  }
  bool each_once() const {
    for (const auto& calls_of_part : calls)
      if (calls_of_part != 1) return false;
    return true;
  }
};

// Runs `body` in a child and gives its exit status, or -1 when it did not end by itself.
template <class Body>
int in_child(Body body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(body());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("thread_pool.every part once, for any number of parts and threads") {
  for (const int threads : {1, 2, 3, 5}) {
    const ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    for (const std::size_t parts : {0u, 1u, 2u, 3u, 17u, 1000u})
      for (int again = 0; again < 50; ++again) {
        Counts counts(parts);
        pool.run(Counts::count, &counts, static_cast<std::int64_t>(parts));
        REQUIRE(counts.each_once());
      }
  }
}

TEST_CASE("thread_pool.workers take part") {
  const ThreadPool pool(2);
  struct Meeting {
    std::atomic<int> inside{0};
    static void wait(const void* context, std::int64_t) {
      auto& self = *static_cast<Meeting*>(const_cast<void*>(context));
      self.inside.fetch_add(1);
      // Two parts that wait for each other end only when two threads run them.
      while (self.inside.load() < 2) usleep(10);
    }
  } meeting;
  pool.run(Meeting::wait, &meeting, 2);
  CHECK(meeting.inside == 2);
  usleep(2000);  // beyond the spin: the worker sleeps
  meeting.inside = 0;
  pool.run(Meeting::wait, &meeting, 2);
  CHECK(meeting.inside == 2);
}

TEST_CASE("thread_pool.many callers at once") {
  const ThreadPool pool(3);
  std::atomic<int> bad{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int again = 0; again < 400; ++again) {
        Counts counts(7);
        pool.run(Counts::count, &counts, 7);
        bad += !counts.each_once();
      }
    });
  for (auto& caller : callers) caller.join();
  CHECK(bad == 0);
}

TEST_CASE("thread_pool.a forked child runs alone and ends cleanly") {
  auto* pool = new ThreadPool(3);
  Counts before(5);
  pool->run(Counts::count, &before, 5);
  CHECK_FALSE(pool->forked());
  const int status = in_child([pool] {
    Counts counts(9);
    pool->run(Counts::count, &counts, 9);
    const bool right = pool->forked() && counts.each_once();
    delete pool;
    return right ? 7 : 1;
  });
  CHECK(status == 7);
  Counts after(5);
  pool->run(Counts::count, &after, 5);
  CHECK(after.each_once());
  delete pool;
}

TEST_CASE("thread_pool.a child forked by a bare system call runs alone too") {
  const ThreadPool pool(2);
  const auto pid = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (pid == 0) {
    alarm(20);
    Counts counts(9);
    pool.run(Counts::count, &counts, 9);
    _exit(counts.each_once() ? 7 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
}

TEST_CASE("thread_pool.made and destroyed often") {
  for (int i = 0; i < 30; ++i) {
    const ThreadPool pool(4);
    Counts counts(3);
    pool.run(Counts::count, &counts, 3);
    CHECK(counts.each_once());
  }
}
