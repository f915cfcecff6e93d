#include "tuner/problem_tuner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tuner/gpu_observer.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kControlTries =
    4;  // plans in order, before a problem counts as not computable here
constexpr std::size_t kSpaceLimit = 20000;
constexpr std::size_t kPromising = 6;
constexpr double kExploreShare = 0.65;  // of the time; the rest is for the decision

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TrialStatus trial_status_of(const Status& status, Loss loss) {
  if (loss == Loss::crashed) return TrialStatus::crashed;
  if (loss == Loss::hung) return TrialStatus::hung;
  switch (status.code()) {
    case Code::compile_timeout:
      return TrialStatus::compile_timeout;
    case Code::compile_failed:
      return TrialStatus::compile_failed;
    case Code::rejected:
      return TrialStatus::wrong;
    default:
      return TrialStatus::launch_failed;
  }
}

std::optional<QuarantineReason> quarantine_reason_of(TrialStatus status) {
  switch (status) {
    case TrialStatus::compile_failed:
      return QuarantineReason::compile_failed;
    case TrialStatus::compile_timeout:
      return QuarantineReason::compile_timeout;
    case TrialStatus::crashed:
      return QuarantineReason::crashed;
    case TrialStatus::hung:
      return QuarantineReason::hung;
    case TrialStatus::wrong:
      return QuarantineReason::wrong;
    default:
      return std::nullopt;
  }
}

// What the machine lacks, and no fault of the plan: trying the next one would fail alike.
bool is_hopeless(Code code) {
  return code == Code::no_compiler || code == Code::no_device || code == Code::no_driver ||
         code == Code::disk_full || code == Code::out_of_memory || code == Code::io_error ||
         code == Code::read_only || code == Code::interrupted || code == Code::internal;
}

}  // namespace

ProblemTuner::ProblemTuner(Context& context, const SessionOptions& options, const Uuid& campaign,
                           const Item& item, double deadline,
                           std::function<void(Progress::Phase, const Tuned&, std::size_t)> tick)
    : context_(context),
      options_(options),
      campaign_(campaign),
      item_(item),
      begun_(clock_.now()),
      deadline_(deadline),
      tick_(std::move(tick)),
      env_(std::make_shared<Env>(context.env())),
      key_(item.problem.key()),
      observer_(observer_for(context.backend().device())) {
  out_.item = item;
}
ProblemTuner::~ProblemTuner() = default;

bool ProblemTuner::out_of_time(double share) const {
  return deadline_ > 0 && clock_.now() >= begun_ + share * (deadline_ - begun_);
}

void ProblemTuner::tick(Progress::Phase phase) {
  tick_(phase, out_, strategy_ ? strategy_->remaining() : 0);
}

void ProblemTuner::record(const Trial& trial) {
  auto status = context_.database().add_trial(trial);
  if (!status.ok() && storing_.ok()) storing_ = status;
}

Trial ProblemTuner::new_trial(const Plan& plan, TrialKind kind, TrialStatus status) const {
  Trial trial;
  trial.problem = key_;
  trial.plan = plan.text();
  trial.env = env_;
  trial.campaign = campaign_;
  trial.kind = kind;
  trial.status = status;
  trial.sizes = text(representative_sizes(item_.problem).front());
  trial.profile = profile_name(profile_of(item_.problem.role));
  trial.repeatable = -1;
  trial.started = nanoseconds_now();
  return trial;
}

void ProblemTuner::describe(Trial& trial, const Candidate& candidate) const {
  trial.compile_ms = candidate.compiled.milliseconds;
  trial.registers = candidate.compiled.registers;
  trial.spills = candidate.compiled.spills;
  trial.shared_bytes = candidate.compiled.shared_bytes;
  trial.max_error = candidate.certificate.max_error;
  trial.bias_z = candidate.certificate.bias_z;
  trial.repeatable = candidate.certificate.repeatable;
}

