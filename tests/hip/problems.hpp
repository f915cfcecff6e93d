// Problems that the HIP families are compiled and executed for.
#pragma once

#include "generator/problem.hpp"

namespace qturn_test {

using namespace quarterturn;

inline Problem gemm_problem(Extent m, Extent n, Extent k, DType d_type) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.m = m;
  p.n = n;
  p.k = k;
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = d_type;
  return p;
}

inline Problem quantize_problem(Extent m, Extent k, DType type, std::int32_t g, ScaleRule rule,
                                Rounding rounding, Copies copies) {
  Problem p;
  p.op = Op::quantize;
  p.m = m;
  p.k = k;
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.rotation = g;
  p.signs = g > 0 ? Signs::per_call : Signs::none;
  p.scale_rule = rule;
  p.a_rounding = rounding;
  p.biased = BiasedRounding::allowed;
  p.copies = copies;
  return p;
}

}  // namespace qturn_test
