// Paired timing: each candidate runs between two runs of the control, so that drift of clocks and
// load cancels. Device, clock and observer are injected.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

/// What is timed: candidates over the run-time sizes that stand for a problem's range. Candidate 0
/// is the control, the default plan.
class Subject {
 public:
  virtual ~Subject() = default;
  virtual std::size_t sizes() const = 0;
  /// Loads what `run` needs and is not to be timed.
  virtual Status ready(std::size_t) { return {}; }
  /// The next larger number of calls that `run` starts exactly.
  virtual std::int64_t rounded(std::int64_t repeats) const { return repeats; }
  /// Seconds for `repeats` calls of a candidate at one size, back to back over rotating buffers. An
  /// error takes the candidate out of the race.
  virtual Result<double> run(std::size_t candidate, std::size_t size, std::int64_t repeats) = 0;
};

/// Seconds of a monotonic clock that the device's own clock is checked against.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual double now() const = 0;
};

class SteadyClock : public Clock {
 public:
  double now() const override;
};

/// What disturbed the machine since the last look. Zero means "not known" for clock and
/// temperature.
struct Conditions {
  double clock_mhz = 0;
  double temperature_c = 0;
  double stolen = 0;  ///< share of the CPU time that the hypervisor gave to others
  double others = 0;  ///< cores that other processes used
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual Conditions observe() = 0;
};

struct MeasureSettings {
  double batch_seconds = 3e-3;  ///< at least this long between two readings of the clock
  std::int64_t most_repeats = 1 << 16;
  double stolen_limit = 0.02;  ///< a round with more is discarded
  double others_limit = 0.5;
  double clock_drop = 0.9;  ///< a round whose clock fell below this share of the best is discarded
  std::int64_t most_discarded = 6;  ///< afterwards rounds are kept as they are
  double slowest_clock = 0.3;  ///< device seconds a wall second below which timings mean nothing
  double hopeless = 8;         ///< a candidate this much slower than the control runs only once
  std::uint64_t seed = 1;
};

/// All that is known of one candidate's times.
struct Series {
  std::vector<double>
      log_speedups;  ///< of each kept round: log(control / candidate), mean over sizes
  std::vector<std::vector<double>> seconds;  ///< of one call, [size][round]
  std::vector<double> device, hidden;  ///< of each batch: its seconds, and what the wall's clock
                                       ///< saw beyond them
  Status failure;                      ///< not ok: why it left the race
};

/// Runs rounds and keeps their samples. A round that was disturbed is discarded and run again, a
/// bounded number of times.
class PairedTimer {
 public:
  PairedTimer(Subject& subject, const Clock& clock, Observer& observer, MeasureSettings settings);

  /// One round over `candidates` (0 is never listed: the control takes part by itself). Candidates
  /// that fail leave; an error is one that ends the race: the control failed, or the clock is
  /// wrong.
  Status round(const std::vector<std::size_t>& candidates);

  const Series& series(std::size_t candidate) const;
  /// The control in a candidate's place: what a difference of nothing looks like here.
  const Series& self() const { return self_; }
  bool alive(std::size_t candidate) const { return series(candidate).failure.ok(); }

  /// Not ok when the device's clock hides much more of a candidate's batches than of the control's:
  /// the gain that it shows is none. Few batches prove nothing.
  Status check_clock_of(std::size_t candidate) const;

  std::int64_t discarded() const { return discarded_; }
  const std::vector<Conditions>& conditions() const { return conditions_; }

  /// Forgets the samples, not the calibration: what is measured next owes nothing to the selection.
  void forget();

 private:
  Result<double> seconds_per_call(std::size_t candidate, std::size_t size);
  Result<double> timed(std::size_t candidate, std::size_t size, std::int64_t repeats);
  /// busy: the device's clock hid most of what passed; internal: it ran ahead.
  Status check_clock();
  bool disturbed();
  Series& at(std::size_t candidate);

  Subject& subject_;
  const Clock& clock_;
  Observer& observer_;
  MeasureSettings settings_;
  std::vector<Series> series_;
  Series self_;
  std::vector<std::vector<std::int64_t>> repeats_;  ///< [candidate][size], 0 = not calibrated
  std::vector<Conditions> conditions_;
  std::int64_t discarded_ = 0;
  std::uint64_t rounds_ = 0;
  double device_seconds_ = 0, wall_seconds_ = 0;
  int wrong_clocks_ = 0;  ///< rounds in a row whose clock disagreed with the wall's
};

}  // namespace quarterturn
