#include "tuner/recheck.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "runtime/estimate.hpp"
#include "tuner/gpu_observer.hpp"
#include "tuner/problem_tuner.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

constexpr double kNoiseOfThree = 0.01;  // three trials tell no less apart

// What the machine lacks; the next answer would fail alike, and nothing is said against this one.
bool is_the_machines_fault(Code code) {
  return !quarantine_reason_of(trial_status_of(Status(code, ""), Loss::none)).has_value();
}

}  // namespace

std::string_view recheck_answer_name(Rechecked::Answer answer) {
  constexpr std::string_view names[] = {"kept", "queued", "default", "waiting", "failed"};
  return names[static_cast<std::size_t>(answer)];
}

Result<std::vector<StaleAnswer>> stale_answers(Context& context) {
  const Env& env = context.env();
  const auto winners = context.database().winners(env.target);
  if (!winners.ok()) return winners.status();
  const auto served = context.database().servings(env.target, env.performance_class);
  if (!served.ok()) return served.status();
  std::map<std::string, Miss> by_problem;
  for (const auto& miss : *served) by_problem[miss.problem] = miss;
  std::vector<StaleAnswer> out;
  for (const auto& winner : *winners) {
    if (!winner.env || compare(*winner.env, env) != Validity::stale) continue;
    auto problem = parse_problem(winner.problem);
    // What this version cannot read, another one wrote.
    if (!problem.ok()) continue;
    out.push_back({std::move(*problem), winner, by_problem[winner.problem].calls});
  }
  std::sort(out.begin(), out.end(), [&](const StaleAnswer& a, const StaleAnswer& b) {
    const Miss &x = by_problem[a.winner.problem], &y = by_problem[b.winner.problem];
    return std::tuple(-x.ns, -x.calls, a.winner.problem) <
           std::tuple(-y.ns, -y.calls, b.winner.problem);
  });
  return out;
}

Rechecked::Answer judge_recheck(const std::vector<double>& log_speedups, double low, double noise) {
  if (log_speedups.empty()) return Rechecked::Answer::fallback;
  const double found = median(log_speedups);
  const double zone = std::log1p(std::max(noise, kNoiseOfThree));
  if (found >= std::log(std::max(low, 1.0)) - zone && found > -zone) return Rechecked::Answer::kept;
  return found > zone ? Rechecked::Answer::queued : Rechecked::Answer::fallback;
}

Rechecker::Rechecker(Context& context, SessionOptions options)
    : context_(context), options_(std::move(options)), campaign_(random_uuid()) {
  if (options_.jobs == 0) options_.jobs = usable_cores();
  if (options_.process.settings.empty()) options_.process.settings = context.settings_for_child();
  options_.process.interrupted = options_.interrupted;
  options_.measure = settings_for(context.backend().device(), options_.measure);
}

std::vector<Rechecked> Rechecker::run(const std::vector<StaleAnswer>& stale,
                                      const std::function<void(const Rechecked&)>& done) {
  const SteadyClock clock;
  const double begun = clock.now();
  const auto interrupted = [this] { return options_.interrupted && options_.interrupted(); };
  std::vector<Rechecked> out;
  CompilePool pool(context_.backend(), options_.jobs);
  std::unique_ptr<TrialProcess> process;
  bool hopeless = false;
  for (const auto& one : stale) {
    Rechecked result;
    result.stale = one;
    result.plan = one.winner.plan;
    const bool late = options_.time_limit > 0 && clock.now() - begun >= options_.time_limit;
    if (late || hopeless || interrupted()) {
      result.answer = Rechecked::Answer::waiting;
      result.reason = late ? "the time limit ran out" : "not reached";
    } else {
      const auto lock = device_lock(context_, interrupted);
      if (!process) process = std::make_unique<TrialProcess>(one.problem, options_.process);
      const double start = clock.now();
      result = recheck(one, pool, *process);
      result.seconds = clock.now() - start;
      const Code code = result.status.code();
      hopeless = code == Code::no_compiler || code == Code::disk_full || code == Code::read_only;
    }
    if (done) done(result);
    out.push_back(std::move(result));
  }
  return out;
}

