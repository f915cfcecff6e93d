// Family: a kind of kernel. It knows its parameters, which of them are legal for a problem, and how
// to emit the source of a variant. Pure: no device, no files, no clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/layout.hpp"
#include "generator/problem.hpp"
#include "generator/source.hpp"
#include "generator/target.hpp"
#include "generator/variant.hpp"

namespace quarterturn {

/// Compile-time parameters change the source; run-time ones only the launch, and need no compile.
enum class ParameterStage { compile, run };

struct Parameter {
  std::string name;
  std::vector<std::int64_t> values;  ///< candidates for this problem and target, the default first
  ParameterStage stage = ParameterStage::compile;
  std::string meaning;  ///< one phrase for `qturn explain`
};

/// How a kernel is started. CPU: `parts` independent pieces, entry(const qt_args*, part).
/// GPU: a grid of blocks, with the argument block as the one kernel parameter (and tensor maps
/// behind it).
struct Launch {
  std::int64_t parts = 1;
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t block[3] = {1, 1, 1};
  std::uint32_t cluster[3] = {1, 1, 1};
  std::int64_t shared_bytes = 0;
};

/// A call's sizes, inside the Extents of its Problem.
struct Sizes {
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
};

class Family {
 public:
  virtual ~Family() = default;

  virtual std::string_view name() const = 0;
  /// Raised only when parameters change meaning or results; stored plans of another revision do not
  /// match.
  virtual std::int32_t revision() const = 0;
  virtual Vendor vendor() const = 0;

  /// Why this family cannot compute `problem` on `target` at all; empty when it can.
  virtual std::string refuses(const Problem& problem, const Target& target) const = 0;

  /// The axes of this family's space for a problem it does not refuse.
  virtual std::vector<Parameter> parameters(const Problem& problem, const Target& target) const = 0;

  /// Why these values do not go together ("needs 3 stages to hide TMA latency"); empty when they
  /// do.
  virtual std::string illegal(const Problem& problem, const Target& target,
                              const Variant& variant) const = 0;

  virtual Source emit(const Problem& problem, const Target& target,
                      const Variant& variant) const = 0;

  /// `threads`: workers of a CPU, or units (SM, CU) of a GPU.
  virtual Launch launch(const Problem& problem, const Variant& variant, const Sizes& sizes,
                        std::int64_t threads) const = 0;

  /// The layouts that this family reads and writes for a variant.
  virtual Layout a_layout(const Problem&, const Variant&) const { return Layout::plain; }
  virtual Layout b_layout(const Problem&, const Variant&) const { return Layout::plain; }

  /// Scratch bytes that the kernel itself needs for sizes up to the problem's extents.
  virtual std::int64_t workspace_bytes(const Problem&, const Variant&, const Sizes&) const {
    return 0;
  }

  /// A relative cost from an analytic model, to order candidates; smaller is better. Never a
  /// measurement.
  virtual double predicted_cost(const Problem& problem, const Target& target,
                                const Variant& variant) const = 0;

  /// The first value of every parameter: what runs when nothing is tuned.
  Variant default_variant(const Problem& problem, const Target& target) const;

  /// Every legal variant, in a fixed order, the default first when it is legal.
  std::vector<Variant> variants(const Problem& problem, const Target& target) const;

  /// Checks a variant that came from outside (a database, a flag): names, values, legality.
  Status check(const Problem& problem, const Target& target, const Variant& variant) const;
};

/// Every family, in a fixed order; and by name (null when unknown).
std::span<const Family* const> families();
const Family* find_family(std::string_view name);

/// The problem that one step of a plan solves: "quantise A of this hadamard_gemm into int8_blocks",
/// ...
Problem step_problem(const Problem& problem, const Target& target, const Plan& plan, StepKind kind);

/// Every plan for a problem on a target, the default first. `limit` bounds the product of step
/// spaces: when it is reached, each step varies with the others at their defaults.
std::vector<Plan> plans(const Problem& problem, const Target& target, std::size_t limit);

/// The heuristic's plan: each step's default. Fails with the reasons of all families when there is
/// none.
Result<Plan> default_plan(const Problem& problem, const Target& target);

/// Checks a plan that came from outside against the families and the problem.
Status check_plan(const Problem& problem, const Target& target, const Plan& plan);

/// Where a plan's intermediate operands lie in the caller's workspace, for given sizes.
struct Workspace {
  std::int64_t a_codes = 0, a_scales = 0, b_codes = 0, b_scales = 0, kernel = 0;  ///< byte offsets
  std::int64_t bytes = 0;
};
Workspace workspace_of(const Problem& problem, const Target& target, const Plan& plan,
                       const Sizes& sizes);

}  // namespace quarterturn
