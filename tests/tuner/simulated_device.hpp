// A device that lies the way real ones do: noise, drift, throttling, outliers, neighbours; time is
// its own.
#pragma once

#include <cmath>
#include <vector>

#include "tuner/measure.hpp"
#include "tuner/random.hpp"

namespace quarterturn::simulated {

class Device : public Subject, public Clock, public Observer {
 public:
  struct Character {
    double noise = 0.01;         // relative standard deviation of one batch
    double outliers = 0;         // probability of a batch that takes up to three times as long
    double drift = 0;            // relative change of speed in a second
    double throttle_period = 0;  // seconds; for a third of it the clock falls
    double throttle_factor = 0.7;
    double stepping = 0;       // probability, per batch, of a lasting change of speed by up to 5 %
    double per_batch = 0.003;  // systematic extra cost of running after another candidate
    bool observer_sees = true;
    double clock_rate = 1;  // the device's clock against the wall's
    double waits = 0;       // seconds, each batch, that the process does not get to run
    double others = 0;      // cores that other processes use
  };

  // seconds[candidate][size] of one call, at full clock.
  Device(std::vector<std::vector<double>> seconds, Character character, std::uint64_t seed)
      : seconds_(std::move(seconds)), character_(character), random_(seed) {}

  std::size_t sizes() const override { return seconds_.front().size(); }

  Result<double> run(std::size_t candidate, std::size_t size, std::int64_t repeats) override {
    ++runs_;
    if (candidate < broken_.size() && broken_[candidate] && runs_ > 40)
      return Status(Code::launch_failed, "illegal access");
    double seconds = seconds_[candidate][size] * static_cast<double>(repeats) * speed();
    seconds *= std::exp(character_.noise * gaussian());
    if (last_ != candidate) seconds *= 1 + character_.per_batch;
    last_ = candidate;
    if (random_.unit() < character_.outliers) seconds *= 1 + 2 * random_.unit();
    if (random_.unit() < character_.stepping) step_ *= 1 + 0.1 * (random_.unit() - 0.5);
    now_ += seconds + 1e-6 + character_.waits + (runs_ == sleeps_at_ ? 3600 : 0);
    const bool hides = candidate < hidden_.size() && hidden_[candidate] > 0;
    return seconds * character_.clock_rate * (hides ? 1 - hidden_[candidate] : 1);
  }

  double now() const override { return now_; }

  Conditions observe() override {
    Conditions seen;
    seen.clock_mhz =
        character_.observer_sees ? 2000 * (throttled() ? character_.throttle_factor : 1) : 0;
    seen.others = character_.others;
    return seen;
  }

  /// The machine is suspended for an hour during one batch.
  void sleep_at(std::int64_t run) { sleeps_at_ = run; }

  /// The device's clock misses this share of a candidate's time.
  void hide_time_of(std::size_t candidate, double share) {
    hidden_.resize(seconds_.size());
    hidden_[candidate] = share;
  }

  void break_candidate(std::size_t candidate) {
    broken_.resize(seconds_.size());
    broken_[candidate] = true;
  }

 private:
  bool throttled() const {
    const double period = character_.throttle_period;
    return period > 0 && std::fmod(now_, period) > period * 2 / 3;
  }
  double speed() const {
    return (1 + character_.drift * now_) * step_ *
           (throttled() ? 1 / character_.throttle_factor : 1);
  }
  double gaussian() {
    return std::sqrt(-2 * std::log(1 - random_.unit())) *
           std::cos(6.283185307179586 * random_.unit());
  }

  std::vector<std::vector<double>> seconds_;
  Character character_;
  Random random_;
  double now_ = 0, step_ = 1;
  std::size_t last_ = 0;
  std::int64_t runs_ = 0, sleeps_at_ = -1;
  std::vector<bool> broken_;
  std::vector<double> hidden_;
};

}  // namespace quarterturn::simulated
