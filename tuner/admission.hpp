// Admission: whether a plan computes what the contract says, before anybody times or serves it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/executable.hpp"
#include "tuner/instance.hpp"
#include "tuner/oracle.hpp"

namespace quarterturn {

/// What was proved, in numbers.
struct Certificate {
  double max_error = 0;          ///< largest |output - oracle| over its bound
  std::int64_t outputs = 0;      ///< compared with the scalar reference
  std::int64_t all_outputs = 0;  ///< compared with a plan that the reference admitted
  std::int64_t code_rows = 0;    ///< quantised rows compared bit for bit
  double bias_z = 0;  ///< largest |z| of the unbiasedness test; 0 where nothing is stochastic
  std::int64_t repeatable = -1;  ///< 1: two runs gave the same bits; -1: not compared
  bool whole = true;             ///< false: of large results only sampled rows were read

  /// "max_error=0.2 outputs=4160 ...": the form that databases hold.
  std::string text() const;
};

struct Verdict {
  Status status;  ///< ok: admitted; rejected: the reason; others: it could not be tried
  Certificate certificate;
};

/// How much of large results is read. `sampled`: edge and random rows, once, for candidates that
/// may still lose the race. `whole`: every output for these inputs, twice, the inputs afterwards,
/// and samples for the other inputs, for what may be stored. Small results are always read whole.
enum class Depth { sampled, whole };

/// Tries plans of one problem on one device, in this process: run it where a crash costs little.
/// Inputs and oracles are made once and serve every plan.
class Admission {
 public:
  Admission(Backend& backend, Problem problem);
  ~Admission();

  Verdict admit(const Executable& executable, Depth depth = Depth::whole);

  /// The inputs of the role's own kind, once a plan was admitted; null before. They serve timings,
  /// too, where the sizes are the same.
  Instance* first_instance() const;
  /// The inputs made to leave every window, likewise.
  Instance* edge_instance() const;
  /// Spent so far on inputs and on what the reference says of them.
  double data_seconds() const { return data_seconds_; }

  /// The text of an admitted plan that a later one disproved; empty when there is none.
  const std::string& disproved() const { return disproved_; }

  /// The sizes that are tried: of the run-time axis a few small ones, of others the constants.
  static std::vector<Sizes> sizes_for(const Problem& problem);

 private:
  struct Case;
  Status prepare_cases();
  Status prepare_samples(Case& one, std::int64_t columns);
  Status run_case(Case& one, const Executable& executable, Depth depth, Certificate& certificate);
  Status check_outputs(Case& one, Certificate& certificate);
  Status check_all(Case& one, Certificate& certificate);
  Status check_steps(Case& one, const Executable& executable, Certificate& certificate);
  Status check_rows(Case& one, std::uint32_t which, const unsigned char* codes,
                    const unsigned char* scales, Layout layout, Certificate& certificate);
  Status check_beside(Case& one, Certificate& certificate);
  Status read_unquantized(Case& one, const Plan& plan);
  Status compute_unquantized(Case& one, const Plan& plan);
  Status check_quantized_product(Case& one, const Executable& executable, Certificate& certificate);
  Status check_quantized_result(Case& one, Certificate& certificate);
  Status check_elements(Case& one, Certificate& certificate);

  Backend& backend_;
  Problem problem_;
  Problem product_;  ///< of gemm_quantize: with a binary32 result
  Target target_;
  std::vector<std::unique_ptr<Case>> cases_;
  /// Of the last plan whose product quantises D: that plan with a binary32 D.
  std::shared_ptr<const Executable> unquantized_;
  std::string admitted_, disproved_;
  double data_seconds_ = 0;
};

}  // namespace quarterturn
