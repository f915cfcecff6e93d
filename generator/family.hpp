// Family: a kind of kernel. It knows its parameters, which of them are legal for a problem, and how
// to emit the source of a variant. Pure: no device, no files, no clock.
#pragma once

#include <array>
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
#include "templates/args.h"

namespace quarterturn {

/// Compile-time parameters change the source; run-time ones only the launch, and need no compile.
enum class ParameterStage { compile, run };

struct Parameter {
  std::string name;
  std::vector<std::int64_t> values;  ///< candidates for this problem and target, the default first
  ParameterStage stage = ParameterStage::compile;
  std::string meaning;  ///< one phrase for `qturn explain`
};

/// A tiled view of an operand for the Tensor Memory Accelerator: what a GPU back end hands to
/// cuTensorMapEncodeTiled. The innermost dimension comes first. Out-of-bounds elements read as 0.
struct TensorMap {
  enum class Type { u8, bf16, f16, f32 };
  enum class Memory {
    a_data,
    a_scales,
    b_data,
    b_scales,
    c_data,
    d_data,
    d_scales,
    d2_data,
    workspace
  };
  enum class Swizzle { none, b32, b64, b128 };
  /// `where_aligned`: the kernel does without the map, and does not look at it, where the address
  /// or a stride is not a multiple of 16 bytes.
  enum class Need { always, where_aligned };

  Memory memory = Memory::a_data;
  std::int64_t offset_bytes = 0;  ///< from that pointer of qt_args
  Type type = Type::u8;
  Swizzle swizzle = Swizzle::b128;
  Need need = Need::always;
  std::uint32_t rank = 2;
  std::array<std::uint64_t, 5> sizes{};          ///< elements
  std::array<std::uint64_t, 4> strides_bytes{};  ///< of dimensions 1 and up; multiples of 16
  std::array<std::uint32_t, 5> box{};            ///< elements of one load

  bool operator==(const TensorMap&) const = default;
};

/// How a kernel is started. Holds no memory of its own, so that `run` allocates nothing.
/// CPU: `parts` independent pieces, entry(const qt_args*, part). GPU: a grid of blocks; the
/// kernel's parameters are the argument block (`const __grid_constant__ qt_args`), then one `const
/// __grid_constant__` 128-byte tensor map for each of `maps`.
struct Launch {
  std::int64_t parts = 1;
  std::array<std::uint32_t, 3> grid{1, 1, 1};
  std::array<std::uint32_t, 3> block{1, 1, 1};
  std::array<std::uint32_t, 3> cluster{1, 1, 1};
  std::int64_t shared_bytes = 0;  ///< dynamic
  std::array<TensorMap, 6> maps{};
  std::uint32_t map_count = 0;
  /// `early`: reads its weights before the kernel before it in the stream has ended, and waits
  /// itself before it touches anything else.
  enum class Start { in_order, early };
  Start start = Start::in_order;
};

/// A call's sizes, inside the Extents of its Problem.
struct Sizes {
  std::int64_t m = 0, n = 0, k = 0, batch = 1, groups = 1;
};

/// The upper ends of a problem's extents.
inline Sizes most_sizes(const Problem& p) {
  return {p.m.hi, p.n.hi, p.k.hi, p.batch.hi, p.groups.hi};
}

class Family {
 public:
  virtual ~Family() = default;

  virtual std::string_view name() const = 0;
  /// Raised only when parameters change meaning or results; stored plans of another revision do not
  /// match.
  virtual std::int32_t revision() const = 0;
  virtual Vendor vendor() const = 0;

  /// What this project knows of the family on a target: `hardware`, its tests have run there;
  /// `simulated`, it was compiled for the target and executed by simulated primitives alone. On
  /// such a target nothing of the family serves before its device has proved it
  /// (runtime/proofs.hpp).
  /// `documents`: an instruction whose result is known from documents alone decides its bits, so
  /// that nothing but a proof lets it serve, QTURN_UNPROVEN=serve included.
  enum class Evidence { hardware, simulated, documents };
  virtual Evidence evidence(const Target& target) const;

