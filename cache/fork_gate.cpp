#include "cache/fork_gate.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

namespace quarterturn::sqlite {
namespace {

constexpr auto kPatience = std::chrono::seconds(2);

// How deep in uses this thread is.
thread_local int depth = 0;
// Whether this thread holds the gate's mutex over a fork. Its own, as forks of several threads
// overlap: the C library runs their handlers side by side.
thread_local bool holds = false;

// The mutex is held over the fork itself, so that no use begins meanwhile.
class Gate {
 public:
  // Never destroyed: threads may outlive the static objects of their process.
  static Gate& instance() {
    static Gate* const gate = [] {
      auto* const made = new Gate;
      pthread_atfork([] { instance().before(); }, [] { instance().in_parent(); },
                     [] { instance().in_child(); });
      return made;
    }();
    return *gate;
  }

  /// A bare system call forks past pthread_atfork: such a child knows by its number.
  bool is_lost() const { return lost_ || process_ != getpid(); }

  void enter() {
    const std::lock_guard lock(mutex_);
    ++uses_;
  }
  void leave() { --uses_; }

  void add(ClosedByFork* file) {
    if (is_lost()) return;
    const std::lock_guard lock(mutex_);
    files_.insert(file);
  }
  void remove(ClosedByFork* file) {
    if (is_lost()) return;
    const std::lock_guard lock(mutex_);
    files_.erase(file);
  }

 private:
  Gate() = default;

  void before() {
    if (is_lost()) return;
    mutex_.lock();
    holds = true;
    const int own = depth > 0 ? 1 : 0;
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    while (uses_ > own && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    quiet_ = uses_ == 0;
    if (quiet_)
      for (auto* file : files_) file->close_for_fork();
  }
  void in_parent() {
    if (std::exchange(holds, false)) mutex_.unlock();
  }
  void in_child() {
    if (!std::exchange(holds, false)) return;
    process_ = getpid();
    lost_ = !quiet_;
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::atomic<int> uses_{0};
  std::set<ClosedByFork*> files_;
  bool quiet_ = false;
  bool lost_ = false;
  pid_t process_ = getpid();
};

}  // namespace

Use::Use() {
  auto& gate = Gate::instance();
  if (gate.is_lost()) {
    status_ = Status(
        Code::busy,
        "this process was forked while another thread used SQLite, so it cannot use the tuning "
        "database; fork where no other thread prepares, or start processes by exec (Python's "
        "\"spawn\")");
  } else if (depth++ == 0) {
    gate.enter();
  }
}

Use::~Use() {
  if (status_.ok() && --depth == 0) Gate::instance().leave();
}

ClosedByFork::ClosedByFork() { Gate::instance().add(this); }
ClosedByFork::~ClosedByFork() { Gate::instance().remove(this); }

}  // namespace quarterturn::sqlite
