#include "tuner/campaign_worker.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "tuner/campaign_code.hpp"
#include "tuner/compile.hpp"
#include "tuner/problem_tuner.hpp"

namespace quarterturn {
namespace {

using std::chrono::duration;

constexpr double kHeartbeatSeconds = 15, kRetrySeconds = 10, kLookSeconds = 0.1;
// Slurm gives two minutes between the signal that `qturn cluster submit` asks for and the end.
constexpr double kPatienceAtEnd = 60;
constexpr std::size_t kMostFailures = 100;

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "";
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string job_name() {
  const auto array = variable("SLURM_ARRAY_JOB_ID");
  if (!array.empty()) return fmt::format("{}_{}", array, variable("SLURM_ARRAY_TASK_ID"));
  return variable("SLURM_JOB_ID");
}

// Writes out what a worker has, from a thread of its own. A copy that fails is said once and tried
// again.
class Outbox {
 public:
  /// `copy`: everything, where something is new.
  Outbox(const CampaignWork& work, Heartbeat heartbeat, std::function<Status()> copy)
      : work_(work), copy_(std::move(copy)), heartbeat_(std::move(heartbeat)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Outbox() { stop(); }
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  void change(const std::function<void(Heartbeat&)>& what) {
    const std::lock_guard lock(mutex_);
    what(heartbeat_);
  }
  Heartbeat heartbeat() const {
    const std::lock_guard lock(mutex_);
    return heartbeat_;
  }

  /// The last copy and heartbeat, waited for as long as the worker may.
  Status finish() {
    stop();
    const SteadyClock clock;
    const double begun = clock.now();
    for (;;) {
      const Status status = send(true);
      const double patience =
          interrupted() ? std::min(kPatienceAtEnd, work_.patience) : work_.patience;
      if (status.ok() || clock.now() - begun >= patience) return status;
      std::this_thread::sleep_for(duration<double>(std::min(1.0, patience)));
    }
  }

 private:
  bool interrupted() const { return work_.session.interrupted(); }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  void serve() {
    const SteadyClock clock;
    double next_copy = clock.now() + work_.interval, next_heartbeat = 0;
    bool told = false;
    std::unique_lock lock(mutex_);
    while (!ending_) {
      wake_.wait_for(lock, duration<double>(kLookSeconds));
      const bool now_told = interrupted();
      const double now = clock.now();
      const bool copies = now >= next_copy || (now_told && !told);
      told = now_told;
      if (!copies && now < next_heartbeat) continue;
      lock.unlock();
      const Status status = send(copies);
      lock.lock();
      const double done = clock.now();
      if (copies)
        next_copy = done + (status.ok() ? work_.interval : std::min(kRetrySeconds, work_.interval));
      next_heartbeat = done + std::min(kHeartbeatSeconds, work_.interval);
    }
  }

  // Of one thread at a time.
  Status send(bool copies) {
    Status status = copies ? copy_() : Status();
    if (copies) note(status);
    Heartbeat heartbeat;
    {
      const std::lock_guard lock(mutex_);
      heartbeat_.written = nanoseconds_now();
      heartbeat = heartbeat_;
    }
    const Status written = replace_durably(
        work_.folder.heartbeat(heartbeat.shard, heartbeat.worker), heartbeat.text());
    return status.ok() && copies ? written : status;
  }

  void note(const Status& status) {
    {
      const std::lock_guard lock(mutex_);
      heartbeat_.trouble = status.message();
    }
    const bool again = status.message() == said_;
    if (!again && work_.say)
      work_.say(status.ok() ? "results are copied out again"
                            : fmt::format("results stay in {} and are copied out later: {}",
                                          work_.scratch, status.message()));
    said_ = status.message();
  }

  const CampaignWork& work_;
  std::function<Status()> copy_;
  std::string said_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  Heartbeat heartbeat_;
  bool ending_ = false;
  std::thread thread_;
};

Heartbeat first_heartbeat(Context& context, const CampaignWork& work, const char* stage) {
  Heartbeat out;
  out.shard = work.shard;
  out.campaign = work.campaign.id();
  out.stage = stage;
  out.host = host_name();
  out.job = job_name();
  out.device = context.backend().device().name;
  out.performance_class = context.env().performance_class;
  out.interval = work.interval;
  out.problems = work.campaign.items_of(work.shard).size();
  return out;
}

// The database as a snapshot, written where there is a file system that SQLite is sure of.
class DatabaseCopy {
 public:
  DatabaseCopy(Database& database, const CampaignWork& work, std::string to)
      : database_(database), from_(work.scratch + "/copied-out.db"), to_(std::move(to)) {}

  Status operator()() {
    const auto hash = database_.content_hash();
    if (!hash.ok()) return hash.status();
    if (copied_ == *hash) return {};
    Status status = database_.export_snapshot(from_).status();
    if (status.ok())
      status = copy_durably(from_, to_);
    else
      status = database_.export_snapshot(to_).status();  // the node's disk is full
    unlink(from_.c_str());
    if (status.ok()) copied_ = *hash;
    return status;
  }