  /// The rounding by an instruction of hardware that this family quantises with; no other does.
  virtual std::optional<Rounding> hardware_rounding() const { return {}; }

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

  /// `args` gives strides and sizes; its pointers may be null (sizing only). `threads`: workers of
  /// a CPU, or units (SM, CU) of a GPU.
  virtual Launch launch(const Problem& problem, const Variant& variant, const qt_args& args,
                        std::int64_t threads) const = 0;

  /// The layouts that this family reads and writes for a variant.
  virtual Layout a_layout(const Problem&, const Variant&) const { return Layout::plain; }
  virtual Layout b_layout(const Problem&, const Variant&) const { return Layout::plain; }

  /// Scratch bytes that the kernel itself needs for sizes up to the problem's extents.
  virtual std::int64_t workspace_bytes(const Problem&, const Variant&, const Sizes&) const {
    return 0;
  }

  /// The exact kernel that must follow a variant which leaves rows out of its window alone; most
  /// families have no window. It reads the same operands.
  virtual std::optional<Variant> stand_in(const Problem&, const Variant&) const { return {}; }

  /// How far a product may lie from the exact one, whatever the data, as a multiple of
  /// |alpha| sum |a b| + |beta c| + |bias|, before D's own rounding. Here: sums in binary32.
  virtual double relative_error(const Problem&, const Variant&, std::int64_t k) const {
    return (static_cast<double>(k) + 8) * 0x1p-24;
  }

  /// A relative cost from an analytic model, to order candidates; smaller is better. Never a
  /// measurement. `units`: threads of a CPU, or units (SM, CU) of a GPU; 0 = not known, and what is
  /// usual is taken, as for defaults, which are the same on all devices of a target.
  virtual double predicted_cost(const Problem& problem, const Target& target,
                                const Variant& variant, std::int64_t units) const = 0;

  /// The first value of every parameter: what runs when nothing is tuned.
  Variant default_variant(const Problem& problem, const Target& target) const;

  /// Every legal variant, in a fixed order, the default first when it is legal.
  std::vector<Variant> variants(const Problem& problem, const Target& target) const;

  /// Checks a variant that came from outside (a database, a flag): names, values, legality.
  Status check(const Problem& problem, const Target& target, const Variant& variant) const;
};

/// Why no kernel of `family` rounds as this step of a plan asks: hardware's roundings belong to
/// families of their own. Empty when it does.
std::string refuse_rounding(const Family& family, const Problem& problem);

/// Why a device of this target has no such rounding, and what has; empty when it has.
std::string refuse_rounding(Rounding rounding, const Target& target);

/// Why a product that adds C and bias, and no more, is not what `problem` asks for: activations,
/// kept pre-activations, C of another type than D's, sums beside it. Empty when it is.
std::string refuse_beyond_bias(const Problem& problem);

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

/// Whether the step that multiplies quantises its D as well: a `gemm_quantize` without a step
/// quantize_d.
bool quantizes_in_product(const Problem& problem, const Plan& plan);

/// Such a plan with a binary32 D and a step that quantises it: the same sums, so the same codes.
/// None where no family quantises so.
std::optional<Plan> with_result_step(const Problem& problem, const Target& target, Plan plan);

/// Where a plan's intermediate operands lie in the caller's workspace, for given sizes.
struct Workspace {
  std::int64_t a_codes = 0, a_scales = 0, b_codes = 0, b_scales = 0, kernel = 0;  ///< byte offsets
  /// Of an operand that is quantised into layout plain and packed from there, A's first, then B's.
  std::int64_t plain_codes = 0, plain_scales = 0;
  std::int64_t result = 0;  ///< of a GEMM before it is quantised: f32, tightly packed
  std::int64_t bytes = 0;
};
Workspace workspace_of(const Problem& problem, const Target& target, const Plan& plan,
                       const Sizes& sizes);

}  // namespace quarterturn