Rechecked Rechecker::recheck(const StaleAnswer& stale, CompilePool& pool, TrialProcess& process) {
  Rechecked out;
  out.stale = stale;
  out.plan = stale.winner.plan;
  const auto failed = [&out](const Status& status) {
    out.answer = Rechecked::Answer::failed;
    out.status = status;
    out.reason = status.message();
    return out;
  };
  const auto standards = context_.enabled_plans(stale.problem, 1);
  if (standards.empty()) return failed(context_.supports(stale.problem));
  const Plan& standard = standards.front();
  const Target& target = context_.backend().device().target;
  // Gives the default as the answer, and says why.
  const auto fall_back = [&](const std::string& why, const Certificate& certificate) {
    out.answer = Rechecked::Answer::fallback;
    out.plan = standard.text();
    out.reason = why;
    if (auto status = store(out, standard, certificate, true); !status.ok()) return failed(status);
    return out;
  };
  const auto stored = parse_plan(stale.winner.plan);
  auto fits = stored.ok() ? check_plan(stale.problem, target, *stored) : stored.status();
  const bool is_standard = stored.ok() && *stored == standard;

  TrialRecorder recorder(context_, campaign_, stale.problem, 0.95);
  process.change(stale.problem);
  // Compiled and admitted, or why not; `fault` tells whose.
  struct Tried {
    Status status;
    Compiled compiled;
    Certificate certificate;
    std::size_t index = 0;
  };
  const auto attempt = [&](const Plan& plan) {
    Tried tried;
    const auto jobs = submit_all(pool, stale.problem, target, plan, CompilePool::Urgency::now);
    pool.wait(jobs, jobs.size(), options_.interrupted);
    tried.compiled = pool.result(jobs.front());
    tried.status = tried.compiled.status;
    if (!tried.status.ok()) {
      if (!is_the_machines_fault(tried.status.code()))
        recorder.add_failure(plan, TrialKind::recheck, trial_status_of(tried.status, Loss::none),
                             tried.status, tried.compiled);
      return tried;
    }
    tried.index = process.add(plan);
    const Verdict verdict = process.admit(tried.index, Depth::whole);
    tried.status = verdict.status;
    tried.certificate = verdict.certificate;
    if (!verdict.status.ok()) {
      if (verdict.status.code() != Code::interrupted)
        recorder.add_failure(plan, TrialKind::admission,
                             trial_status_of(verdict.status, process.loss(tried.index)),
                             verdict.status, tried.compiled);
      return tried;
    }
    Trial trial = recorder.begin(plan, TrialKind::admission, TrialStatus::ok);
    TrialRecorder::describe(trial, tried.compiled, verdict.certificate);
    trial.extra = verdict.certificate.text();
    recorder.add(trial);
    return tried;
  };

  const Tried control = attempt(standard);
  if (!control.status.ok()) return failed(control.status);
  if (!fits.ok())
    return fall_back(fmt::format("the stored plan is none here: {}", fits.message()),
                     control.certificate);
  Tried answer = control;
  if (!is_standard) {
    answer = attempt(*stored);
    const Code code = answer.status.code();
    if (!answer.status.ok() && (code == Code::interrupted || is_the_machines_fault(code)) &&
        process.loss(answer.index) == Loss::none)
      return failed(answer.status);
    if (!answer.status.ok()) return fall_back(answer.status.message(), control.certificate);
    const auto observer = observer_for(context_.backend().device());
    const SteadyClock clock;
    PairedTimer timer(process, clock, *observer, options_.measure);
    for (std::int64_t i = 0; i < kTrials; ++i) {
      if (options_.interrupted && options_.interrupted())
        return failed(Status(Code::interrupted, "interrupted"));
      if (auto status = timer.round({answer.index}); !status.ok()) return failed(status);
    }
    const Series& series = timer.series(answer.index);
    if (!series.failure.ok() && series.failure.code() != Code::rejected)
      return fall_back(series.failure.message(), control.certificate);
    if (!series.log_speedups.empty()) {
      const auto [least, most] =
          std::minmax_element(series.log_speedups.begin(), series.log_speedups.end());
      out.speedup = std::exp(median(series.log_speedups));
      out.low = std::exp(*least);
      out.high = std::exp(*most);
      Trial trial = recorder.begin(*stored, TrialKind::recheck, TrialStatus::ok);
      TrialRecorder::describe(trial, answer.compiled, answer.certificate);
      recorder.fill_times(trial, series, timer, process.rotation());
      trial.noise = stale.winner.noise;
      recorder.add(trial);
    }
    out.answer = judge_recheck(series.log_speedups, stale.winner.speedup_low, stale.winner.noise);
  } else {
    out.answer = Rechecked::Answer::kept;
  }
  if (auto status = recorder.storing(); !status.ok()) return failed(status);
  const std::string before = stale.winner.choice == Choice::tuned
                                 ? fmt::format("{:+.1f} % before", 100 * (stale.winner.speedup - 1))
                                 : "was the default";
  if (is_standard)
    out.reason = "the default, as before: it computes what it should";
  else
    out.reason = fmt::format("{:+.1f} % over the default, {}", 100 * (out.speedup - 1), before);
  if (out.answer == Rechecked::Answer::fallback) return fall_back(out.reason, control.certificate);
  if (auto status =
          store(out, standard, answer.certificate, out.answer == Rechecked::Answer::queued);
      !status.ok())
    return failed(status);
  return out;
}

// `search`: the problem is to be tuned again; until then the answer serves.
Status Rechecker::store(const Rechecked& result, const Plan& standard,
                        const Certificate& certificate, bool search) {
  const Env& env = context_.env();
  Database& database = context_.database();
  Winner winner = result.stale.winner;
  const bool was_unfinished = winner.certificate.find("search=unfinished") != std::string::npos;
  if (result.answer == Rechecked::Answer::fallback) {
    winner.plan = standard.text();
    winner.choice = Choice::fallback;
    winner.speedup = winner.speedup_low = winner.speedup_high = 1;
    winner.median_ns = winner.regret = 0;
    winner.ties.clear();
  } else if (result.answer == Rechecked::Answer::queued) {
    winner.choice = Choice::tuned;
    winner.speedup = result.speedup;
    winner.speedup_low = result.low;
    winner.speedup_high = result.high;
  }
  winner.env = std::make_shared<Env>(env);
  winner.certificate = certificate.text() + fmt::format(" rechecked={}", kTrials) +
                       (search || was_unfinished ? " search=unfinished" : " search=finished");
  const auto trials = database.trials(winner.problem, env.target, env.performance_class);
  if (!trials.ok()) return trials.status();
  winner.evidence = std::count_if(trials->begin(), trials->end(),
                                  [](const Trial& trial) { return is_evidence(trial.kind); });
  if (auto status = database.set_winner(winner); !status.ok()) return status;
  if (!search) return database.clear_misses(winner.problem, env.target, env.performance_class);
  // On the list of what is to be tuned, also where nobody was served by it.
  const auto nanoseconds = static_cast<std::int64_t>(
      1e9 * estimated_seconds(result.stale.problem, context_.backend().device()));
  return database.record_miss({winner.problem, env.target, env.performance_class, 1, nanoseconds});
}

}  // namespace quarterturn
