// Session: a tuning campaign over problems on one device. Everything is kept the moment it is
// known, so a session can end anywhere and the next one goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/context.hpp"
#include "tuner/compile.hpp"
#include "tuner/compile_slots.hpp"
#include "tuner/decide.hpp"
#include "tuner/race.hpp"
#include "tuner/search.hpp"
#include "tuner/site.hpp"
#include "tuner/trial_process.hpp"
#include "tuner/workload.hpp"

namespace quarterturn {

enum class SearchKind { learned, predicted, exhaustive };
enum class Cached { reused, tuned_again };

struct SessionOptions {
  SearchKind search = SearchKind::learned;
  Cached cached = Cached::reused;
  double time_limit = 0;          ///< seconds for all problems together; 0 = until each is searched
  double problem_time_limit = 0;  ///< seconds for each; 0 = its share of the above
  std::size_t batch = 8;          ///< candidates compiled together
  std::size_t jobs = 0;           ///< compilers at once; 0 = usable_cores()
  std::shared_ptr<const CompileSlots> slots;  ///< shared with other processes; null = none
  SearchSettings order;
  RaceSettings race;
  MeasureSettings measure;
  DecisionSettings decision;
  TrialProcessOptions process;
  std::function<bool()> interrupted;
  /// What may be tried for a problem, the default first; null: every plan (searchable_plans).
  std::function<std::vector<Plan>(const Problem&)> plans;
};

/// What happens, for a display.
struct Progress {
  enum class Phase { waiting, preparing, compiling, admitting, timing, confirming, decided };
  Phase phase = Phase::preparing;
  std::size_t problem = 0, problems = 0;         ///< the how-manieth of how many
  std::string name;                              ///< short_name of the problem
  std::int64_t tried = 0, failed = 0, left = 0;  ///< candidates
  std::string failures;                          ///< how they failed: "2 compile_failed, 1 wrong"
  double best = 1;                               ///< best speed-up seen so far
  double elapsed = 0, remaining = 0;  ///< seconds of the session; remaining is an estimate
};
std::string_view phase_name(Progress::Phase phase);

/// Where a problem's time went, in seconds.
struct Phases {
  double compile_wait = 0;  ///< for compilers, while nothing else could be done
  double data = 0;          ///< inputs, their way to the device, what the reference says of them
  double admission = 0, timing = 0, search = 0;
  std::string text() const;
};

/// What became of one problem.
struct Tuned {
  enum class Answer {
    cached,      ///< was decided before
    tuned,       ///< another plan beats the default
    fallback,    ///< the default is the answer
    unfinished,  ///< the time ran out or somebody interrupted: the default serves, the next run
                 ///< goes on
    failed       ///< nothing works, or nothing can be stored
  };
  Item item;
  Answer answer = Answer::failed;
  Status status;  ///< not ok only when failed
  std::string plan;
  double speedup = 1, low = 1, high = 1, noise = 0;
  double median_seconds = 0;  ///< of the answer, at the largest size
  std::int64_t tried = 0, failed = 0, compiled = 0;
  double seconds = 0;  ///< spent on it now
  Phases phases;
  std::map<std::string, std::int64_t> failures;  ///< by trial_status_name
  std::string first_failure;                     ///< a plan that failed, and why
  std::string reason;
};
/// "2 compile_failed, 1 wrong"; empty when nothing failed.
std::string failures_text(const Tuned& tuned);
std::string_view answer_name(Tuned::Answer answer);

/// What a session would do.
struct Estimate {
  Item item;
  bool decided = false;        ///< a stored answer holds
  std::size_t space = 0;       ///< legal plans
  std::size_t candidates = 0;  ///< that the strategy may try
  double compile_seconds = 0;  ///< of one core
  double device_seconds = 0;   ///< admitting and timing
  double seconds = 0;          ///< of both, with as many compilers at once as the session has
  double bytes = 0;            ///< of device memory, about
};

/// What estimates go by where nothing was recorded, and of admitting and timing one candidate.
inline constexpr double kCompileSeconds = 1.5, kTrialSeconds = 0.5;

class Session {
 public:
  Session(Context& context, SessionOptions options);
  ~Session();

  /// Problems in order. `changed` is called now and then from this thread, `done` after each
  /// problem.
  std::vector<Tuned> run(const std::vector<Item>& items,
                         const std::function<void(const Progress&)>& changed,
                         const std::function<void(const Tuned&)>& done);

  /// Of the last run: call sites of several problems, and the weight layout that they share.
  const std::vector<Site>& sites() const { return sites_; }

  /// Tries, compiles and stores nothing.
  Result<std::vector<Estimate>> estimate(const std::vector<Item>& items);

 private:
  double deadline_for(double now, double elapsed, std::size_t problems_left) const;
  /// Times members of a site with the layouts that others would choose, tells each site's layout,
  /// and brings `results` up to date.
  Status settle(const std::vector<Item>& items, CompilePool& pool,
                std::unique_ptr<TrialProcess>& process, double begun, std::vector<Tuned>& results);

  Context& context_;
  SessionOptions options_;
  Uuid campaign_;
  std::vector<Site> sites_;
};

/// The stored answer, if it was decided here and under the present compiler, driver and library,
/// and its search was finished.
Result<std::optional<Winner>> valid_winner(Context& context, const Problem& problem);

/// One tuner at a time times kernels on a device: waits for the others of this machine. The lock
/// lies beside the code, so that it is found by all who share the database's folder.
Result<FileLock> device_lock(const Context& context, const std::function<bool()>& interrupted);

}  // namespace quarterturn
