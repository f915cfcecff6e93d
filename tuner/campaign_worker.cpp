#include "tuner/campaign_worker.hpp"

#include <fmt/format.h>

#include <map>
#include <mutex>

#include "tuner/campaign_code.hpp"
#include "tuner/campaign_pass.hpp"
#include "tuner/compile.hpp"
#include "tuner/outbox.hpp"
#include "tuner/problem_tuner.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kMostFailures = 100;

bool has_answer(const Tuned& tuned) {
  return tuned.answer == Tuned::Answer::cached || tuned.answer == Tuned::Answer::tuned ||
         tuned.answer == Tuned::Answer::fallback;
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

Status trouble_of(const std::vector<Tuned>& results) {
  return !results.empty() && is_full(results.back().status.code()) ? results.back().status
                                                                   : Status();
}

std::vector<Tuned> pass(Context& context, const CampaignWork& work,
                        const std::vector<CampaignProblem>& problems, Outbox& outbox,
                        double begun) {
  std::map<std::string, double> estimates;
  std::vector<Item> items;
  for (const auto& p : problems) {
    estimates[p.item.problem.key()] = p.compile_seconds + p.device_seconds;
    items.push_back(p.item);
  }
  const SteadyClock clock;
  Session session(context, work.session);
  return session.run(
      items,
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
  Outbox outbox(work, heartbeat,
                {.copy = DatabaseCopy(context.database(), work.scratch,
                                      work.folder.database(work.shard, heartbeat.worker))});
  std::vector<CampaignProblem> problems;
  for (const auto& p : work.campaign.problems)
    if (p.shard == work.shard) problems.push_back(p);
  const SteadyClock clock;
  const double begun = clock.now();
  const auto& interrupted = work.session.interrupted;
  Status trouble;
  std::size_t answered = 0;
  for (double progress = begun;;) {
    outbox.change([](Heartbeat& h) {
      h.answered = 0;
      h.failures.clear();
    });
    trouble = trouble_of(pass(context, work, problems, outbox, begun));
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
  const auto copy = [&]() -> Status {
    PackedPlans now;
    {
      const std::lock_guard lock(mutex);
      now = packed;
    }
    if (now.size() == kept) return {};
    Status status = pack(store, now, file);
    if (status.ok()) kept = now.size();
    return status;
  };
  Outbox outbox(work, heartbeat, {.copy = copy});
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
