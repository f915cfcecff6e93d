// Hopper products of packed weights (templates/cuda/permuted.h) by expanded rows: what the families
// for few and for many tokens share.
#pragma once

#include <fmt/format.h>

#include <string>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/expanded.hpp"

namespace quarterturn::cuda {

// Constants of permuted.h.
constexpr std::int64_t kStripe = 64, kChunk = 128, kChunkBytes = 4096 + 256;

/// `a_layout` is the family's.
inline std::string refuse_packed(const Problem& p, const Target& t, Layout a_layout) {
  constexpr std::int64_t longest_int8 = 131072;  // of K before int32 sums of 96 * 96 could overflow
  const bool is_int8 = a_layout == Layout::int8_rows;
  if (t.arch != "sm_90a") return "needs sm_90a (wgmma)";
  if (p.op != Op::gemm) return "multiplies quantised operands: op = gemm";
  if (p.a_type != DType::mxfp4 || p.b_type != DType::mxfp4) return "needs both operands in mxfp4";
  if (p.grouping != Grouping::none || p.batch.hi > 1) return "has no grouped or batched form";
  if (p.epilogue != Epilogue::none) return "has no activation in its epilogue";
  if (p.accumulate != Accumulate::overwrite) return "does not add to C";
  if (p.d_layout != Layout::plain) return "writes D row-major";
  if (is_int8 && p.spread == Spread::any)
    return "its window of 4 binades a row is for spread = narrow (rotated forward operands)";
  if (!is_int8 && p.contract == Contract::exact) return "FP8 accumulation is not contract = exact";
  if (is_int8 && p.k.hi > longest_int8)
    return fmt::format("int32 sums hold K up to {}", longest_int8);
  if (p.k.lo < 1) return "needs k of at least 1";
  if (auto reason = refuse_layout("a_layout", p.a_layout, a_layout); !reason.empty()) return reason;
  return refuse_layout("b_layout", p.b_layout, Layout::permuted);
}

}  // namespace quarterturn::cuda
