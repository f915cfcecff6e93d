// Variant: a kernel family and a value for each of its parameters. It names itself and is never an
// index.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/status.hpp"

namespace quarterturn {

struct Variant {
  std::string family;         ///< "cpu_gemm"
  std::int32_t revision = 0;  ///< the family's revision that gave the parameters meaning
  std::map<std::string, std::int64_t> values;  ///< by parameter name, so the text is canonical

  bool operator==(const Variant&) const = default;
  auto operator<=>(const Variant&) const = default;

  /// A parameter's value; `fallback` where the variant does not state it.
  std::int64_t value(const std::string& name, std::int64_t fallback = 0) const;

  /// "cpu_gemm/1{tile_m=8,tile_n=32}"
  std::string text() const;
  /// "cpu_gemm/1": what is known of all its variants is kept under this name.
  std::string family_text() const;
};

Result<Variant> parse_variant(std::string_view text);

/// The kernels that together solve a Problem, in the order in which they run.
/// `stand_in` computes exactly what the GEMM before it had to leave alone; `quantize_d` quantises a
/// GEMM's binary32 result; `bias_gradient` sums the stored A's columns, reading it once more.
enum class StepKind {
  quantize_a,
  quantize_b,
  pack_a,
  pack_b,
  gemm,
  whole,
  stand_in,
  quantize_d,
  bias_gradient
};

struct Step {
  StepKind kind = StepKind::whole;
  Variant variant;

  bool operator==(const Step&) const = default;
};

struct Plan {
  std::vector<Step> steps;

  bool operator==(const Plan&) const = default;

  /// "quantize_a=cpu_quantize/1{...};gemm=cpu_gemm/1{...}": the text that databases and lock files
  /// hold.
  std::string text() const;
  const Step* find(StepKind kind) const;
  /// The step whose kernel decides the operands' layouts: the GEMM, or the only one.
  const Step& main_step() const;
};

Result<Plan> parse_plan(std::string_view text);

std::string_view step_name(StepKind kind);

}  // namespace quarterturn
