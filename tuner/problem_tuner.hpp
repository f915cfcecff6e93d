// ProblemTuner: one problem's way from candidates to a stored answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tuner/session.hpp"

namespace quarterturn {

class ProblemTuner {
 public:
  /// `deadline`: seconds of SteadyClock at which the decision must be made; 0 = none. `tick`
  /// reports progress.
  ProblemTuner(Context& context, const SessionOptions& options, const Uuid& campaign,
               const Item& item, double deadline,
               std::function<void(Progress::Phase, const Tuned&, std::size_t left)> tick);
  ~ProblemTuner();

  Tuned tune();

 private:
  struct Candidate {
    Plan plan;
    Compiled compiled;
    Certificate certificate;
  };

  bool interrupted() const { return options_.interrupted && options_.interrupted(); }
  bool out_of_time(double share) const;
  void tick(Progress::Phase phase);

  std::vector<Plan> space_seeds() const;
  void resume();
  /// Why a plan is not to be tried; when all is tuned again, only what failed in this run counts.
  std::optional<Quarantine> quarantine_of(const Plan& plan);
  bool has_failed(const Plan& plan) const;
  Status find_control();
  Status explore();
  Status try_batch(const std::vector<Plan>& plans);
  /// Compiled and admitted; anything else is recorded with its reason.
  std::optional<std::size_t> admit(const Plan& plan, const Compiled& compiled);
  Status finish();

  void give_up(const Plan& plan, TrialKind kind, TrialStatus status, const Status& reason,
               const Compiled& compiled);
  Trial new_trial(const Plan& plan, TrialKind kind, TrialStatus status) const;
  void describe(Trial& trial, const Candidate& candidate) const;
  void fill_times(Trial& trial, const Series& series) const;
  void record_screened(std::size_t candidate);
  void record(const Trial& trial);
  Status store_answer(const Decision& decision, const std::vector<std::size_t>& finalists,
                      bool unfinished);

  Context& context_;
  const SessionOptions& options_;
  const Uuid& campaign_;
  Item item_;
  SteadyClock clock_;
  double begun_, deadline_;
  std::function<void(Progress::Phase, const Tuned&, std::size_t)> tick_;

  std::shared_ptr<const Env> env_;
  std::string key_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<Observer> observer_;
  std::unique_ptr<TrialProcess> process_;
  std::unique_ptr<PairedTimer> timer_;
  std::vector<Candidate> candidates_;  ///< 0 is the control
  std::vector<Outcome> history_;
  std::vector<Plan> promising_;  ///< of earlier sessions, to be timed again
  Status storing_;               ///< the first failure to store something
  Status refusal_;               ///< why the last plan was not admitted
  Tuned out_;
};

}  // namespace quarterturn
