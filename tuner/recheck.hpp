// Recheck: answers that were decided under another driver, compiler or library version, confirmed
// by three paired trials against the default instead of being tuned again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tuner/session.hpp"

namespace quarterturn {

/// A stored answer of this device that its environment has made stale.
struct StaleAnswer {
  Problem problem;
  Winner winner;
  std::int64_t calls = 0;  ///< that it served since it became stale; 0: none
};

/// Those of the local database, what was served longest first.
Result<std::vector<StaleAnswer>> stale_answers(Context& context);

struct Rechecked {
  enum class Answer {
    kept,      ///< holds as before, and is valid again
    queued,    ///< still beats the default, but by less than before: serves, and is to be tuned
    fallback,  ///< does not beat the default any more: that serves, and the problem is to be tuned
    waiting,   ///< not reached in the time limit; serves as it is
    failed     ///< nothing could be tried or stored
  };
  StaleAnswer stale;
  Answer answer = Answer::failed;
  Status status;             ///< not ok only when failed
  double speedup = 0;        ///< median of the trials; 0 where none was needed
  double low = 0, high = 0;  ///< least and greatest
  double seconds = 0;
  std::string plan;  ///< that serves from now on
  std::string reason;
};
std::string_view recheck_answer_name(Rechecked::Answer answer);

/// What trials say of an answer that beat the default at least `low`-fold with `noise`: both as
/// ratios, `log_speedups` of each trial. Never `waiting` or `failed`.
Rechecked::Answer judge_recheck(const std::vector<double>& log_speedups, double low, double noise);

class Rechecker {
 public:
  static constexpr std::int64_t kTrials = 3;

  /// Of the options: time_limit, jobs, measure, process, interrupted.
  Rechecker(Context& context, SessionOptions options);

  std::vector<Rechecked> run(const std::vector<StaleAnswer>& stale,
                             const std::function<void(const Rechecked&)>& done);

 private:
  Rechecked recheck(const StaleAnswer& stale, CompilePool& pool, TrialProcess& process);
  Status store(const Rechecked& result, const Plan& standard, const Certificate& certificate,
               bool search);

  Context& context_;
  SessionOptions options_;
  Uuid campaign_;
};

}  // namespace quarterturn
