#include "runtime/cpu/thread_pool.hpp"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <exception>

#include "runtime/signals.hpp"

namespace quarterturn::cpu {
namespace {

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word, int count) {
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), FUTEX_WAKE_PRIVATE, count, nullptr,
          nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// Long enough to bridge the steps of a plan and back-to-back calls, short enough to be no load.
constexpr auto kSpin = std::chrono::microseconds(40);

// Waits until `word` differs from `old`: briefly awake, then asleep. `sleepers` counts who sleeps.
std::uint32_t await_change(std::atomic<std::uint32_t>& word, std::uint32_t old,
                           std::atomic<std::uint32_t>& sleepers) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      if (const auto now = word.load(std::memory_order_acquire); now != old) return now;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  std::uint32_t now = old;
  while ((now = word.load(std::memory_order_seq_cst)) == old) futex_wait(word, old);
  sleepers.fetch_sub(1, std::memory_order_relaxed);
  return now;
}

}  // namespace

// The caller owns the job from `taken` to its release. `gate` says whether workers may enter: its
// top bit is "open", the rest counts the workers inside. A job is replaced only when nobody is
// inside.
struct ThreadPool::Shared {
  static constexpr std::uint32_t kOpen = 1u << 31;

  alignas(64) std::atomic<std::uint32_t> round{
      0};  ///< changes with each job, and to end the workers
  std::atomic<std::uint32_t> sleeping_workers{0};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<std::uint32_t> gate{0};
  std::atomic<std::uint32_t> sleeping_callers{0};
  alignas(64) std::atomic<std::int64_t> next{0};
  alignas(64) std::atomic<bool> taken{false};
  PartFunction function = nullptr;
  const void* context = nullptr;
  std::int64_t parts = 0;

  /// A page that the kernel hands to a forked child zeroed.
  std::uint32_t* alive = nullptr;
  pid_t maker = getpid();  ///< decides where that page cannot be had, and at the end

  void take_parts() {
    for (;;) {
      const auto part = next.fetch_add(1, std::memory_order_relaxed);
      if (part >= parts) return;
      function(context, part);
    }
  }

  bool enter() {
    auto now = gate.load(std::memory_order_relaxed);
    while (now & kOpen)
      if (gate.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) return true;
    return false;
  }

  void leave() {
    const auto now = gate.fetch_sub(1, std::memory_order_seq_cst) - 1;
    if (now == 0 && sleeping_callers.load(std::memory_order_seq_cst) != 0) futex_wake(gate, 1);
  }

  void close_and_wait() {
    auto now = gate.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (now != 0) now = await_change(gate, now, sleeping_callers);
  }
};

ThreadPool::ThreadPool(std::int64_t threads)
    : shared_(std::make_unique<Shared>()), workers_(std::make_unique<std::vector<std::thread>>()) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory != MAP_FAILED && madvise(memory, page, MADV_WIPEONFORK) == 0) {
    shared_->alive = static_cast<std::uint32_t*>(memory);
    *shared_->alive = 1;
  } else if (memory != MAP_FAILED) {
    munmap(memory, page);
  }
  workers_->reserve(static_cast<std::size_t>(std::max<std::int64_t>(threads, 1)));
  const SignalsBlocked blocked;
  try {
    for (std::int64_t i = 1; i < threads; ++i) {
      workers_->emplace_back([shared = shared_.get()] { work(*shared); });
      pthread_setname_np(workers_->back().native_handle(), "quarterturn");
    }
  } catch (const std::exception&) {
    // A limit on threads or memory: the ones that exist will do.
  }
}

ThreadPool::~ThreadPool() {
  if (forked() || shared_->maker != getpid()) {
    // The threads do not exist here; joining or destroying their handles would not be defined.
    (void)workers_.release();
    return;
  }
  shared_->stop.store(true, std::memory_order_relaxed);
  shared_->round.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(shared_->round, INT_MAX);
  for (auto& worker : *workers_) worker.join();
  if (shared_->alive) munmap(shared_->alive, static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
}

bool ThreadPool::forked() const {
  return shared_->alive ? *static_cast<volatile std::uint32_t*>(shared_->alive) == 0
                        : shared_->maker != getpid();
}

void ThreadPool::work(Shared& shared) {
  std::uint32_t seen = 0;
  for (;;) {
    seen = await_change(shared.round, seen, shared.sleeping_workers);
    if (shared.stop.load(std::memory_order_relaxed)) return;
    if (!shared.enter()) continue;
    shared.take_parts();
    shared.leave();
  }
}

void ThreadPool::run(PartFunction function, const void* context, std::int64_t parts) const {
  Shared& shared = *shared_;
  if (parts <= 1 || workers_->empty() || forked() ||
      shared.taken.exchange(true, std::memory_order_acquire)) {
    for (std::int64_t part = 0; part < parts; ++part) function(context, part);
    return;
  }
  shared.function = function;
  shared.context = context;
  shared.parts = parts;
  shared.next.store(0, std::memory_order_relaxed);
  shared.gate.store(Shared::kOpen, std::memory_order_release);
  shared.round.fetch_add(1, std::memory_order_seq_cst);
  if (shared.sleeping_workers.load(std::memory_order_seq_cst) != 0)
    futex_wake(shared.round, static_cast<int>(std::min<std::int64_t>(parts - 1, INT_MAX)));
  shared.take_parts();
  shared.close_and_wait();
  shared.taken.store(false, std::memory_order_release);
}

}  // namespace quarterturn::cpu
