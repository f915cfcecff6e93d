// BackgroundQueue: one thread that does a context's compilations while reference kernels serve.
#pragma once

#include <sys/types.h>

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
  /// Returns when every job added so far is done. For tests and orderly ends.
  void wait_until_idle();

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> jobs;
    bool stop = false, busy = false;
  };
  static void work(Shared& shared);

  std::shared_ptr<Shared> shared_;
  std::unique_ptr<std::thread> thread_;
  pid_t maker_;
};

}  // namespace quarterturn
