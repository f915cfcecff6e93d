// Problem: what to compute, as one value that prints, parses, hashes and compares.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "generator/enums.hpp"
#include "generator/status.hpp"

namespace quarterturn {

/// A dimension's values: static (lo == hi) is a constant of the emitted source, else it is given at
/// run.
struct Extent {
  std::int64_t lo = 0;
  std::int64_t hi = 0;

  static Extent exactly(std::int64_t value) { return {value, value}; }
  bool is_static() const { return lo == hi; }
  bool contains(std::int64_t value) const { return lo <= value && value <= hi; }
  bool operator==(const Extent&) const = default;
};

// Every field of a Problem: X(type, name, default). This one list gives the struct, its key, its
// parser and its comparison; a field at its default is left out of the key, so a new field with a
// default that means "as before" keeps every stored key valid.
#define QTURN_PROBLEM_FIELDS(X)                            \
  X(Op, op, Op::gemm)                                      \
  X(Role, role, Role::none)                                \
  X(Extent, m, Extent{})                                   \
  X(Extent, n, Extent{})                                   \
  X(Extent, k, Extent{})                                   \
  X(Extent, batch, Extent::exactly(1))                     \
  X(Grouping, grouping, Grouping::none)                    \
  X(Extent, groups, Extent::exactly(1))                    \
  X(DType, a_type, DType::none)                            \
  X(DType, b_type, DType::none)                            \
  X(DType, d_type, DType::none)                            \
  X(DType, c_type, DType::none)                            \
  X(Major, a_major, Major::k)                              \
  X(Major, b_major, Major::k)                              \
  X(Layout, a_layout, Layout::chosen)                      \
  X(Layout, b_layout, Layout::chosen)                      \
  X(Layout, d_layout, Layout::plain)                       \
  X(Copies, copies, Copies::rows)                          \
  X(std::int32_t, rotation, 0)                             \
  X(Signs, signs, Signs::none)                             \
  X(ScaleRule, scale_rule, ScaleRule::rceil)               \
  X(ScaleBlock, scale_block, ScaleBlock::b1x32)            \
  X(Rounding, a_rounding, Rounding::rne)                   \
  X(Rounding, b_rounding, Rounding::rne)                   \
  X(Rounding, d_rounding, Rounding::rne)                   \
  X(BiasedRounding, biased, BiasedRounding::refused)       \
  X(Epilogue, epilogue, Epilogue::none)                    \
  X(PreActivation, pre_activation, PreActivation::dropped) \
  X(Bias, bias, Bias::none)                                \
  X(BiasGradient, bias_gradient, BiasGradient::none)       \
  X(Prologue, prologue, Prologue::none)                    \
  X(Accumulate, accumulate, Accumulate::overwrite)         \
  X(Contract, contract, Contract::exact)                   \
  X(Spread, spread, Spread::any)                           \
  X(Reproducibility, repro, Reproducibility::run_to_run)

/// GEMM ops: A is [m, k], B is [n, k], z = alpha A B^T + beta C + bias is [m, n], contraction along
/// k; D is z, or what the epilogue makes of it: [m, n / 2] of SwiGLU and [m, 2 n] of its
/// derivative. C, bias, aux and a kept z are of `c_type`; none: of D's type, or f32 where D is
/// MXFP4. `gemm_quantize` quantises D as `quantize` would, by d_rounding; high-precision operands
/// are quantised before as in `hadamard_gemm`, and rotation, signs and scale rule are those of all.
/// `quantize`, `dequantize`, `hadamard`: X is the A operand, [m, k]; n is 0. With `copies` rows,
/// blocks and rotation run along k; with columns, the result is X^T [k, m] quantised along m
/// (a_major stays k). A high-precision operand with major `rows` is stored as its transpose [k,
/// rows], row-major. b_type mxfp4 in `hadamard_gemm` is a prepared weight; a_type bf16/f16 with
/// b_type mxfp4 in `gemm` is weight-only. `pack` moves MXFP4 codes and scales of operand A [m, k]
/// from a_layout to d_layout. `column_sums` adds the rows of X up: D is [1, k] f32. With a SwiGLU
/// prologue `quantize` reads X [m, 2 k]; with RMSNorm, weights [k] of X's type.
///
/// `grouping` (a mixture of experts; batch is then 1, group sizes are in device memory):
///   m_contiguous  A [m, k] and D [m, n] hold the groups' rows behind each other, B is
///                 [groups, n, k]
///   m_masked      A [groups, m, k], B [groups, n, k], D [groups, m, n], of which each group uses
///                 its first rows
///   k_grouped     tokens are contracted: A [m, k], B [n, k], D [groups, m, n]; in quantised copies
///                 every group is padded (grouping.hpp). In `quantize` it divides the rows of X for
///                 the column copy.
struct Problem {
#define X(type, name, value) type name = value;
  QTURN_PROBLEM_FIELDS(X)
#undef X

  bool operator==(const Problem&) const = default;

  /// Canonical text, the same bytes in every process and locale: "op=gemm m=1..16 n=4096 ...".
  std::string key() const;
};

/// Reads what Problem::key printed. An unknown field or value is an error (a newer writer), not
/// ignored.
Result<Problem> parse_problem(std::string_view key);

/// parse_problem for many keys in a row: what a key has in common with the one before is not read
/// again.
class ProblemReader {
 public:
  Result<Problem> read(std::string_view key);

 private:
  bool read_changes(std::string_view key);

  std::string last_;
  Problem problem_;  ///< that last_ names
};

/// Whether the problem makes sense on any machine: sizes, divisibility, rotation, rounding rules.
/// The message names the field, what was given and what is allowed.
Status validate(const Problem& problem);

/// True for rules that can push an element beyond the largest code, 6.
bool clips(ScaleRule rule);
/// Of two operands.
bool multiplies(Op op);
/// An epilogue that reads `aux`.
bool is_derivative(Epilogue epilogue);
/// SwiGLU, whose gates and values are columns of z.
bool is_gated(Epilogue epilogue);
/// Columns of D, and of aux (0: none is read), for n columns of z.
std::int64_t output_columns(Epilogue epilogue, std::int64_t n);
std::int64_t aux_columns(Epilogue epilogue, std::int64_t n);
/// Of C, bias, aux and a kept pre-activation.
DType side_type(const Problem& problem);
/// Columns of X where `quantize` gives k.
std::int64_t input_columns(Prologue prologue, std::int64_t k);
bool is_stochastic(Rounding rounding);
/// By an instruction that some devices have.
bool is_of_hardware(Rounding rounding);

/// The length, in elements, to which a run-time contraction axis is zero-padded inside a quantised
/// copy.
std::int64_t padding_unit(const Problem& problem);

/// Bytes of one element of a high-precision type.
std::int64_t bytes_of(DType type);

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit;
}

}  // namespace quarterturn
