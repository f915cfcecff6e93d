// What the families of Blackwell's tensor cores have in common: targets, problems, error.
#pragma once

#include <string>

#include "generator/cuda/config_text.hpp"
#include "generator/family.hpp"
#include "generator/quantized_result.hpp"

namespace quarterturn::cuda {

/// mma.sync kind::mxf4 with block scales: features of a chip (a) or its family (f).
inline bool has_mxf4_mma(const Target& t) {
  return t.arch == "sm_120a" || t.arch == "sm_120f" || t.arch == "sm_121a" || t.arch == "sm_121f";
}

/// tcgen05.mma kind::mxf4, tensor memory.
inline bool has_tcgen05(const Target& t) {
  return t.arch == "sm_100a" || t.arch == "sm_100f" || t.arch == "sm_103a" || t.arch == "sm_103f";
}

/// Why a product of operands in layout scales_128x4 is not what `p` asks for; empty when it is.
inline std::string refuse_blocked(const Problem& p, QuantizedCopies copies) {
  if (p.op != Op::gemm && p.op != Op::gemm_quantize)
    return "multiplies quantised operands: op = gemm or gemm_quantize";
  if (p.a_type != DType::mxfp4 || p.b_type != DType::mxfp4) return "needs both operands in mxfp4";
  if (p.grouping != Grouping::none && p.epilogue != Epilogue::none)
    return "has no activation in the epilogue of groups";
  if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
  if (!quantizes_result(p) && p.d_layout != Layout::plain) return "writes D row-major";
  if (auto reason = refuse_quantized_result(p, {Layout::plain, Layout::scales_128x4}, copies);
      !reason.empty())
    return reason;
  if (auto reason = refuse_layout("a_layout", p.a_layout, Layout::scales_128x4); !reason.empty())
    return reason;
  return refuse_layout("b_layout", p.b_layout, Layout::scales_128x4);
}

/// How tensor cores sum is not documented, so this allows what was measured of the generations
/// before: in each step of 32 products, those and the sum so far are cut below the 24th bit of the
/// largest, and the result once more.
inline double blackwell_error(std::int64_t k) {
  return static_cast<double>(ceil_div(k, 32)) * 34 * 0x1p-23 + 6 * 0x1p-24;
}

}  // namespace quarterturn::cuda
