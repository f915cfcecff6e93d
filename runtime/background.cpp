#include "runtime/background.hpp"

#include <unistd.h>

#include <exception>
#include <new>

#include "runtime/signals.hpp"

namespace quarterturn {

BackgroundQueue::BackgroundQueue() : shared_(std::make_shared<Shared>()), maker_(getpid()) {}

BackgroundQueue::~BackgroundQueue() {
  if (!thread_) return;
  if (getpid() != maker_) {
    // Its mutex may be held by a thread that did not come along.
    (void)thread_.release();
    (void)new (std::nothrow) std::shared_ptr<Shared>(std::move(shared_));
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stop = true;
    shared_->jobs.clear();
  }
  shared_->changed.notify_all();
  thread_->join();
}

bool BackgroundQueue::add(std::function<void()> job) {
  if (getpid() != maker_) return false;
  {
    const std::lock_guard lock(shared_->mutex);
    if (!thread_) {
      const SignalsBlocked blocked;
      try {
        thread_ = std::make_unique<std::thread>([shared = shared_] { work(*shared); });
      } catch (const std::exception&) {
        return false;
      }
    }
    shared_->jobs.push_back(std::move(job));
  }
  shared_->changed.notify_all();
  return true;
}

void BackgroundQueue::every(std::chrono::seconds interval, std::function<void()> job) {
  const std::lock_guard lock(shared_->mutex);
  shared_->interval = interval;
  shared_->repeated = std::move(job);
}

void BackgroundQueue::wait_until_idle() {
  if (getpid() != maker_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return shared_->jobs.empty() && !shared_->busy; });
}

void BackgroundQueue::work(Shared& shared) {
  std::unique_lock lock(shared.mutex);
  for (;;) {
    const auto wanted = [&] { return shared.stop || !shared.jobs.empty(); };
    if (shared.interval.count() == 0)
      shared.changed.wait(lock, wanted);
    else
      shared.changed.wait_for(lock, shared.interval, wanted);
    if (shared.stop) return;
    std::function<void()> job = shared.repeated;
    if (!shared.jobs.empty()) {
      job = std::move(shared.jobs.front());
      shared.jobs.pop_front();
    }
    shared.busy = true;
    lock.unlock();
    try {
      job();
    } catch (...) {
      // Nobody is there to be told, and its host goes on without what this was to bring.
    }
    job = nullptr;  // what it holds may call back
    lock.lock();
    shared.busy = false;
    shared.changed.notify_all();
  }
}

}  // namespace quarterturn
