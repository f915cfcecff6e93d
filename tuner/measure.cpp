#include "tuner/measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "tuner/random.hpp"
#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

// The device's clock may not run faster than the wall's, nor hide most of what passed. Judged on
// sums of at least this long, as single batches suffer from interrupts.
constexpr double kJudgeSeconds = 0.05;
constexpr double kFastest = 1.05;
constexpr std::size_t kJudgeBatches = 12;
constexpr double kMostHidden = 0.1;  // of a batch's time, beyond what starting it takes
constexpr int kWrongClocks = 3;      // rounds in a row; a machine that was suspended is wrong once

struct Slot {
  std::size_t candidate;
  bool is_self;  // the control as a candidate
};

}  // namespace

double SteadyClock::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

PairedTimer::PairedTimer(Subject& subject, const Clock& clock, Observer& observer,
                         MeasureSettings settings)
    : subject_(subject), clock_(clock), observer_(observer), settings_(settings) {
  self_.seconds.resize(subject.sizes());
  observer_.observe();
}

Series& PairedTimer::at(std::size_t candidate) {
  while (series_.size() <= candidate) {
    series_.emplace_back().seconds.resize(subject_.sizes());
    repeats_.emplace_back(subject_.sizes(), 0);
  }
  return series_[candidate];
}

const Series& PairedTimer::series(std::size_t candidate) const {
  static const Series none;
  return candidate < series_.size() ? series_[candidate] : none;
}

void PairedTimer::forget() {
  const auto clear = [](Series& series) {
    series.log_speedups.clear();
    series.device.clear();
    series.hidden.clear();
    for (auto& seconds : series.seconds) seconds.clear();
  };
  for (auto& series : series_) clear(series);
  clear(self_);
}

Result<double> PairedTimer::timed(std::size_t candidate, std::size_t size, std::int64_t repeats) {
  if (auto status = subject_.ready(candidate); !status.ok()) return status;
  const double before = clock_.now();
  auto seconds = subject_.run(candidate, size, repeats);
  if (!seconds.ok()) return seconds;
  if (!(*seconds > 0) || !std::isfinite(*seconds))
    return Status(Code::internal,
                  fmt::format("the device's clock measured {} s for a batch", *seconds));
  const double wall = clock_.now() - before;
  wall_seconds_ += wall;
  device_seconds_ += *seconds;
  Series& series = at(candidate);
  series.device.push_back(*seconds);
  series.hidden.push_back(wall - *seconds);
  return seconds;
}

Status PairedTimer::check_clock() {
  if (wall_seconds_ < kJudgeSeconds) return {};
  const double rate = device_seconds_ / wall_seconds_;
  wall_seconds_ = device_seconds_ = 0;
  if (rate <= kFastest && rate >= settings_.slowest_clock) return {};
  return Status(
      rate < settings_.slowest_clock ? Code::busy : Code::internal,
      fmt::format("the device's clock disagrees with the wall clock: {:.2f} s a second; timings "
                  "here mean nothing. Is the machine suspended, or its clock being set?",
                  rate));
}

Status PairedTimer::check_clock_of(std::size_t candidate) const {
  const Series &own = series(candidate), &control = series(0);
  if (own.hidden.size() < kJudgeBatches || control.hidden.size() < kJudgeBatches) return {};
  const double more = median(own.hidden) - median(control.hidden);
  const double batch = median(own.device);
  if (more <= kMostHidden * batch) return {};
  return Status(Code::launch_failed,
                fmt::format("the device's clock says {:.2f} ms a batch, the wall's {:.2f} ms more "
                            "than that for the default: its time cannot be believed",
                            1e3 * batch, 1e3 * more));
}

// One call's time from a batch long enough to be read; the first batch calibrates and warms up.
Result<double> PairedTimer::seconds_per_call(std::size_t candidate, std::size_t size) {
  std::int64_t repeats = repeats_[candidate][size];
  if (repeats == 0) {
    repeats = 1;
    for (;;) {
      auto seconds = timed(candidate, size, repeats);
      if (!seconds.ok()) return seconds;
      if (*seconds >= 0.7 * settings_.batch_seconds || repeats >= settings_.most_repeats) break;
      const double wanted =
          static_cast<double>(repeats) * std::min(16.0, 1.2 * settings_.batch_seconds / *seconds);
      repeats = subject_.rounded(std::clamp(static_cast<std::int64_t>(std::ceil(wanted)),
                                            repeats + 1, settings_.most_repeats));
    }
    repeats_[candidate][size] = repeats;
  }
  auto seconds = timed(candidate, size, repeats);
  if (!seconds.ok()) return seconds;
  return *seconds / static_cast<double>(repeats);
}

