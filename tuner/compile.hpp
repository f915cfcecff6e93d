// Compiling candidates ahead of their trials, several at once; what is compiled lies in the code
// store.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "generator/family.hpp"
#include "runtime/backend.hpp"
#include "tuner/compile_slots.hpp"

namespace quarterturn {

/// What the compiler said of a plan's steps together.
struct Compiled {
  Status status;
  std::int64_t milliseconds = 0;  ///< spent on kernels of this plan; 0 when all were in the store
  std::int64_t kernels = 0;       ///< compiled by the pool and not counted for another plan yet
  std::int64_t registers = 0, spills = 0, shared_bytes = 0;
};

/// Threads that compile kernels in the order in which they are wanted, each kernel once, however
/// many plans share it. They give way to whoever measures or prepares data.
///
/// Thread-safe. The back end must outlive the pool.
class CompilePool {
 public:
  /// `slots`, where there are some, also count the compilers of other processes.
  CompilePool(Backend& backend, std::size_t threads,
              std::shared_ptr<const CompileSlots> slots = nullptr);
  /// Waits for what is being compiled; what has not begun is not.
  ~CompilePool();
  CompilePool(const CompilePool&) = delete;
  CompilePool& operator=(const CompilePool&) = delete;

  /// `later` gives way to `now`, for instance the next problem's plans to this one's.
  enum class Urgency { now, later };

  struct Kernel;
  struct PlanJob;
  using Job = std::shared_ptr<PlanJob>;

  Job submit(const Problem& problem, const Plan& plan, Urgency urgency);
  bool is_done(const Job& job) const;
  /// Of a job that is done; of another one, status `interrupted`.
  Compiled result(const Job& job);
  /// Until `least` of the jobs are done, or `stop`, asked every few hundredths of a second, says
  /// so.
  void wait(const std::vector<Job>& jobs, std::size_t least,
            const std::function<bool()>& stop) const;
  /// Not wanted any more: kernels of no other job are not begun.
  void drop(const Job& job);

  std::size_t threads() const { return threads_.size(); }

 private:
  std::shared_ptr<Kernel> kernel_for(const Problem& part, const Step& step);
  std::shared_ptr<Kernel> next_kernel();
  bool is_ending() const;
  void work();
  void compile(Kernel& kernel) const;

  Backend& backend_;
  std::shared_ptr<const CompileSlots> slots_;
  mutable std::mutex mutex_;  ///< guards all below, and every Kernel and PlanJob
  std::condition_variable wanted_;
  mutable std::condition_variable done_;
  bool ending_ = false;
  std::deque<std::shared_ptr<Kernel>> now_, later_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Kernel>> kernels_;
  std::vector<std::thread> threads_;
};

/// All plans at once, on `threads` threads; once `interrupted` says so, the rest has that status.
std::vector<Compiled> compile_plans(Backend& backend, const Problem& problem,
                                    const std::vector<Plan>& plans, std::size_t threads,
                                    const std::function<bool()>& interrupted);

}  // namespace quarterturn
