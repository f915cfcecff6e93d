#include "tuner/trial_recorder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

std::int64_t nanoseconds_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

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

TrialRecorder::TrialRecorder(Context& context, const Uuid& campaign, const Problem& problem,
                             double confidence)
    : context_(context),
      campaign_(campaign),
      problem_(problem),
      confidence_(confidence),
      key_(problem.key()),
      env_(std::make_shared<Env>(context.env())) {}

void TrialRecorder::keep(const Status& status) {
  if (!status.ok() && storing_.ok()) storing_ = status;
}

void TrialRecorder::add(const Trial& trial) { keep(context_.database().add_trial(trial)); }

Trial TrialRecorder::begin(const Plan& plan, TrialKind kind, TrialStatus status) const {
  Trial trial;
  trial.problem = key_;
  trial.plan = plan.text();
  trial.env = env_;
  trial.campaign = campaign_;
  trial.kind = kind;
  trial.status = status;
  trial.sizes = text(representative_sizes(problem_).front());
  const auto& captured = context_.settings().text(Setting::data_profile);
  trial.profile = captured.empty() ? profile_name(profile_of(problem_.role)) : captured;
  trial.repeatable = -1;
  trial.started = nanoseconds_now();
  return trial;
}

void TrialRecorder::describe(Trial& trial, const Compiled& compiled,
                             const Certificate& certificate) {
  trial.compile_ms = compiled.milliseconds;
  trial.registers = compiled.registers;
  trial.spills = compiled.spills;
  trial.shared_bytes = compiled.shared_bytes;
  trial.max_error = certificate.max_error;
  trial.bias_z = certificate.bias_z;
  trial.repeatable = certificate.repeatable;
}

void TrialRecorder::fill_times(Trial& trial, const Series& series, const PairedTimer& timer,
                               std::string rotation) const {
  const auto& seconds = series.seconds.front();
  for (const double s : seconds) trial.samples.push_back(1e9 * s);
  trial.rounds = static_cast<std::int64_t>(seconds.size());
  trial.median_ns = 1e9 * median(seconds);
  const Interval times = bootstrap_median(seconds, confidence_);
  trial.low_ns = 1e9 * times.low;
  trial.high_ns = 1e9 * times.high;
  const Interval ratios = bootstrap_median(series.log_speedups, confidence_);
  trial.ratio = std::exp(median(series.log_speedups));
  trial.ratio_low = std::exp(ratios.low);
  trial.ratio_high = std::exp(ratios.high);
  trial.throttled = timer.discarded();
  std::vector<double> clocks;
  double stolen = 0, others = 0;
  for (const auto& seen : timer.conditions()) {
    clocks.push_back(seen.clock_mhz);
    stolen = std::max(stolen, seen.stolen);
    others = std::max(others, seen.others);
    trial.temperature_c =
        std::max(trial.temperature_c, static_cast<std::int64_t>(seen.temperature_c));
  }
  trial.clock_mhz = std::lround(median(clocks));
  std::replace(rotation.begin(), rotation.end(), ' ', '_');
  trial.extra = fmt::format("sizes={} stolen={:.3f} others={:.2f} rotation={}",
                            series.seconds.size(), stolen, others, rotation);
}

void TrialRecorder::add_failure(const Plan& plan, TrialKind kind, TrialStatus status,
                                const Status& reason, const Compiled& compiled) {
  // What the machine lacks says nothing of a plan.
  if (status == TrialStatus::launch_failed && reason.code() == Code::io_error) return;
  Trial trial = begin(plan, kind, status);
  trial.compile_ms = compiled.milliseconds;
  trial.detail = reason.message();
  add(trial);
  const auto why = quarantine_reason_of(status);
  if (!why) return;
  Quarantine entry;
  entry.subject = plan.text();
  entry.problem = key_;
  entry.target = env_->target;
  entry.performance_class = env_->performance_class;
  entry.compiler = env_->compiler;
  entry.reason = *why;
  entry.detail = reason.message();
  keep(context_.database().add_quarantine(entry));
}

std::optional<Quarantine> TrialRecorder::quarantine_of(const Plan& plan) const {
  auto held = context_.database().quarantine_of(plan, key_, *env_);
  return held.ok() ? std::move(*held) : std::nullopt;
}

void TrialRecorder::release(const Plan& plan) {
  if (const auto held = quarantine_of(plan)) keep(context_.database().remove_quarantine(*held));
}

}  // namespace quarterturn
