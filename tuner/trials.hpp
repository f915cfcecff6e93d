// Trials: admits and times the plans of one problem on one device. In this process, or in another
// by trial_process.hpp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tuner/admission.hpp"
#include "tuner/measure.hpp"

namespace quarterturn {

/// The run-time sizes that stand for a problem's range: its upper end, and for wide ranges its
/// middle (by ratio) and its lower end. All count the same.
std::vector<Sizes> representative_sizes(const Problem& problem);
/// "m=16 n=4096 k=14336"
std::string text(const Sizes& sizes);
/// Whether its calls do nothing, whatever they are given.
inline bool has_no_rows(const Problem& problem) { return problem.m.hi == 0; }
/// Floating-point operations of one call, 2 m n k; 0 for ops with one operand.
double operations(const Problem& problem, const Sizes& sizes);
/// Bytes one call must at least read and write, operands in the layouts that the problem states.
double least_traffic(const Problem& problem, const Sizes& sizes);

/// How many copies of the operands a timing rotates through: more than twice the last-level cache,
/// within a cap, as caches of hundreds of megabytes are shared by many.
struct Rotation {
  std::size_t copies = 1;
  std::int64_t bytes_of_call = 0;
  std::int64_t wanted_bytes = 0;  ///< twice the last-level cache
  std::int64_t most_bytes = 0;
  std::string text() const;  ///< "8 copies, 248 of 960 MiB"
};
Rotation rotation_for(const DeviceInfo& device, std::int64_t bytes_of_call);
/// The "l3=" of a performance class, else its "l2="; 0 when it has neither.
std::int64_t last_level_cache(std::string_view performance_class);

/// Candidates are named by their index in the order of `add`.
class TrialRunner : public Subject {
 public:
  virtual std::size_t add(const Plan& plan) = 0;
  /// Many calls are started as recordings of this many.
  static constexpr std::int64_t kUnrolled = 64;
  std::int64_t rounded(std::int64_t repeats) const override {
    return repeats < kUnrolled ? repeats : round_up(repeats, kUnrolled);
  }
  virtual Verdict admit(std::size_t candidate, Depth depth) = 0;
  /// How the last timing rotated its buffers, for records.
  virtual std::string rotation() const = 0;
  /// The text of an admitted plan that a later admission disproved; empty when there is none.
  virtual std::string disproved() const = 0;
};

class LocalTrials : public TrialRunner {
 public:
  /// `data`: what A holds while kernels are timed; null = the role's profile.
  LocalTrials(Backend& backend, Problem problem, std::shared_ptr<const Captured> data = {});

  std::size_t add(const Plan& plan) override;
  /// A plan that is loaded already.
  std::size_t add(std::shared_ptr<const Executable> executable);
  Verdict admit(std::size_t candidate, Depth depth = Depth::whole) override;
  std::size_t sizes() const override { return sizes_.size(); }
  Status ready(std::size_t candidate) override;
  Result<double> run(std::size_t candidate, std::size_t size, std::int64_t repeats) override;
  std::string rotation() const override { return rotation_; }
  std::string disproved() const override { return admission_.disproved(); }

  Result<std::shared_ptr<const Executable>> executable(std::size_t candidate);
  /// Seconds of one call whose rows all leave the window of a plan that has one, so that its
  /// stand-in computes everything; 0 for other plans, whose time does not depend on the data.
  Result<double> worst(std::size_t candidate);
  /// Spent so far on making inputs and moving them to the device.
  double data_seconds() const { return data_seconds_ + admission_.data_seconds(); }

 private:
  struct Candidate {
    Plan plan;
    std::shared_ptr<const Executable> executable;
    std::vector<qt_args> calls;
    std::vector<std::unique_ptr<Recording>> recordings;  ///< of all calls in turn, by size
    std::size_t next = 0;
  };

  Recording* recorded(Candidate& one, std::size_t size);
  Status make_instance();
  bool has_timed_sizes(const Instance* instance) const;
  Status make_calls(const Executable& executable, std::vector<qt_args>& calls);

  Backend& backend_;
  Problem problem_;
  std::shared_ptr<const Captured> data_;
  std::vector<Sizes> sizes_;
  Admission admission_;
  std::vector<Candidate> candidates_;
  std::unique_ptr<Instance> own_instance_, own_worst_;
  Instance* instance_ = nullptr;                                     ///< that, or the admission's
  std::map<std::pair<Layout, Layout>, std::vector<qt_args>> calls_;  ///< by the layouts of A and B
  std::int64_t workspace_moves_ = -1;
  double data_seconds_ = 0;
  std::unique_ptr<Stopwatch> stopwatch_;
  std::string rotation_;
};

}  // namespace quarterturn
