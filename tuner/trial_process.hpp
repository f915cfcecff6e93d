// TrialProcess: trials in a process of their own, so that a candidate which crashes, hangs or eats
// memory costs only itself.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/settings.hpp"
#include "tuner/trials.hpp"

namespace quarterturn {

struct TrialProcessOptions {
  std::string program;  ///< quarterturn-trial; empty = find it beside this program
  std::map<std::string, std::string> settings;  ///< by name: device, threads, code_cache, ...
  std::string data;  ///< a file for Captured::open, instead of the role's profile
  std::chrono::seconds admission_limit{120};
  std::chrono::seconds run_limit{60};  ///< one batch, with loading and inputs before it
  std::function<bool()> interrupted;   ///< asked while waiting; true ends the process
};

/// How the process was lost while a candidate was in it.
enum class Loss { none, crashed, hung };

/// The process starts with the first request and again after each loss. It may serve several
/// problems, one after the other. Not thread-safe.
class TrialProcess : public TrialRunner {
 public:
  TrialProcess(Problem problem, TrialProcessOptions options);
  ~TrialProcess() override;
  TrialProcess(const TrialProcess&) = delete;
  TrialProcess& operator=(const TrialProcess&) = delete;

  /// Forgets every candidate and goes on with another problem, in the same process: device contexts
  /// take seconds to come up.
  void change(Problem problem);

  std::size_t add(const Plan& plan) override;
  Verdict admit(std::size_t candidate, Depth depth = Depth::whole) override;
  std::size_t sizes() const override { return sizes_; }
  Status ready(std::size_t candidate) override;
  Result<double> run(std::size_t candidate, std::size_t size, std::int64_t repeats) override;
  std::string rotation() const override { return rotation_; }
  std::string disproved() const override { return disproved_; }

  /// LocalTrials::worst in the process.
  Result<double> worst(std::size_t candidate);

  /// Why the process ended at the last request of this candidate.
  Loss loss(std::size_t candidate) const { return losses_[candidate]; }
  /// Seconds that the process spent on making and moving inputs since the last call.
  double take_data_seconds();

 private:
  Status start();
  void stop();
  void pose_problem();
  Status write_line(const std::string& line);
  Result<nlohmann::json> request(const nlohmann::json& what, std::size_t candidate,
                                 std::chrono::milliseconds limit);
  Status lost(std::size_t candidate, Loss how, std::chrono::milliseconds limit);

  Problem problem_;
  TrialProcessOptions options_;
  std::vector<std::string> plans_;
  std::vector<Loss> losses_;
  std::vector<bool> ready_;
  std::size_t sizes_;
  std::string rotation_, disproved_;
  double data_seconds_ = 0, data_taken_ = 0;
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1;
  std::string buffer_;
};

/// quarterturn-trial as installed or as built, from the place of this program; empty when it is not
/// there.
std::string find_trial_program();

/// The other side: answers requests on `in` until it closes. Returns the exit status.
int serve_trials(int in, int out);

/// What a child process opens by the settings that it was given.
Result<std::unique_ptr<Backend>> open_trial_backend(const nlohmann::json& settings);

/// The other side of the library's Prover: admits the plans of a request, in order, and says what
/// became of each on `out`, up to the first that is not right. Returns the exit status.
int prove_plans(const std::string& request, int out);

}  // namespace quarterturn
