#include "tuner/compile.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace quarterturn {
namespace {

constexpr int kNice = 5;
constexpr std::chrono::milliseconds kAskAgain{30};

// Of the calling thread alone, and of the compilers that it starts.
void give_way() { setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kNice); }

}  // namespace

struct CompilePool::Kernel {
  enum class State { waiting, running, done };
  Problem part;
  Step step;
  State state = State::waiting;
  std::size_t wanted = 0;  // jobs that need it
  bool counted = false;    // in some plan's result
  Compiled result;
};

struct CompilePool::PlanJob {
  std::vector<std::shared_ptr<Kernel>> kernels;
  bool dropped = false;

  bool done() const {
    return std::all_of(kernels.begin(), kernels.end(),
                       [](const auto& kernel) { return kernel->state == Kernel::State::done; });
  }
};

CompilePool::CompilePool(Backend& backend, std::size_t threads,
                         std::shared_ptr<const CompileSlots> slots)
    : backend_(backend), slots_(std::move(slots)) {
  for (std::size_t i = 0; i < std::max<std::size_t>(1, threads); ++i)
    threads_.emplace_back([this] { work(); });
}

CompilePool::~CompilePool() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wanted_.notify_all();
  for (auto& thread : threads_) thread.join();
}

std::shared_ptr<CompilePool::Kernel> CompilePool::kernel_for(const Problem& part,
                                                             const Step& step) {
  auto& kernel = kernels_[{part.key(), step.variant.text()}];
  // What was interrupted or lacked the machine's means may succeed now.
  const bool again = kernel && kernel->state == Kernel::State::done &&
                     (kernel->result.status.code() == Code::interrupted ||
                      kernel->result.status.code() == Code::disk_full);
  if (!kernel || again) {
    kernel = std::make_shared<Kernel>();
    kernel->part = part;
    kernel->step = step;
  }
  return kernel;
}

CompilePool::Job CompilePool::submit(const Problem& problem, const Plan& plan, Urgency urgency) {
  auto job = std::make_shared<PlanJob>();
  const Target& target = backend_.device().target;
  const std::lock_guard lock(mutex_);
  // The last steps multiply and take longest.
  for (auto step = plan.steps.rbegin(); step != plan.steps.rend(); ++step) {
    auto kernel = kernel_for(step_problem(problem, target, plan, step->kind), *step);
    ++kernel->wanted;
    if (kernel->state == Kernel::State::waiting)
      (urgency == Urgency::now ? now_ : later_).push_back(kernel);
    job->kernels.push_back(std::move(kernel));
  }
  wanted_.notify_all();
  return job;
}

bool CompilePool::is_done(const Job& job) const {
  const std::lock_guard lock(mutex_);
  return job->done();
}

Compiled CompilePool::result(const Job& job) {
  const std::lock_guard lock(mutex_);
  Compiled out;
  for (const auto& kernel : job->kernels) {
    if (kernel->state != Kernel::State::done) {
      out.status = Status(Code::interrupted, "interrupted");
      continue;
    }
    const Compiled& one = kernel->result;
    if (out.status.ok()) out.status = one.status;
    out.milliseconds += one.milliseconds;
    if (!kernel->counted) out.kernels += one.kernels;
    kernel->counted = true;
    out.registers = std::max(out.registers, one.registers);
    out.shared_bytes = std::max(out.shared_bytes, one.shared_bytes);
    out.spills += one.spills;
  }
  return out;
}

void CompilePool::wait(const std::vector<Job>& jobs, std::size_t least,
                       const std::function<bool()>& stop) const {
  std::unique_lock lock(mutex_);
  const auto enough = [&] {
    const auto done =
        std::count_if(jobs.begin(), jobs.end(), [](const Job& job) { return job->done(); });
    return static_cast<std::size_t>(done) >= std::min(least, jobs.size());
  };
  while (!enough()) {
    done_.wait_for(lock, kAskAgain);
    lock.unlock();
    const bool stopped = stop && stop();
    lock.lock();
    if (stopped) return;
  }
}

void CompilePool::drop(const Job& job) {
  const std::lock_guard lock(mutex_);
  if (job->dropped) return;
  job->dropped = true;
  for (const auto& kernel : job->kernels) --kernel->wanted;
}

std::shared_ptr<CompilePool::Kernel> CompilePool::next_kernel() {
  for (auto* queue : {&now_, &later_})
    while (!queue->empty()) {
      auto kernel = queue->front();
      queue->pop_front();
      // Dropped, or begun from the other queue.
      if (kernel->wanted > 0 && kernel->state == Kernel::State::waiting) return kernel;
    }
  return nullptr;
}

bool CompilePool::is_ending() const {
  const std::lock_guard lock(mutex_);
  return ending_;
}

void CompilePool::work() {
  give_way();
  std::unique_lock lock(mutex_);
  while (!ending_) {
    const auto kernel = next_kernel();
    if (!kernel) {
      wanted_.wait(lock);
      continue;
    }
    kernel->state = Kernel::State::running;
    lock.unlock();
    {
      const auto slot = slots_ ? slots_->take([this] { return is_ending(); }) : FileLock();
      if (!is_ending())
        compile(*kernel);
      else
        kernel->result.status = Status(Code::interrupted, "interrupted");
    }
    lock.lock();
    kernel->state = Kernel::State::done;
    done_.notify_all();
  }
}

// No lock is held: nobody else touches a kernel that runs.
void CompilePool::compile(Kernel& kernel) const {
  Compiled& out = kernel.result;
  const Variant& variant = kernel.step.variant;
  const Family* family = find_family(variant.family);
  if (!family) {
    out.status =
        Status(Code::unknown_name, fmt::format("no family is called '{}'", variant.family));
    return;
  }
  const auto binary =
      backend_.compile(family->emit(kernel.part, backend_.device().target, variant));
  if (!binary.ok()) {
    out.status =
        Status(binary.status().code(), fmt::format("{} ({}): {}", step_name(kernel.step.kind),
                                                   variant.text(), binary.status().message()));
    return;
  }
  if (!binary->cached) {
    out.kernels = 1;
    out.milliseconds = binary->compile_ms;
  }
  out.registers = binary->registers;
  out.shared_bytes = binary->shared_bytes;
  out.spills = binary->spills;
}

std::vector<Compiled> compile_plans(Backend& backend, const Problem& problem,
                                    const std::vector<Plan>& plans, std::size_t threads,
                                    const std::function<bool()>& interrupted) {
  if (interrupted && interrupted()) {
    Compiled none;
    none.status = Status(Code::interrupted, "interrupted");
    return {plans.size(), none};
  }
  CompilePool pool(backend, std::min(threads, plans.size()));
  std::vector<CompilePool::Job> jobs;
  for (const auto& plan : plans)
    jobs.push_back(pool.submit(problem, plan, CompilePool::Urgency::now));
  pool.wait(jobs, jobs.size(), interrupted);
  std::vector<Compiled> out;
  for (const auto& job : jobs) out.push_back(pool.result(job));
  return out;
}

}  // namespace quarterturn
