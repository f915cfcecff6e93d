// BackgroundQueue: one thread that compiles for a context while reference kernels serve, and writes
// what is to be remembered.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace quarterturn {

/// The thread starts with the first job. Destruction drops jobs that have not begun and waits for
/// the one that has; in a forked child it does neither, as the thread is not there.
class BackgroundQueue {
 public:
  BackgroundQueue();
  ~BackgroundQueue();
  BackgroundQueue(const BackgroundQueue&) = delete;
  BackgroundQueue& operator=(const BackgroundQueue&) = delete;

  /// False where no thread can be had: in a forked child, or at the system's limit.
  bool add(std::function<void()> job);
  /// From the first job on, also does this after each `interval` without work. Before that job.
  void every(std::chrono::seconds interval, std::function<void()> job);
  /// Returns when every job added so far is done. For tests and orderly ends.
  void wait_until_idle();

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    bool stop = false, busy = false;
    std::chrono::seconds interval{0};  ///< 0: no repeated job
    std::function<void()> repeated;
  };
  static void work(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::unique_ptr<std::thread> thread_;
  pid_t maker_;
};

}  // namespace quarterturn
