#include "tuner/problem_tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tuner/gpu_observer.hpp"
#include "tuner/instance.hpp"
#include "tuner/neighbours.hpp"
#include "tuner/phase_timer.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kControlTries =
    4;  // plans in order, before a problem counts as not computable here
constexpr std::size_t kPromising = 6;
constexpr double kExploreShare = 0.65;     // of the time; the rest is for the decision
constexpr std::size_t kTimedTogether = 6;  // candidates that are ready, where compilers run ahead

// What the machine lacks, and no fault of the plan: trying the next one would fail alike.
bool is_hopeless(Code code) {
  return code == Code::no_compiler || code == Code::no_device || code == Code::no_driver ||
         code == Code::disk_full || code == Code::out_of_memory || code == Code::io_error ||
         code == Code::read_only || code == Code::interrupted || code == Code::internal;
}

}  // namespace

std::string Phases::text() const {
  return fmt::format(
      "compile wait {:.1f} s, data {:.1f}, admission {:.1f}, timing {:.1f}, search {:.1f}",
      compile_wait, data, admission, timing, search);
}

ProblemTuner::ProblemTuner(Context& context, const SessionOptions& options, const Uuid& campaign,
                           const Item& item, Workshop workshop, double deadline,
                           std::function<void(Progress::Phase, const Tuned&, std::size_t)> tick)
    : context_(context),
      options_(options),
      item_(item),
      pool_(workshop.pool),
      process_(workshop.process),
      known_plans_(std::move(workshop.plans)),
      begun_(clock_.now()),
      deadline_(deadline),
      tick_(std::move(tick)),
      recorder_(context, campaign, item_.problem, options.decision.confidence),
      observer_(observer_for(context.backend().device())),
      overlaps_(context.backend().device().target.vendor != Vendor::cpu) {
  out_.item = item;
}

ProblemTuner::~ProblemTuner() { drop_pending(); }

bool ProblemTuner::out_of_time(double share) const {
  return deadline_ > 0 && clock_.now() >= begun_ + share * (deadline_ - begun_);
}

void ProblemTuner::tick(Progress::Phase phase) {
  tick_(phase, out_, strategy_ ? strategy_->remaining() : 0);
}

void ProblemTuner::give_up(const Plan& plan, TrialKind kind, TrialStatus status,
                           const Status& reason, const Compiled& compiled) {
  recorder_.add_failure(plan, kind, status, reason, compiled);
  history_.push_back({plan, status, 0, compiled.registers, compiled.spills, compiled.shared_bytes});
  ++out_.failures[std::string(trial_status_name(status))];
  if (out_.failed++ == 0)
    out_.first_failure = fmt::format("{} ({}): {}", plan.main_step().variant.text(),
                                     trial_status_name(status), reason.message());
}

std::vector<Plan> searchable_plans(const Context& context, const Problem& problem) {
  constexpr std::size_t kSpaceLimit = 20000;
  return context.enabled_plans(problem, kSpaceLimit);
}

std::vector<Plan> plans_for(const SessionOptions& options, const Context& context,
                            const Problem& problem) {
  return options.plans ? options.plans(problem) : searchable_plans(context, problem);
}

std::unique_ptr<Strategy> strategy_for(const SessionOptions& options, const Space& space) {
  switch (options.search) {
    case SearchKind::exhaustive:
      return exhaustive(space);
    case SearchKind::predicted:
      return in_predicted_order(space, options.order);
    case SearchKind::learned:
      return learned(space, options.order);
  }
  return nullptr;
}

std::vector<CompilePool::Job> submit_all(CompilePool& pool, const Problem& problem,
                                         const Target& target, const Plan& plan,
                                         CompilePool::Urgency urgency) {
  std::vector<CompilePool::Job> out{pool.submit(problem, plan, urgency)};
  // What admission compares its codes with.
  if (quantizes_in_product(problem, plan))
    if (const auto apart = with_result_step(problem, target, plan))
      out.push_back(pool.submit(problem, *apart, urgency));
  const Step& main = plan.main_step();
  const Family* family = find_family(main.variant.family);
  if (!family || main.kind != StepKind::gemm) return out;
  for (const std::uint32_t which : {0u, 1u}) {
    if ((which == 1 ? problem.b_type : problem.a_type) != DType::mxfp4) continue;
    const Layout layout = which == 1 ? family->b_layout(problem, main.variant)
                                     : family->a_layout(problem, main.variant);
    if (const auto steps = preparation_of(problem, target, which, layout); steps.ok())
      for (const auto& step : *steps) out.push_back(pool.submit(step.problem, step.plan, urgency));
  }
  return out;
}