void ProblemTuner::fill_times(Trial& trial, const Series& series) const {
  const auto& seconds = series.seconds.front();
  for (const double s : seconds) trial.samples.push_back(1e9 * s);
  trial.rounds = static_cast<std::int64_t>(seconds.size());
  trial.median_ns = 1e9 * median(seconds);
  const Interval times = bootstrap_median(seconds, options_.decision.confidence, 1);
  trial.low_ns = 1e9 * times.low;
  trial.high_ns = 1e9 * times.high;
  const Interval ratios = bootstrap_median(series.log_speedups, options_.decision.confidence, 1);
  trial.ratio = std::exp(median(series.log_speedups));
  trial.ratio_low = std::exp(ratios.low);
  trial.ratio_high = std::exp(ratios.high);
  trial.throttled = timer_->discarded();
  std::vector<double> clocks;
  double stolen = 0, others = 0;
  for (const auto& seen : timer_->conditions()) {
    clocks.push_back(seen.clock_mhz);
    stolen = std::max(stolen, seen.stolen);
    others = std::max(others, seen.others);
    trial.temperature_c =
        std::max(trial.temperature_c, static_cast<std::int64_t>(seen.temperature_c));
  }
  trial.clock_mhz = std::lround(median(clocks));
  std::string rotation = process_->rotation();
  std::replace(rotation.begin(), rotation.end(), ' ', '_');
  trial.extra = fmt::format("sizes={} stolen={:.3f} others={:.2f} rotation={}",
                            series.seconds.size(), stolen, others, rotation);
}

void ProblemTuner::give_up(const Plan& plan, TrialKind kind, TrialStatus status,
                           const Status& reason, const Compiled& compiled) {
  Trial trial = new_trial(plan, kind, status);
  trial.compile_ms = compiled.milliseconds;
  trial.detail = reason.message();
  record(trial);
  history_.push_back({plan, status, 0, compiled.registers, compiled.spills, compiled.shared_bytes});
  ++out_.failed;
  if (const auto why = quarantine_reason_of(status)) {
    Quarantine entry;
    entry.subject = plan.text();
    entry.problem = key_;
    entry.target = env_->target;
    entry.performance_class = env_->performance_class;
    entry.compiler = env_->compiler;
    entry.reason = *why;
    entry.detail = reason.message();
    if (auto stored = context_.database().add_quarantine(entry); !stored.ok() && storing_.ok())
      storing_ = stored;
  }
}

// What neighbours chose: the same layer for other token ranges, or this one on other machines.
std::vector<Plan> ProblemTuner::space_seeds() const {
  std::vector<Plan> out;
  for (const auto& found : context_.table()->candidates(item_.problem))
    out.push_back(found.answer->plan);
  return out;
}

