// ThreadPool: the CPU back end's workers, made once with the context so that a run wakes them
// without locks or memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace quarterturn::cpu {

/// One independent part of a job.
using PartFunction = void (*)(const void* context, std::int64_t part);

/// Parts are taken from an atomic counter by the caller and by workers that wake in time; a worker
/// that wakes late finds the job closed and holds nobody up.
///
/// Thread-safe: while one thread has the workers, another runs its parts alone. After fork the
/// child has no workers, notices it, and runs alone too.
class ThreadPool {
 public:
  /// `threads` counts the calling thread: threads - 1 workers are made, with all signals blocked
  /// and the creator's affinity. Fewer where the system refuses to make them.
  explicit ThreadPool(std::int64_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  /// Calls function(context, part) once for each part in [0, parts), on any thread, and returns
  /// when all are done. No allocation, no lock; at most two system calls.
  void run(PartFunction function, const void* context, std::int64_t parts) const;

  /// Threads that share a run: the workers and the caller.
  std::int64_t threads() const { return static_cast<std::int64_t>(workers_->size()) + 1; }

  /// True in a child of the process that made the pool.
  bool forked() const;

 private:
  struct Shared;
  static void work(Shared& shared);

  std::unique_ptr<Shared> shared_;
  std::unique_ptr<std::vector<std::thread>>
      workers_;  ///< on the heap, so that a child can leave it
};

}  // namespace quarterturn::cpu
