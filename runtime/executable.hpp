// Executable: a plan whose kernels are loaded. Running it touches nothing but memory of the caller.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "generator/family.hpp"
#include "runtime/backend.hpp"

namespace quarterturn {

/// Immutable and shareable between threads. The tuner and the dispatcher run candidates and winners
/// by this one path, so what was measured is what is served.
class Executable {
 public:
  /// Compiles or finds, and loads, every step. Fails with the first step's reason and its compile
  /// log.
  static Result<std::shared_ptr<const Executable>> build(Backend& backend, const Problem& problem,
                                                         const Plan& plan);

  /// The prebuilt kernels' form of a problem: no compiler involved, slower. `allowed` may turn
  /// plans down; without it all are allowed.
  static Result<std::shared_ptr<const Executable>> prebuilt(
      Backend& backend, const Problem& problem,
      const std::function<bool(const Plan&)>& allowed = {});

  const Problem& problem() const { return problem_; }
  const Plan& plan() const { return plan_; }
  const std::vector<Binary>& binaries() const {
    return binaries_;
  }  ///< one a step; empty when prebuilt

  /// Layouts this plan reads its operands in, and writes its result in.
  Layout a_layout() const { return a_layout_; }
  Layout b_layout() const { return b_layout_; }

  /// The most over the problem's extents, in bytes.
  std::int64_t workspace_bytes() const { return workspace_.bytes; }

  /// Runs all steps. `args` holds this call's sizes (inside the extents), operands with all strides
  /// stated, and at least workspace_bytes() of workspace at a multiple of 64 bytes. `row0_b` is
  /// args.row0 for the rows of B. Never allocates, loads, locks or reads a file.
  Status run(const qt_args& args, void* stream, std::int64_t row0_b = 0) const;

  /// Rows that its kernels have computed outside their windows, since they were loaded.
  Result<std::uint64_t> window_fallbacks() const;

  bool is_prebuilt() const { return prebuilt_; }

 private:
  struct LoadedStep {
    StepKind kind;
    const Family* family;
    Variant variant;
    Problem problem;
    std::shared_ptr<const Kernel> kernel;
  };

  /// All that launches depend on: a call's sizes and strides.
  using Shape = std::array<long long, 33>;
  static Shape shape_of(const qt_args& args);

  static std::shared_ptr<Executable> outline(const Backend& backend, const Problem& problem,
                                             Plan plan, const Target& target);
  qt_args step_args(const LoadedStep& step, const qt_args& args, std::int64_t row0_b) const;

  Problem problem_;
  Plan plan_;
  Target target_;
  const Backend* backend_ = nullptr;
  std::vector<LoadedStep> steps_;
  std::vector<Binary> binaries_;
  Layout a_layout_ = Layout::plain, b_layout_ = Layout::plain;
  Layout a_packed_ = Layout::plain, b_packed_ = Layout::plain;  ///< of intermediate copies
  Workspace workspace_;  ///< offsets for the extents' upper ends serve every size below
  std::int64_t padding_ = 32;
  bool prebuilt_ = false;

  // The launches of the last shape: working them out costs more than the driver takes to start
  // them. A thread that finds them taken by another works out its own.
  mutable std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
  mutable Shape shape_{};
  mutable std::vector<Launch> launches_;  ///< one a step; sized when built
  // Of the last call, too: what its steps were given.
  mutable qt_args args_{};
  mutable std::int64_t row0_b_ = 0;
  mutable std::vector<qt_args> step_args_;  ///< one a step; sized when built
};

}  // namespace quarterturn
