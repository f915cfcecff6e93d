// TrialRecorder: what becomes of the plans of one problem, written to the database the moment it is
// known.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/context.hpp"
#include "tuner/admission.hpp"
#include "tuner/compile.hpp"
#include "tuner/measure.hpp"
#include "tuner/trial_process.hpp"

namespace quarterturn {

TrialStatus trial_status_of(const Status& status, Loss loss);
/// Nothing for what says nothing against the plan, such as a time limit.
std::optional<QuarantineReason> quarantine_reason_of(TrialStatus status);

class TrialRecorder {
 public:
  /// `confidence`: of the intervals that are stored.
  TrialRecorder(Context& context, const Uuid& campaign, const Problem& problem, double confidence);

  const std::string& key() const { return key_; }
  const std::shared_ptr<const Env>& env() const { return env_; }
  /// The first failure to store something.
  const Status& storing() const { return storing_; }

  Trial begin(const Plan& plan, TrialKind kind, TrialStatus status) const;
  static void describe(Trial& trial, const Compiled& compiled, const Certificate& certificate);
  void fill_times(Trial& trial, const Series& series, const PairedTimer& timer,
                  std::string rotation) const;
  void add(const Trial& trial);

  /// With a quarantine entry where the plan is at fault.
  void add_failure(const Plan& plan, TrialKind kind, TrialStatus status, const Status& reason,
                   const Compiled& compiled);
  std::optional<Quarantine> quarantine_of(const Plan& plan) const;
  /// The plan proved right: lifts its quarantine.
  void release(const Plan& plan);

 private:
  void keep(const Status& status);

  Context& context_;
  const Uuid& campaign_;
  const Problem& problem_;
  double confidence_;
  std::string key_;
  std::shared_ptr<const Env> env_;
  Status storing_;
};

}  // namespace quarterturn