Space ProblemTuner::make_space() {
  constexpr std::size_t kNeighbours = 4;
  Space space{item_.problem, context_.backend().device().target};
  space.units = context_.backend().device().units;
  // What neighbours chose: the same layer for other token ranges, or this one on other machines.
  for (const auto& found : context_.table()->candidates(item_.problem))
    space.seeds.push_back(found.answer->plan);
  // A stale answer only needs to be confirmed against the default: nothing else is searched again.
  const Env& env = *recorder_.env();
  const auto stored =
      context_.database().winner_of(recorder_.key(), env.target, env.performance_class);
  const bool stale = options_.cached == Cached::reused && stored.ok() && stored->has_value() &&
                     (*stored)->env && compare(*(*stored)->env, env) == Validity::stale;
  if (stale) return space;
  space.neighbours =
      neighbours_of(context_.database(), item_.problem, space.target, env, kNeighbours);
  for (auto& seed : seeds_of(space.neighbours)) space.seeds.push_back(std::move(seed));
  space.plans =
      known_plans_.empty() ? plans_for(options_, context_, item_.problem) : std::move(known_plans_);
  return space;
}

// Trials of an earlier session that still hold: what was tried is not tried again, the best are
// timed anew.
void ProblemTuner::resume() {
  if (options_.cached == Cached::tuned_again) return;
  const Env& env = *recorder_.env();
  const auto trials =
      context_.database().trials(recorder_.key(), env.target, env.performance_class);
  if (!trials.ok()) return;
  std::vector<std::pair<double, Plan>> good;
  for (const auto& trial : *trials) {
    if (trial.kind != TrialKind::timing || !trial.env ||
        compare(*trial.env, env) != Validity::valid)
      continue;
    const auto plan = parse_plan(trial.plan);
    if (!plan.ok() || !check_plan(item_.problem, context_.backend().device().target, *plan).ok())
      continue;
    if (trial.status != TrialStatus::ok || !(trial.ratio > 0)) continue;
    const double speed = std::log(trial.ratio);
    history_.push_back(
        {*plan, TrialStatus::ok, speed, trial.registers, trial.spills, trial.shared_bytes});
    good.emplace_back(-speed, *plan);
  }
  std::stable_sort(good.begin(), good.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [speed, plan] : good)
    if (promising_.size() < kPromising &&
        std::find(promising_.begin(), promising_.end(), plan) == promising_.end())
      promising_.push_back(plan);
}

bool ProblemTuner::has_failed(const Plan& plan) const {
  return std::any_of(history_.begin(), history_.end(), [&](const Outcome& outcome) {
    return outcome.plan == plan && quarantine_reason_of(outcome.status).has_value();
  });
}

bool ProblemTuner::is_barred(const Plan& plan) const {
  return recorder_.quarantine_of(plan) &&
         (options_.cached != Cached::tuned_again || has_failed(plan));
}

std::optional<std::size_t> ProblemTuner::admit(const Plan& plan, const Compiled& compiled,
                                               Depth depth) {
  ++out_.tried;
  out_.compiled += compiled.kernels;
  refusal_ = compiled.status;
  if (!compiled.status.ok()) {
    if (!is_hopeless(compiled.status.code()))
      give_up(plan, TrialKind::timing, trial_status_of(compiled.status, Loss::none),
              compiled.status, compiled);
    return std::nullopt;
  }
  tick(Progress::Phase::admitting);
  const PhaseTimer phase(out_.phases.admission, out_.phases.data, &process_);
  const std::size_t index = process_.add(plan);
  candidates_.resize(index + 1);
  candidates_[index] = {plan, compiled, {}, 0};
  const Verdict verdict = process_.admit(index, depth);
  candidates_[index].certificate = verdict.certificate;
  refusal_ = verdict.status;
  if (!verdict.status.ok()) {
    if (verdict.status.code() == Code::interrupted) return std::nullopt;
    give_up(plan, TrialKind::admission, trial_status_of(verdict.status, process_.loss(index)),
            verdict.status, compiled);
    return std::nullopt;
  }
  recorder_.release(plan);
  Trial trial = recorder_.begin(plan, TrialKind::admission, TrialStatus::ok);
  TrialRecorder::describe(trial, compiled, verdict.certificate);
  trial.extra = verdict.certificate.text();
  recorder_.add(trial);
  return index;
}

bool ProblemTuner::admit_whole(std::size_t candidate) {
  Candidate& one = candidates_[candidate];
  if (one.certificate.whole) return true;
  const PhaseTimer phase(out_.phases.admission, out_.phases.data, &process_);
  const Verdict verdict = process_.admit(candidate, Depth::whole);
  refusal_ = verdict.status;
  if (!verdict.status.ok()) {
    if (verdict.status.code() != Code::interrupted)
      give_up(one.plan, TrialKind::admission,
              trial_status_of(verdict.status, process_.loss(candidate)), verdict.status,
              one.compiled);
    return false;
  }
  one.certificate = verdict.certificate;
  Trial trial = recorder_.begin(one.plan, TrialKind::admission, TrialStatus::ok);
  TrialRecorder::describe(trial, one.compiled, verdict.certificate);
  trial.extra = verdict.certificate.text();
  recorder_.add(trial);
  return true;
}