// Trials of an earlier session that still hold: what was tried is not tried again, the best are
// timed anew.
void ProblemTuner::resume() {
  if (options_.cached == Cached::tuned_again) return;
  const auto trials = context_.database().trials(key_, env_->target, env_->performance_class);
  if (!trials.ok()) return;
  std::vector<std::pair<double, Plan>> good;
  for (const auto& trial : *trials) {
    if (trial.kind != TrialKind::timing || !trial.env ||
        compare(*trial.env, *env_) != Validity::valid)
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

std::optional<std::size_t> ProblemTuner::admit(const Plan& plan, const Compiled& compiled) {
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
  const std::size_t index = process_->add(plan);
  candidates_.resize(index + 1);
  candidates_[index] = {plan, compiled, {}};
  const Verdict verdict = process_->admit(index);
  candidates_[index].certificate = verdict.certificate;
  refusal_ = verdict.status;
  if (!verdict.status.ok()) {
    if (verdict.status.code() == Code::interrupted) return std::nullopt;
    give_up(plan, TrialKind::admission, trial_status_of(verdict.status, process_->loss(index)),
            verdict.status, compiled);
    return std::nullopt;
  }
  if (const auto held = quarantine_of(plan)) {
    auto released = context_.database().remove_quarantine(*held);
    if (!released.ok() && storing_.ok()) storing_ = released;
  }
  Trial trial = new_trial(plan, TrialKind::admission, TrialStatus::ok);
  describe(trial, candidates_[index]);
  trial.extra = verdict.certificate.text();
  record(trial);
  return index;
}

std::optional<Quarantine> ProblemTuner::quarantine_of(const Plan& plan) {
  auto held = context_.database().quarantine_of(plan, key_, *env_);
  return held.ok() ? std::move(*held) : std::nullopt;
}

bool ProblemTuner::has_failed(const Plan& plan) const {
  return std::any_of(history_.begin(), history_.end(), [&](const Outcome& outcome) {
    return outcome.plan == plan && quarantine_reason_of(outcome.status).has_value();
  });
}

Status ProblemTuner::find_control() {
  const bool again = options_.cached == Cached::tuned_again;
  Status first;
  for (const auto& plan : context_.enabled_plans(item_.problem, kControlTries)) {
    const auto held = quarantine_of(plan);
    if (held && (!again || has_failed(plan))) {
      if (first.ok())
        first = Status(Code::quarantined,
                       fmt::format("{} is in quarantine ({}); qturn tune --again tries it again",
                                   plan.text(), held->detail));
      continue;
    }
    tick(Progress::Phase::compiling);
    const auto compiled =
        compile_plans(context_.backend(), item_.problem, {plan}, 1, options_.interrupted);
    process_ = std::make_unique<TrialProcess>(item_.problem, options_.process);
    candidates_.clear();
    if (const auto index = admit(plan, compiled[0])) {
      timer_ = std::make_unique<PairedTimer>(*process_, clock_, *observer_, options_.measure);
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
              trial_status_of(series.failure, process_->loss(candidate)), series.failure,
              one.compiled);
    return;
  }
  if (series.log_speedups.empty() && series.failure.ok()) return;
  Trial trial = new_trial(one.plan, TrialKind::timing,
                          series.failure.ok() ? TrialStatus::ok : TrialStatus::pruned);
  describe(trial, one);
  if (!series.log_speedups.empty()) fill_times(trial, series);
  trial.detail = series.failure.message();
  record(trial);
  const double speed = series.log_speedups.empty() ? -1 : median(series.log_speedups);
  history_.push_back({one.plan, trial.status, speed, one.compiled.registers, one.compiled.spills,
                      one.compiled.shared_bytes});
  if (trial.status == TrialStatus::ok) out_.speedup = std::max(out_.speedup, std::exp(speed));
}

Status ProblemTuner::try_batch(const std::vector<Plan>& plans) {
  const bool again = options_.cached == Cached::tuned_again;
  std::vector<Plan> wanted;
  for (const auto& plan : plans) {
    if (plan == candidates_[0].plan) continue;
    if (quarantine_of(plan) && (!again || has_failed(plan)))
      history_.push_back({plan, TrialStatus::rejected, 0, 0, 0, 0});
    else
      wanted.push_back(plan);
  }
  tick(Progress::Phase::compiling);
  const auto compiled =
      compile_plans(context_.backend(), item_.problem, wanted, options_.jobs,
                    [this] { return interrupted() || out_of_time(kExploreShare); });
  std::vector<std::size_t> admitted;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (interrupted()) return {};
    if (!compiled[i].status.ok() && is_hopeless(compiled[i].status.code())) {
      if (compiled[i].status.code() == Code::interrupted) continue;
      return compiled[i].status;
    }
    if (const auto index = admit(wanted[i], compiled[i])) admitted.push_back(*index);
    if (!process_->disproved().empty()) return Status(Code::rejected, process_->disproved());
  }
  tick(Progress::Phase::timing);
  const auto stop = [this] { return interrupted() || out_of_time(kExploreShare); };
  if (auto status = screen(*timer_, admitted, options_.race, stop); !status.ok()) return status;
  for (const std::size_t index : admitted) record_screened(index);
  return storing_;
}

Status ProblemTuner::explore() {
  if (!promising_.empty())
    if (auto status = try_batch(promising_); !status.ok()) return status;
  while (!interrupted() && !out_of_time(kExploreShare)) {
    const auto batch = strategy_->next(history_, options_.batch);
    if (batch.empty()) break;
    if (auto status = try_batch(batch); !status.ok()) return status;
    tick(Progress::Phase::timing);
  }
  return {};
}

Status ProblemTuner::store_answer(const Decision& decision,
                                  const std::vector<std::size_t>& finalists, bool unfinished) {
  const std::size_t answer = decision.winner ? finalists[*decision.winner] : 0;
  const Candidate& one = candidates_[answer];
  Winner winner;
  winner.problem = key_;
  winner.plan = one.plan.text();
  winner.env = env_;
  winner.choice = decision.winner ? Choice::tuned : Choice::fallback;
  if (decision.winner) {
    winner.speedup = decision.speedup;
    winner.speedup_low = decision.low;
    winner.speedup_high = decision.high;
  }
  winner.noise = decision.noise;
  winner.regret = decision.regret;
  const auto& seconds = timer_->series(answer).seconds;
  if (!seconds.empty()) winner.median_ns = 1e9 * median(seconds.front());
  for (const std::size_t tie : decision.ties) {
    if (!winner.ties.empty()) winner.ties += '\n';
    winner.ties += candidates_[finalists[tie]].plan.text();
  }
  winner.certificate =
      one.certificate.text() + (unfinished ? " search=unfinished" : " search=finished");
  winner.decided = nanoseconds_now();
  const auto trials = context_.database().trials(key_, env_->target, env_->performance_class);
  if (trials.ok())
    winner.evidence = std::count_if(trials->begin(), trials->end(), [](const Trial& trial) {
      return trial.kind == TrialKind::timing;
    });
  out_.plan = winner.plan;
  out_.median_seconds = 1e-9 * winner.median_ns;
  out_.speedup = winner.speedup;
  out_.low = winner.speedup_low;
  out_.high = winner.speedup_high;
  out_.noise = winner.noise;
  out_.reason = decision.reason;
  out_.answer = unfinished        ? Tuned::Answer::unfinished
                : decision.winner ? Tuned::Answer::tuned
                                  : Tuned::Answer::fallback;
  return context_.database().set_winner(winner);
}

Status ProblemTuner::finish() {
  tick(Progress::Phase::confirming);
  std::vector<std::size_t> all;
  for (std::size_t i = 1; i < candidates_.size(); ++i)
    if (!timer_->series(i).log_speedups.empty()) all.push_back(i);
  const auto stop = [this] {
    tick(Progress::Phase::confirming);
    return interrupted() || out_of_time(1);
  };
  auto finalists = halve(*timer_, all, options_.race, stop);
  if (!finalists.ok()) return finalists.status();
  const auto contenders = [&] {
    std::vector<Contender> out;
    for (const std::size_t i : *finalists)
      out.push_back({candidates_[i].plan.text(), timer_->series(i).log_speedups,
                     candidates_[i].compiled.spills, candidates_[i].compiled.registers,
                     candidates_[i].compiled.shared_bytes});
    return out;
  };
  const auto judge = [&] {
    return decide(contenders(), timer_->self().log_speedups, options_.decision);
  };
  if (auto status =
          confirm(*timer_, *finalists, options_.race, stop, [&] { return judge().settled; });
      !status.ok())
    return status;
  std::erase_if(*finalists, [this](std::size_t i) { return !timer_->alive(i); });
  if (interrupted()) return Status(Code::interrupted, "interrupted");
  const Decision decision = judge();
  const auto kept = static_cast<std::int64_t>(timer_->self().log_speedups.size());
  const bool unfinished = out_of_time(1) && !decision.winner && kept < options_.race.final_rounds;
  if (kept > 0) {
    Trial control = new_trial(candidates_[0].plan, TrialKind::control, TrialStatus::ok);
    describe(control, candidates_[0]);
    fill_times(control, timer_->self());
    control.noise = decision.noise;
    record(control);
  }
  for (const std::size_t i : *finalists) {
    if (timer_->series(i).log_speedups.empty()) continue;
    Trial trial = new_trial(candidates_[i].plan, TrialKind::timing, TrialStatus::ok);
    describe(trial, candidates_[i]);
    fill_times(trial, timer_->series(i));
    trial.noise = decision.noise;
    trial.extra += " confirmed=1";
    record(trial);
  }
  if (auto status = store_answer(decision, *finalists, unfinished); !status.ok()) return status;
  return storing_;
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
  if (has_no_rows(item_.problem)) {
    out_.answer = Tuned::Answer::fallback;
    out_.plan = context_.enabled_plans(item_.problem, 1).front().text();
    out_.reason = "no rows: a call does nothing";
    return out_;
  }
  Space space{item_.problem, context_.backend().device().target, {}, space_seeds()};
  // A stale answer only needs to be confirmed against the default: nothing else is searched again.
  const auto stored = context_.database().winner_of(key_, env_->target, env_->performance_class);
  const bool stale = options_.cached == Cached::reused && stored.ok() && stored->has_value() &&
                     (*stored)->env && compare(*(*stored)->env, *env_) == Validity::stale;
  if (!stale) space.plans = context_.enabled_plans(item_.problem, kSpaceLimit);
  strategy_ = options_.search == SearchKind::exhaustive ? exhaustive(space)
                                                        : in_predicted_order(space, options_.order);
  resume();
  // A plan that disproves the control starts the problem over without it.
  for (std::size_t attempt = 0;; ++attempt) {
    Status status = find_control();
    if (status.ok() && !candidates_.empty()) status = explore();
    if (status.code() == Code::rejected && !process_->disproved().empty() &&
        attempt < kControlTries) {
      const auto wrong = parse_plan(process_->disproved());
      if (wrong.ok())
        give_up(*wrong, TrialKind::admission, TrialStatus::wrong,
                Status(Code::rejected, "another plan and the reference agree against it"), {});
      continue;
    }
    if (interrupted()) status = Status(Code::interrupted, "interrupted");
    if (!status.ok()) return failed(status);
    break;
  }
  if (auto status = finish(); !status.ok()) return failed(status);
  out_.seconds = clock_.now() - begun_;
  tick(Progress::Phase::decided);
  return out_;
}

}  // namespace quarterturn
