// The rows of a tuning database as values: trials, winners, quarantine, tombstones, misses,
// artifacts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/env.hpp"
#include "generator/status.hpp"

namespace quarterturn {

/// 128 random bits; all zero means "none".
using Uuid = std::array<unsigned char, 16>;
Uuid random_uuid();
std::string text(const Uuid& uuid);
Result<Uuid> parse_uuid(std::string_view text);

// Numbers below are stored: they never change meaning and are never reused.

enum class TrialKind : std::int32_t {
  timing = 0,
  admission = 1,  ///< a numeric check of a family or plan, before it may serve or be timed
  recheck = 2,    ///< the few trials that confirm a stale winner
  control = 3,    ///< the same kernel against itself: gives the noise floor
};

enum class TrialStatus : std::int32_t {
  ok = 0,
  compile_failed = 1,
  compile_timeout = 2,
  launch_failed = 3,
  crashed = 4,
  hung = 5,
  wrong = 6,     ///< failed numeric admission
  noisy = 7,     ///< measured, but the interval is too wide to decide by
  pruned = 8,    ///< given up early: surely slower than the best
  rejected = 9,  ///< compiled, but spills, serialised, or needs more than the device has
};
/// Kinds whose trials a decision rests on; Winner::evidence counts these.
constexpr bool is_evidence(TrialKind kind) {
  return kind == TrialKind::timing || kind == TrialKind::recheck;
}
std::string_view trial_kind_name(TrialKind kind);
std::string_view trial_status_name(TrialStatus status);

// What one trial measured: X(type, name, meaning). This list gives the struct, its columns and its
// canonical bytes. Doubles are finite; 0 means "not measured" where 0 cannot be a measurement.
#define QTURN_TRIAL_FIELDS(X)                                                                   \
  X(TrialKind, kind, "what the trial was for")                                                  \
  X(TrialStatus, status, "how it ended")                                                        \
  X(std::string, sizes, "the run-time sizes: m=16 n=4096 k=4096")                               \
  X(std::string, profile, "data profile: forward, gradient, heavy, captured:<sha>")             \
  X(std::int64_t, rounds, "paired rounds that were kept")                                       \
  X(double, median_ns, "median time of one call")                                               \
  X(double, low_ns, "confidence interval of median_ns")                                         \
  X(double, high_ns, "confidence interval of median_ns")                                        \
  X(double, ratio,                                                                              \
    "time of the default divided by this plan's, in paired rounds: above 1 is faster")          \
  X(double, ratio_low, "confidence interval of ratio")                                          \
  X(double, ratio_high, "confidence interval of ratio")                                         \
  X(double, noise, "relative noise floor of the session, from its control")                     \
  X(double, worst_ns, "median with the worst data, for families whose time depends on it")      \
  X(double, max_error, "largest |result - reference| over its bound")                           \
  X(double, bias_z, "z score of the unbiasedness test, for stochastic rounding")                \
  X(std::int64_t, repeatable, "1 when two runs gave the same bits, 0 when not, -1 unknown")     \
  X(std::int64_t, clock_mhz, "median clock while timing")                                       \
  X(std::int64_t, temperature_c, "highest temperature while timing")                            \
  X(std::int64_t, throttled, "rounds discarded because the clock or another process disturbed") \
  X(std::int64_t, compile_ms, "compile time of all steps; 0 when found in the code store")      \
  X(std::int64_t, registers, "most over the steps")                                             \
  X(std::int64_t, spills, "sum over the steps, bytes")                                          \
  X(std::int64_t, shared_bytes, "most over the steps")                                          \
  X(std::int64_t, started, "nanoseconds since 1970, by the clock of the machine")               \
  X(std::string, extra, "name=value words that have no column yet")

/// One measurement or check of one plan. Append-only: a trial is never changed or deleted, only
/// withdrawn by a tombstone.
struct Trial {
  Uuid uuid{};          ///< add_trial gives a random one when this is zero
  std::string problem;  ///< Problem::key()
  std::string plan;     ///< Plan::text()
  std::shared_ptr<const Env> env;
  Uuid campaign{};  ///< the tuning run it belongs to
#define X(type, name, meaning) type name{};
  QTURN_TRIAL_FIELDS(X)
#undef X
  std::vector<double> samples;  ///< per round, nanoseconds
  std::string detail;           ///< for people: first lines of a compile log; left out of snapshots
};

enum class Choice : std::int32_t {
  tuned = 0,     ///< beat the default beyond the noise
  fallback = 1,  ///< nothing did: the default is the stored answer
};

/// The decision for a problem on a performance class; derived from trials and rebuildable.
struct Winner {
  std::string problem;
  std::string plan;
  std::shared_ptr<const Env> env;  ///< of the deciding trials: target and class are the key
  Choice choice = Choice::tuned;
  double speedup = 1, speedup_low = 1, speedup_high = 1;  ///< against the default
  double median_ns = 0;
  double regret = 0;          ///< bound on what a better member of the tie set could gain
  double noise = 0;           ///< noise floor the decision used
  std::int64_t evidence = 0;  ///< trials of Database::trials with is_evidence(kind), when decided
  std::string ties;           ///< plans within the noise, one a line
  std::string certificate;    ///< what admission proved, name=value words
  std::int64_t decided = 0;   ///< nanoseconds since 1970
};

enum class QuarantineReason : std::int32_t {
  compile_failed = 1,
  compile_timeout = 2,
  crashed = 3,
  hung = 4,
  wrong = 5,
  launch_failed = 6,
};
std::string_view quarantine_reason_name(QuarantineReason reason);

/// A plan, a variant or a family that must not be tried again. It holds for one compiler identity
/// only, so a new compiler or driver gives it another chance.
struct Quarantine {
  std::string subject;            ///< Plan::text(), Variant::text() or Variant::family_text()
  std::string problem;            ///< Problem::key(); empty: for every problem
  std::string target;             ///< Target::key()
  std::string performance_class;  ///< empty: for every class of the target
  std::string compiler;           ///< Env::compiler at the time
  QuarantineReason reason = QuarantineReason::crashed;
  std::int64_t count = 1;
  std::int64_t first = 0, last = 0;  ///< nanoseconds since 1970; 0: now
  std::string detail;
};

enum class TombstoneKind : std::int32_t {
  trial = 0,     ///< subject: the trial's uuid
  campaign = 1,  ///< subject: the campaign's uuid; takes back a tuning run
  env = 2,       ///< subject: Env::hash(); takes back a machine that measured wrongly
};

/// Takes trials back for ever, in this file and in every file it is merged into.
struct Tombstone {
  TombstoneKind kind = TombstoneKind::trial;
  std::vector<unsigned char> subject;
  std::string reason;
  std::int64_t at = 0;  ///< nanoseconds since 1970; 0: now
};

/// A problem that dispatch had no valid tuned answer for: none, a stale or a borrowed one. Counters
/// only grow, one row a source file, so that merging takes the maximum and counts nothing twice.
struct Miss {
  std::string problem;
  std::string target;
  std::string performance_class;
  std::int64_t calls = 0;
  std::int64_t ns = 0;  ///< estimated time spent in those calls
};

/// Index of compiled code: what the compiler said of it. The code itself is in the CodeStore.
struct Artifact {
  Digest key{};      ///< CodeEntry::key
  Digest content{};  ///< SHA-256 of the code
  std::string target, compiler, flags, log;
  std::int64_t bytes = 0, registers = 0, spills = 0, shared_bytes = 0, compile_ms = 0;
  std::int64_t last_used = 0;  ///< nanoseconds since 1970; 0: now
};

}  // namespace quarterturn
