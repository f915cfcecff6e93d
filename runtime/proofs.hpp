// Proofs: which kernel families may serve on a device. A family that this project has not run on
// such a device serves after it was proved there: held against the scalar reference once, in a
// child process, with the verdict kept in the tuning database for the device's class and compiler.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cache/database.hpp"
#include "generator/family.hpp"
#include "runtime/log.hpp"
#include "runtime/prover.hpp"
#include "runtime/settings.hpp"

namespace quarterturn {

/// `known`: has run on such hardware in this project's tests. `here`: an admission on such a device
/// is on record. `open`: neither. `failed`: in quarantine here.
enum class ProofState { known, here, open, failed };
/// "proven", "proven here", "unproven", "failed"
std::string_view proof_state_name(ProofState state);

/// Thread-safe.
class Proofs {
 public:
  /// `missing`: code is compiled for it and cannot run here, so there is nothing to prove.
  enum class Device { present, missing };
  struct Place {
    Database& database;
    Target target;
    Env env;
    Device device = Device::present;
    std::string lock_folder;  ///< of this machine, shared by all that prove for one database
    std::vector<std::string> snapshots, keys;  ///< published databases whose admissions count, too
    std::string bundle;                        ///< and a bundle's; empty: none
  };
  /// Compiles a step's source; what it makes is found again by the child and by whoever loads it.
  using Compile = std::function<Status(const Source&)>;

  /// `why_not`: why no child can be started, where none can; then nothing is proved.
  Proofs(Place place, const Settings& settings, Prover prover, Status why_not, const Log& log,
         Compile compile);

  struct Answer {
    ProofState state = ProofState::open;
    std::string detail;  ///< why it failed, or why it cannot be proved
  };
  Answer state_of(const Variant& variant);

  /// Ok when a plan serves or may be tried: no family of it has failed, and what is open can be
  /// proved. Starts nothing.
  Status allows(const Plan& plan);

  /// Proves what is open in `plan`. `quarantined`: a family failed, now or before; `unproven`:
  /// nothing can be said of one.
  Status ensure(const Problem& problem, const Plan& plan);

  /// Looks again for what was not proved so far.
  void forget();

  /// Child processes that were started.
  std::int64_t started() const { return started_; }

 private:
  bool is_on_record(const Variant& variant);
  /// QTURN_UNPROVEN=serve lets it serve unproven, or there is nothing to prove it on.
  bool serves_open(const Variant& variant) const;
  bool is_open(const Variant& variant) { return state_of(variant).state == ProofState::open; }
  void forget_open();
  Status refusal(const Variant& variant) const;
  std::vector<ProofTask> tasks_for(const Problem& problem, const Plan& plan);
  Status compile(const Problem& problem, const Plan& plan);
  Status prove(const Problem& problem, const Plan& plan);
  Status judge(const ProofTask& task, const Proof& proof);
  void record(const ProofTask& task, const Proof& proof, TrialStatus status);

  Place place_;
  std::string mode_;  ///< admit, refuse, serve
  Prover prover_;
  Status why_not_;
  Log log_;
  Compile compile_;
  std::mutex proving_;                       ///< one child at a time
  std::mutex mutex_;                         ///< guards the members below
  std::map<std::string, Answer> known_;      ///< by Variant::family_text
  std::map<std::string, Status> undecided_;  ///< could not be proved when it was tried
  std::atomic<std::int64_t> started_{0};
};

}  // namespace quarterturn