Status ProblemTuner::find_control() {
  Status first;
  for (const auto& plan : context_.enabled_plans(item_.problem, kControlTries)) {
    if (is_barred(plan)) {
      if (first.ok())
        first = Status(Code::quarantined,
                       fmt::format("{} is in quarantine ({}); qturn tune --again tries it again",
                                   plan.text(), recorder_.quarantine_of(plan)->detail));
      continue;
    }
    tick(Progress::Phase::compiling);
    const auto jobs = submit_all(pool_, item_.problem, context_.backend().device().target, plan,
                                 CompilePool::Urgency::now);
    // What is tried next may be compiled meanwhile.
    if (overlaps_) fill_queue();
    {
      const PhaseTimer phase(out_.phases.compile_wait, out_.phases.data, nullptr);
      pool_.wait(jobs, jobs.size(), options_.interrupted);
    }
    const Compiled compiled = pool_.result(jobs.front());
    process_.change(item_.problem);
    candidates_.clear();
    if (admit(plan, compiled, Depth::whole)) {
      timer_ = std::make_unique<PairedTimer>(process_, clock_, *observer_, options_.measure);
      return {};
    }
    if (interrupted()) return Status(Code::interrupted, "interrupted");
    if (first.ok())
      first = Status(refusal_.code(),
                     fmt::format("{} was not admitted: {}", plan.text(), refusal_.message()));
    if (is_hopeless(refusal_.code())) return refusal_;
  }
  return first.ok() ? context_.supports(item_.problem) : first;
}

void ProblemTuner::record_screened(std::size_t candidate) {
  const Series& series = timer_->series(candidate);
  const Candidate& one = candidates_[candidate];
  if (!series.failure.ok() && series.failure.code() != Code::rejected) {
    if (series.failure.code() != Code::interrupted)
      give_up(one.plan, TrialKind::timing,
              trial_status_of(series.failure, process_.loss(candidate)), series.failure,
              one.compiled);
    return;
  }
  if (series.log_speedups.empty() && series.failure.ok()) return;
  Trial trial = recorder_.begin(one.plan, TrialKind::timing,
                                series.failure.ok() ? TrialStatus::ok : TrialStatus::pruned);
  TrialRecorder::describe(trial, one.compiled, one.certificate);
  if (!series.log_speedups.empty())
    recorder_.fill_times(trial, series, *timer_, process_.rotation());
  trial.detail = series.failure.message();
  recorder_.add(trial);
  const double speed = series.log_speedups.empty() ? -1 : median(series.log_speedups);
  history_.push_back({one.plan, trial.status, speed, one.compiled.registers, one.compiled.spills,
                      one.compiled.shared_bytes});
  if (trial.status == TrialStatus::ok) out_.speedup = std::max(out_.speedup, std::exp(speed));
}

void ProblemTuner::drop_pending() {
  for (const auto& one : pending_)
    for (const auto& job : one.jobs) pool_.drop(job);
  pending_.clear();
}

// What was judged beside a control that proved wrong.
void ProblemTuner::try_again() {
  for (std::size_t i = 1; i < candidates_.size(); ++i)
    if (!has_failed(candidates_[i].plan)) promising_.push_back(candidates_[i].plan);
  for (const auto& one : pending_) promising_.push_back(one.plan);
  drop_pending();
}

// Two kernels a compiler: one in work, one that waits for it. Where compiling disturbs what is
// timed, as many as are compiled in one go.
void ProblemTuner::fill_queue() {
  const std::size_t most = overlaps_ ? 2 * pool_.threads() : options_.batch;
  if (!overlaps_ && !pending_.empty()) return;
  const PhaseTimer phase(out_.phases.search, out_.phases.data, nullptr);
  std::vector<Plan> wanted;
  wanted.swap(promising_);
  while (pending_.size() + wanted.size() < most) {
    auto more = strategy_->next(history_, most - pending_.size() - wanted.size());
    if (more.empty()) break;
    for (auto& plan : more) wanted.push_back(std::move(plan));
  }
  for (auto& plan : wanted) {
    if (!candidates_.empty() && plan == candidates_[0].plan) continue;
    if (is_barred(plan)) {
      history_.push_back({plan, TrialStatus::rejected, 0, 0, 0, 0});
      continue;
    }
    auto jobs = submit_all(pool_, item_.problem, context_.backend().device().target, plan,
                           CompilePool::Urgency::now);
    pending_.push_back({std::move(plan), std::move(jobs)});
  }
}

