// ProblemTuner: one problem's way from candidates to a stored answer.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tuner/session.hpp"
#include "tuner/trial_recorder.hpp"

namespace quarterturn {

/// What a session's problems use in turn.
struct Workshop {
  CompilePool& pool;
  TrialProcess& process;
  std::vector<Plan> plans;  ///< of the problem, where somebody worked them out before
};

/// Every plan of a problem that a search may try.
std::vector<Plan> searchable_plans(const Context& context, const Problem& problem);
/// The same, or what the options say instead.
std::vector<Plan> plans_for(const SessionOptions& options, const Context& context,
                            const Problem& problem);
std::unique_ptr<Strategy> strategy_for(const SessionOptions& options, const Space& space);

/// Submits a plan, and what brings the operands that the problem takes quantised into its layouts.
std::vector<CompilePool::Job> submit_all(CompilePool& pool, const Problem& problem,
                                         const Target& target, const Plan& plan,
                                         CompilePool::Urgency urgency);

class ProblemTuner {
 public:
  /// `deadline`: seconds of SteadyClock at which the decision must be made; 0 = none. `tick`
  /// reports progress.
  ProblemTuner(Context& context, const SessionOptions& options, const Uuid& campaign,
               const Item& item, Workshop workshop, double deadline,
               std::function<void(Progress::Phase, const Tuned&, std::size_t left)> tick);
  ~ProblemTuner();
  ProblemTuner(const ProblemTuner&) = delete;
  ProblemTuner& operator=(const ProblemTuner&) = delete;

  Tuned tune();

 private:
  struct Candidate {
    Plan plan;
    Compiled compiled;
    Certificate certificate;
    double worst_seconds = 0;  ///< of a call, where the data decides; 0 elsewhere
  };
  struct Pending {
    Plan plan;
    std::vector<CompilePool::Job> jobs;
  };

  bool interrupted() const { return options_.interrupted && options_.interrupted(); }
  bool out_of_time(double share) const;
  void tick(Progress::Phase phase);

  Space make_space();
  void resume();
  bool has_failed(const Plan& plan) const;
  /// Whether a plan is not to be tried; when all is tuned again, only what failed in this run
  /// counts.
  bool is_barred(const Plan& plan) const;

  Status find_control();
  Status explore();
  /// Puts plans in the compilers' queue, up to what they can work on.
  void fill_queue();
  /// Waits for compilers, and takes what is ready.
  std::vector<Pending> take_ready();
  void drop_pending();
  void try_again();
  Status try_ready(const std::vector<Pending>& ready);
  /// Compiled and admitted; anything else is recorded with its reason.
  std::optional<std::size_t> admit(const Plan& plan, const Compiled& compiled, Depth depth);
  /// Of a candidate that large results of were only sampled.
  bool admit_whole(std::size_t candidate);
  Result<std::vector<std::size_t>> choose_finalists();
  Decision judge(const std::vector<std::size_t>& finalists) const;
  Status finish();

  void give_up(const Plan& plan, TrialKind kind, TrialStatus status, const Status& reason,
               const Compiled& compiled);
  /// Of those whose time depends on the data.
  void time_worst_cases(const std::vector<std::size_t>& candidates);
  void record_screened(std::size_t candidate);
  void record_final(const std::vector<std::size_t>& finalists, const Decision& decision);
  void record_proof(const Candidate& one);
  Status store_answer(const Decision& decision, const std::vector<std::size_t>& finalists,
                      bool unfinished);

  Context& context_;
  const SessionOptions& options_;
  Item item_;
  CompilePool& pool_;
  TrialProcess& process_;
  std::vector<Plan> known_plans_;
  SteadyClock clock_;
  double begun_, deadline_;
  std::function<void(Progress::Phase, const Tuned&, std::size_t)> tick_;
  TrialRecorder recorder_;
  std::unique_ptr<Observer> observer_;
  bool overlaps_;  ///< compiling does not disturb what is timed: it runs on another device

  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<PairedTimer> timer_;
  std::vector<Candidate> candidates_;  ///< 0 is the control
  std::vector<Pending> pending_;
  std::vector<Outcome> history_;
  std::vector<Plan> promising_;  ///< of earlier sessions, to be timed again
  Status refusal_;               ///< why the last plan was not admitted
  Tuned out_;
};

}  // namespace quarterturn
