// The vocabulary of a Problem: every enumeration with the one spelling used in keys, files and
// flags.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace quarterturn {

enum class Op {
  quantize,
  gemm,
  hadamard_gemm,
  gemm_quantize,
  dequantize,
  hadamard,
  pack,
  column_sums
};
/// Which GEMM of a linear layer: Fprop Y = X W^T, Dgrad dX = dY W, Wgrad dW = dY^T X.
enum class Role { none, fprop, dgrad, wgrad };
enum class DType { none, bf16, f16, f32, mxfp4 };
/// How codes and scales lie in memory (see layout.hpp). `chosen` in a Problem: prepare picks and
/// returns it.
enum class Layout {
  chosen,
  plain,
  scales_128x4,
  aiter,
  e5m2,
  int8_rows,
  int8_blocks,
  panel16,
  permuted,
  bf16,
  aiter_16x16
};
/// Which axis of a high-precision [rows, K] operand is contiguous in memory.
enum class Major { k, rows };
enum class ScaleRule { floor, even, rceil, ceil, ts34, quest, quest_qutlass, search };
enum class ScaleBlock { b1x32, b32x32 };
/// `sr_cvt_rs` and `sr_cvt_scalef32` are what instructions of that name do with the noise: cvt.rs
/// of sm_100a and sm_103a, v_cvt_scalef32_sr_pk_fp4_f32 of gfx950.
enum class Rounding { rne, sr16, sr22, sr8, half_away, half_to_zero, sr_cvt_rs, sr_cvt_scalef32 };
enum class Signs { none, fixed, per_call };
/// Which quantised copies one pass over X [R, C] writes: along rows (of X), along columns (of X^T),
/// or both.
enum class Copies { rows, columns, both };
/// What becomes of z = alpha A B^T + beta C + bias. `swiglu_split` reads gates from the first half
/// of the columns and values from the second, `swiglu_interleaved` from even and odd ones. The
/// derivatives multiply z by the activation's at `aux`; `dswiglu` is the split form.
enum class Epilogue {
  none,
  gelu,
  gelu_tanh,
  swiglu_split,
  swiglu_interleaved,
  dgelu,
  dgelu_tanh,
  dswiglu,
  dswiglu_interleaved
};
/// Whether an activation's argument z is a second result, for the backward pass.
enum class PreActivation { dropped, kept };
/// Column sums of a gradient as it is stored, beside what the op computes.
enum class BiasGradient { none, f32 };
/// What `quantize` applies to X before it rotates: RMSNorm along its rows, or SwiGLU of pairs of
/// its columns.
enum class Prologue { none, rmsnorm, swiglu_split, swiglu_interleaved };
enum class Bias { none, per_column };
/// `overwrite`: D = alpha A B^T; `accumulate`: D = alpha A B^T + beta C.
enum class Accumulate { overwrite, accumulate };
enum class Grouping { none, m_contiguous, m_masked, k_grouped };
enum class Contract { exact, fast };
enum class Spread { any, narrow };
enum class Reproducibility { any, run_to_run, batch_invariant };
/// Stochastic rounding under a scale rule that clips is biased: refused unless the caller allows
/// it.
enum class BiasedRounding { refused, allowed };

template <class E>
struct EnumNames;

#define QTURN_ENUM_NAMES(E, ...)                                                  \
  template <>                                                                     \
  struct EnumNames<E> {                                                           \
    static constexpr auto names = std::to_array<std::string_view>({__VA_ARGS__}); \
  }

QTURN_ENUM_NAMES(Op, "quantize", "gemm", "hadamard_gemm", "gemm_quantize", "dequantize", "hadamard",
                 "pack", "column_sums");
QTURN_ENUM_NAMES(Role, "none", "fprop", "dgrad", "wgrad");
QTURN_ENUM_NAMES(DType, "none", "bf16", "f16", "f32", "mxfp4");
QTURN_ENUM_NAMES(Layout, "chosen", "plain", "128x4", "aiter", "e5m2", "int8_rows", "int8_blocks",
                 "panel16", "permuted", "bf16", "aiter_16x16");
QTURN_ENUM_NAMES(Major, "k", "rows");
QTURN_ENUM_NAMES(ScaleRule, "floor", "even", "rceil", "ceil", "ts34", "quest", "quest_qutlass",
                 "search");
QTURN_ENUM_NAMES(ScaleBlock, "1x32", "32x32");
QTURN_ENUM_NAMES(Rounding, "rne", "sr16", "sr22", "sr8", "half_away", "half_to_zero", "sr_cvt_rs",
                 "sr_cvt_scalef32");
QTURN_ENUM_NAMES(Signs, "none", "fixed", "per_call");
QTURN_ENUM_NAMES(Copies, "rows", "columns", "both");
QTURN_ENUM_NAMES(Epilogue, "none", "gelu", "gelu_tanh", "swiglu_split", "swiglu_interleaved",
                 "dgelu", "dgelu_tanh", "dswiglu", "dswiglu_interleaved");
QTURN_ENUM_NAMES(PreActivation, "dropped", "kept");
QTURN_ENUM_NAMES(BiasGradient, "none", "f32");
QTURN_ENUM_NAMES(Prologue, "none", "rmsnorm", "swiglu_split", "swiglu_interleaved");
QTURN_ENUM_NAMES(Bias, "none", "per_column");
QTURN_ENUM_NAMES(Accumulate, "overwrite", "accumulate");
QTURN_ENUM_NAMES(Grouping, "none", "m_contiguous", "m_masked", "k_grouped");
QTURN_ENUM_NAMES(Contract, "exact", "fast");
QTURN_ENUM_NAMES(Spread, "any", "narrow");
QTURN_ENUM_NAMES(Reproducibility, "any", "run_to_run", "batch_invariant");
QTURN_ENUM_NAMES(BiasedRounding, "refused", "allowed");
#undef QTURN_ENUM_NAMES

/// The value's spelling in keys, files and flags.
template <class E>
constexpr std::string_view name_of(E value) {
  const auto index = static_cast<std::size_t>(value);
  return index < EnumNames<E>::names.size() ? EnumNames<E>::names[index] : "?";
}

template <class E>
constexpr std::optional<E> parse_enum(std::string_view text) {
  for (std::size_t i = 0; i < EnumNames<E>::names.size(); ++i)
    if (EnumNames<E>::names[i] == text) return static_cast<E>(i);
  return std::nullopt;
}

/// "floor, even, rceil, ...": the allowed spellings, for messages.
template <class E>
std::string allowed_names() {
  std::string out;
  for (const auto name : EnumNames<E>::names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace quarterturn