std::vector<ProblemTuner::Pending> ProblemTuner::take_ready() {
  const auto is_ready = [this](const Pending& one) {
    return std::all_of(one.jobs.begin(), one.jobs.end(),
                       [this](const auto& job) { return pool_.is_done(job); });
  };
  const std::size_t least = overlaps_ ? 1 : pending_.size();
  {
    const PhaseTimer phase(out_.phases.compile_wait, out_.phases.data, nullptr);
    tick(Progress::Phase::compiling);
    while (static_cast<std::size_t>(std::count_if(pending_.begin(), pending_.end(), is_ready)) <
           least) {
      const auto waiting = std::find_if_not(pending_.begin(), pending_.end(), is_ready);
      std::vector<CompilePool::Job> jobs;
      for (auto at = waiting; at != pending_.end(); ++at)
        for (const auto& job : at->jobs)
          if (!pool_.is_done(job)) jobs.push_back(job);
      bool stopped = false;
      pool_.wait(jobs, 1, [&] { return stopped = interrupted() || out_of_time(kExploreShare); });
      if (stopped) break;
    }
  }
  std::vector<Pending> ready, rest;
  for (auto& one : pending_) {
    const bool take = is_ready(one) && (!overlaps_ || ready.size() < kTimedTogether);
    (take ? ready : rest).push_back(std::move(one));
  }
  pending_ = std::move(rest);
  return ready;
}

Status ProblemTuner::try_ready(const std::vector<Pending>& ready) {
  std::vector<std::size_t> admitted;
  for (const auto& one : ready) {
    if (interrupted()) return {};
    if (!candidates_.empty() && one.plan == candidates_[0].plan) continue;
    const Compiled compiled = pool_.result(one.jobs.front());
    if (!compiled.status.ok() && is_hopeless(compiled.status.code())) {
      if (compiled.status.code() == Code::interrupted) continue;
      return compiled.status;
    }
    if (const auto index = admit(one.plan, compiled, Depth::sampled)) admitted.push_back(*index);
    if (!process_.disproved().empty()) return Status(Code::rejected, process_.disproved());
  }
  tick(Progress::Phase::timing);
  const PhaseTimer phase(out_.phases.timing, out_.phases.data, &process_);
  const auto stop = [this] { return interrupted() || out_of_time(kExploreShare); };
  if (auto status = screen(*timer_, admitted, options_.race, stop); !status.ok()) return status;
  for (const std::size_t index : admitted) record_screened(index);
  return recorder_.storing();
}

Status ProblemTuner::explore() {
  while (!interrupted() && !out_of_time(kExploreShare)) {
    fill_queue();
    if (pending_.empty()) break;
    if (auto status = try_ready(take_ready()); !status.ok()) return status;
    tick(Progress::Phase::timing);
    // A strategy that has seen enough says so before all that it asked for was tried.
    if (strategy_->satisfied(history_)) break;
  }
  drop_pending();
  return {};
}

Tuned ProblemTuner::tune() {
  const auto failed = [this](const Status& status) {
    out_.status = status;
    out_.answer =
        status.code() == Code::interrupted ? Tuned::Answer::unfinished : Tuned::Answer::failed;
    out_.reason = status.message();
    out_.seconds = clock_.now() - begun_;
    return out_;
  };
  tick(Progress::Phase::preparing);
  if (auto status = context_.supports(item_.problem); !status.ok()) return failed(status);
  if (auto status = Instance::supports(item_.problem); !status.ok()) return failed(status);
  if (has_no_rows(item_.problem)) {
    out_.answer = Tuned::Answer::fallback;
    out_.plan = context_.enabled_plans(item_.problem, 1).front().text();
    out_.reason = "no rows: a call does nothing";
    return out_;
  }
  {
    const PhaseTimer phase(out_.phases.search, out_.phases.data, nullptr);
    strategy_ = strategy_for(options_, make_space());
    resume();
  }
  // A plan that disproves the control starts the problem over without it.
  for (std::size_t attempt = 0;; ++attempt) {
    Status status = find_control();
    if (status.ok() && !candidates_.empty()) status = explore();
    if (status.ok() && !interrupted()) status = finish();
    if (status.code() == Code::rejected && !process_.disproved().empty() &&
        attempt < kControlTries) {
      const auto wrong = parse_plan(process_.disproved());
      if (wrong.ok())
        give_up(*wrong, TrialKind::admission, TrialStatus::wrong,
                Status(Code::rejected, "another plan and the reference agree against it"), {});
      try_again();
      continue;
    }
    if (interrupted()) status = Status(Code::interrupted, "interrupted");
    if (!status.ok()) return failed(status);
    break;
  }
  out_.seconds = clock_.now() - begun_;
  tick(Progress::Phase::decided);
  return out_;
}

}  // namespace quarterturn
