// PhaseTimer: where the time of a problem's tuning goes.
#pragma once

#include "tuner/measure.hpp"
#include "tuner/trial_process.hpp"

namespace quarterturn {

/// Adds the time of a scope to a phase, without what the trial process spent on data meanwhile.
class PhaseTimer {
 public:
  PhaseTimer(double& phase, double& data, TrialProcess* process)
      : phase_(phase), data_(data), process_(process) {}
  ~PhaseTimer() {
    const double data = process_ ? process_->take_data_seconds() : 0;
    phase_ += clock_.now() - begun_ - data;
    data_ += data;
  }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  double &phase_, &data_;
  TrialProcess* process_;
  SteadyClock clock_;
  double begun_ = clock_.now();
};

}  // namespace quarterturn
