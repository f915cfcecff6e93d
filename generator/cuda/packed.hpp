// Hopper products of packed weights (templates/cuda/permuted.h) by expanded rows, or by rows in
// bf16: what the families for few and for many tokens share.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/expanded.hpp"

namespace quarterturn::cuda {

// Constants of permuted.h.
constexpr std::int64_t kStripe = 64, kChunk = 128, kChunkBytes = 4096 + 256;

/// Weight-only: A as the caller gives it.
inline bool takes_given(const Problem& p) { return p.op == Op::gemm && p.a_type == DType::bf16; }

/// `a_layout` is the family's.
inline std::string refuse_packed(const Problem& p, const Target& t, Layout a_layout) {
  constexpr std::int64_t longest_int8 = 131072;  // of K before int32 sums of 96 * 96 could overflow
  const bool is_int8 = a_layout == Layout::int8_rows;
  if (t.arch != "sm_90a") return "needs sm_90a (wgmma)";
  if (p.op != Op::gemm) return "multiplies quantised operands: op = gemm";
  const bool given = a_layout == Layout::bf16 && takes_given(p);
  if (p.b_type != DType::mxfp4 || (p.a_type != DType::mxfp4 && !given))
    return a_layout == Layout::bf16 ? "needs B in mxfp4, and A in mxfp4 or bf16 (weight-only)"
                                    : "needs both operands in mxfp4";
  if (p.grouping != Grouping::none || p.batch.hi > 1) return "has no grouped or batched form";
  if (auto reason = refuse_beyond_bias(p); !reason.empty()) return reason;
  if (p.d_layout != Layout::plain) return "writes D row-major";
  if (is_int8 && p.spread == Spread::any)
    return "its window of 4 binades a row is for spread = narrow (rotated forward operands)";
  if (a_layout == Layout::e5m2 && p.contract == Contract::exact)
    return "FP8 accumulation is not contract = exact";
  if (is_int8 && p.k.hi > longest_int8)
    return fmt::format("int32 sums hold K up to {}", longest_int8);
  if (p.k.lo < 1) return "needs k of at least 1";
  if (auto reason = refuse_layout("a_layout", p.a_layout, given ? Layout::plain : a_layout);
      !reason.empty())
    return reason;
  return refuse_layout("b_layout", p.b_layout, Layout::permuted);
}

/// The constants of a kernel's Config that say what A is and what is added to the product.
inline void describe_packed(ConfigText& text, const Problem& p, Layout a_layout) {
  text.constant("qt::cuda::Expanded", "element", element_text(a_layout), "of A");
  text.flag("given_a", takes_given(p), "A is as the caller has it");
  text.constant("float", "a_value", a_layout == Layout::bf16 && !takes_given(p) ? "8.0f" : "1.0f",
                "what an element of A in bf16 stands for");
  text.dimension("k", p.k);
  text.constant("long long", "k_unit", fmt::format("{}", padding_unit(p)), "k is padded to");
  text.epilogue(p);
  text.descale(p);
}

/// A's rows in boxes of 128 bytes by `tokens`.
inline TensorMap a_map_of(const Problem& p, Layout a_layout, const qt_args& args,
                          std::int64_t tokens) {
  auto map = expanded_map(TensorMap::Memory::a_data, a_layout, p, args.a, args.m, args, tokens);
  if (!takes_given(p)) return map;
  map.need = TensorMap::Need::where_aligned;
  map.sizes[0] = static_cast<std::uint64_t>(std::max<std::int64_t>(args.k, 1) * 2);
  map.strides_bytes = {static_cast<std::uint64_t>(args.a.ld) * 2,
                       static_cast<std::uint64_t>(args.a.ld) * 2 * map.sizes[1]};
  return map;
}

}  // namespace quarterturn::cuda