 private:
  Database& database_;
  std::string from_, to_;
  std::optional<Digest> copied_;
};

std::map<std::string, double> estimated_seconds(const CampaignWork& work) {
  std::map<std::string, double> out;
  for (const auto& p : work.campaign.problems)
    if (p.shard == work.shard) out[p.item.problem.key()] = p.compile_seconds + p.device_seconds;
  return out;
}

bool is_full(Code code) {
  return code == Code::disk_full || code == Code::read_only || code == Code::io_error;
}

void wait_a_while(double seconds, const std::function<bool()>& stop) {
  const SteadyClock clock;
  for (const double begun = clock.now(); clock.now() - begun < seconds && !stop();)
    std::this_thread::sleep_for(duration<double>(kLookSeconds));
}

// Where a session stopped for want of room, or empty.
Status trouble_of(const std::vector<Tuned>& results) {
  return !results.empty() && is_full(results.back().status.code()) ? results.back().status
                                                                   : Status();
}

bool has_answer(const Tuned& tuned) {
  return tuned.answer == Tuned::Answer::cached || tuned.answer == Tuned::Answer::tuned ||
         tuned.answer == Tuned::Answer::fallback;
}

// One pass over the shard; `outbox` learns of each problem.
std::vector<Tuned> pass(Context& context, const CampaignWork& work, Outbox& outbox, double begun) {
  const auto estimates = estimated_seconds(work);
  const SteadyClock clock;
  outbox.change([](Heartbeat& h) {
    h.answered = 0;
    h.failures.clear();
  });
  Session session(context, work.session);
  return session.run(
      work.campaign.items_of(work.shard),
      [&](const Progress& progress) {
        outbox.change([&](Heartbeat& h) {
          h.now = fmt::format("{}: {}", progress.name, phase_name(progress.phase));
          h.seconds = clock.now() - begun;
        });
      },
      [&](const Tuned& tuned) {
        outbox.change([&](Heartbeat& h) {
          h.seconds = clock.now() - begun;
          h.tried += tuned.tried;
          h.failed += tuned.failed;
          h.compiled += tuned.compiled;
          h.answered += has_answer(tuned);
          const auto key = tuned.item.problem.key();
          if (has_answer(tuned) && tuned.answer != Tuned::Answer::cached)
            h.estimated_seconds += estimates.at(key);
          if (!has_answer(tuned) && tuned.status.code() != Code::interrupted &&
              h.failures.size() < kMostFailures)
            h.failures.push_back(
                {key, tuned.reason.empty() ? tuned.status.message() : tuned.reason});
        });
        if (work.say && tuned.answer != Tuned::Answer::cached)
          work.say(fmt::format("{}: {}", short_name(tuned.item.problem),
                               tuned.reason.empty() ? tuned.status.message() : tuned.reason));
      });
}

struct CompiledCandidates {
  std::vector<std::string> plans;  // that compile
  std::int64_t failed = 0, kernels = 0;
  Status first_failure;
};

// What a problem's search may try, and what brings operands into their layouts.
CompiledCandidates compile_candidates(Context& context, CompilePool& pool,
                                      const CampaignProblem& wanted,
                                      const std::function<bool()>& interrupted) {
  const Target& target = context.backend().device().target;
  const Problem& problem = wanted.item.problem;
  auto plans = ordered_plans({problem, target, searchable_plans(context, problem)});
  if (plans.size() > wanted.candidates) plans.resize(wanted.candidates);
  std::vector<CompilePool::Job> jobs;
  std::vector<std::vector<CompilePool::Job>> of_plans;
  for (const auto& plan : plans) {
    of_plans.push_back(submit_all(pool, problem, target, plan, CompilePool::Urgency::now));
    jobs.insert(jobs.end(), of_plans.back().begin(), of_plans.back().end());
  }
  pool.wait(jobs, jobs.size(), interrupted);
  CompiledCandidates out;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    Status status;
    for (const auto& job : of_plans[i]) {
      const auto result = pool.result(job);
      out.kernels += result.kernels;
      if (status.ok()) status = result.status;
    }
    if (status.ok()) out.plans.push_back(plans[i].text());
    if (status.ok() || status.code() == Code::interrupted) continue;
    ++out.failed;
    if (out.first_failure.ok()) out.first_failure = status;
  }
  for (const auto& job : jobs) pool.drop(job);
  return out;
}

}  // namespace

Status take_up(Context& context, const CampaignWork& work) {
  const auto copies = work.folder.databases(work.shard);
  if (!copies.ok()) return copies.status();
  for (const auto& copy : *copies) {
    const auto report = adopt(context.database(), copy.path);
    if (!report.ok() && work.say)
      work.say(fmt::format("{} is not taken up: {}", copy.path, report.status().message()));
  }
  return copies->empty() ? Status() : context.reload(Reload::replace).status();
}

Status unpack_code(Context& context, CampaignWork& work) {
  auto plans = unpack(work.folder.code(work.shard), context.code_store()->folder());
  if (plans.status().code() == Code::miss) return {};
  if (!plans.ok()) return plans.status();
  work.session.plans = [&context, packed = std::move(*plans)](const Problem& problem) {
    const auto found = packed.find(problem.key());
    std::vector<Plan> out;
    if (found != packed.end())
      for (const auto& text : found->second)
        if (auto plan = parse_plan(text); plan.ok()) out.push_back(std::move(*plan));
    return out.empty() ? searchable_plans(context, problem) : out;
  };
  return {};
}

Result<Heartbeat> tune_shard(Context& context, const CampaignWork& work) {
  const auto info = context.database().info();
  if (!info.ok()) return info.status();
  Heartbeat heartbeat = first_heartbeat(context, work, "tune");
  heartbeat.worker = info->uuid.substr(0, 8);
  Outbox outbox(
      work, heartbeat,
      DatabaseCopy(context.database(), work, work.folder.database(work.shard, heartbeat.worker)));
  const SteadyClock clock;
  const double begun = clock.now();
  const auto& interrupted = work.session.interrupted;
  Status trouble;
  std::size_t answered = 0;
  for (double progress = begun;;) {
    trouble = trouble_of(pass(context, work, outbox, begun));
    if (trouble.ok() || interrupted()) break;
    if (const auto now = outbox.heartbeat().answered; now > answered) {
      answered = now;
      progress = clock.now();
    }
    if (clock.now() - progress >= work.patience) break;
    if (work.say) work.say(fmt::format("waits for room: {}", trouble.message()));
    outbox.change([&](Heartbeat& h) { h.trouble = trouble.message(); });
    wait_a_while(std::min(kRetrySeconds, work.patience), interrupted);
  }
  outbox.change([&](Heartbeat& h) {
    h.now.clear();
    h.seconds = clock.now() - begun;
    h.state = h.answered == h.problems ? Heartbeat::State::done
              : interrupted()          ? Heartbeat::State::interrupted
              : !trouble.ok()          ? Heartbeat::State::stopped
                                       : Heartbeat::State::incomplete;
  });
  if (auto status = outbox.finish(); !status.ok()) return status;
  return outbox.heartbeat();
}

Result<Heartbeat> compile_shard(Context& context, const CampaignWork& work) {
  Heartbeat heartbeat = first_heartbeat(context, work, "compile");
  heartbeat.worker = "compile";
  const std::string store = context.code_store()->folder(), file = work.folder.code(work.shard);
  std::mutex mutex;  // guards `packed`
  PackedPlans packed;
  if (auto earlier = unpack(file, store); earlier.ok()) packed = std::move(*earlier);
  std::size_t kept = packed.size();
  Outbox outbox(work, heartbeat, [&]() -> Status {
    PackedPlans now;
    {
      const std::lock_guard lock(mutex);
      now = packed;
    }
    if (now.size() == kept) return {};
    Status status = pack(store, now, file);
    if (status.ok()) kept = now.size();
    return status;
  });
  const SteadyClock clock;
  const double begun = clock.now();
  CompilePool pool(context.backend(), work.session.jobs > 0 ? work.session.jobs : usable_cores());
  for (const auto& p : work.campaign.problems) {
    if (p.shard != work.shard || work.session.interrupted()) continue;
    const auto key = p.item.problem.key();
    if (packed.count(key) > 0) {
      outbox.change([](Heartbeat& h) { ++h.answered; });
      continue;
    }
    outbox.change([&](Heartbeat& h) { h.now = short_name(p.item.problem) + ": compiling"; });
    const auto done = compile_candidates(context, pool, p, work.session.interrupted);
    outbox.change([&](Heartbeat& h) {
      h.seconds = clock.now() - begun;
      h.compiled += done.kernels;
      h.tried += static_cast<std::int64_t>(done.plans.size()) + done.failed;
      h.failed += done.failed;
      h.answered += !done.plans.empty() && !work.session.interrupted();
      h.estimated_seconds += p.compile_seconds;
      if (done.plans.empty() && !done.first_failure.ok() && !work.session.interrupted())
        h.failures.push_back({key, done.first_failure.message()});
    });
    if (work.session.interrupted()) break;
    if (work.say)
      work.say(fmt::format("{}: {} plans compile, {} do not, {} kernels",
                           short_name(p.item.problem), done.plans.size(), done.failed,
                           done.kernels));
    if (done.plans.empty() && is_full(done.first_failure.code())) break;
    const std::lock_guard lock(mutex);
    if (!done.plans.empty()) packed[key] = done.plans;
  }
  outbox.change([&](Heartbeat& h) {
    h.now.clear();
    h.seconds = clock.now() - begun;
    h.state = h.answered == h.problems     ? Heartbeat::State::done
              : work.session.interrupted() ? Heartbeat::State::interrupted
                                           : Heartbeat::State::incomplete;
  });
  if (auto status = outbox.finish(); !status.ok()) return status;
  return outbox.heartbeat();
}

}  // namespace quarterturn