bool PairedTimer::disturbed() {
  const Conditions now = observer_.observe();
  conditions_.push_back(now);
  double best = 0;
  for (const auto& seen : conditions_) best = std::max(best, seen.clock_mhz);
  return now.stolen > settings_.stolen_limit || now.others > settings_.others_limit ||
         (now.clock_mhz > 0 && now.clock_mhz < settings_.clock_drop * best);
}

Status PairedTimer::round(const std::vector<std::size_t>& candidates) {
  at(0);
  std::vector<Slot> slots{{0, true}};
  for (const std::size_t candidate : candidates) {
    at(candidate);
    if (alive(candidate)) slots.push_back({candidate, false});
  }
  // Pairs of rounds run one order forwards and backwards: what a neighbour does to the next one's
  // caches and clocks is the same on both sides.
  for (std::int64_t attempt = 0;; ++attempt) {
    Random random(settings_.seed * 0x10001 + rounds_ / 2);
    auto order = slots;
    random.shuffle(order);
    if (rounds_ % 2 == 1) std::reverse(order.begin(), order.end());
    struct Sample {
      Slot slot;
      std::vector<double> seconds, ratios;
    };
    std::vector<Sample> samples;
    for (const Slot& slot : order) samples.push_back({slot, {}, {}});
    std::vector<double> control_seconds;
    for (std::size_t size = 0; size < subject_.sizes(); ++size) {
      auto before = seconds_per_call(0, size);
      if (!before.ok()) return before.status();
      for (auto& sample : samples) {
        Series& series = at(sample.slot.candidate);
        if (!series.failure.ok()) continue;
        auto own = seconds_per_call(sample.slot.candidate, size);
        if (!own.ok() && sample.slot.is_self) return own.status();
        auto after = seconds_per_call(0, size);
        if (!after.ok()) return after.status();
        if (own.ok()) {
          sample.seconds.push_back(*own);
          sample.ratios.push_back(std::log(0.5 * (*before + *after) / *own));
          if (!sample.slot.is_self && *own > settings_.hopeless * *after)
            series.failure = Status(
                Code::rejected, fmt::format("{:.0f} times slower than the default", *own / *after));
        } else {
          series.failure = own.status();
        }
        *before = *after;
      }
      control_seconds.push_back(*before);
    }
    const bool judged = wall_seconds_ >= kJudgeSeconds;
    const Status clock = check_clock();
    const bool noisy = disturbed();
    // On a busy machine the wall's time goes by while others run, and proves nothing.
    const bool excused = noisy && clock.code() == Code::busy;
    if (judged) wrong_clocks_ = clock.ok() || excused ? 0 : wrong_clocks_ + 1;
    if (wrong_clocks_ >= kWrongClocks) return Status(Code::internal, clock.message());
    if (wrong_clocks_ > 0) continue;
    if (noisy && discarded_ < settings_.most_discarded) {
      ++discarded_;
      continue;
    }
    const auto keep = [&](Series& series, const Sample& sample) {
      if (sample.ratios.size() != subject_.sizes()) return;
      double sum = 0;
      for (std::size_t size = 0; size < sample.ratios.size(); ++size) {
        sum += sample.ratios[size];
        series.seconds[size].push_back(sample.seconds[size]);
      }
      series.log_speedups.push_back(sum / static_cast<double>(sample.ratios.size()));
    };
    for (const auto& sample : samples)
      keep(sample.slot.is_self ? self_ : at(sample.slot.candidate), sample);
    Series& control = at(0);
    control.log_speedups.push_back(0);
    for (std::size_t size = 0; size < control_seconds.size(); ++size)
      control.seconds[size].push_back(control_seconds[size]);
    ++rounds_;
    return {};
  }
}

}  // namespace quarterturn
