#include "tuner/preparation.hpp"

#include <utility>

namespace quarterturn {

DType source_type(DType type) { return type == DType::mxfp4 ? DType::bf16 : type; }

Problem quantize_problem(const Problem& problem, std::uint32_t which, DType type, Layout layout) {
  const bool is_b = which == 1;
  Problem p;
  p.op = Op::quantize;
  p.role = problem.role;
  p.batch = is_b && problem.grouping != Grouping::none ? problem.groups : problem.batch;
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.d_layout = layout;
  p.rotation = problem.rotation;
  p.signs = problem.signs;
  p.scale_rule = problem.scale_rule;
  p.scale_block = problem.scale_block;
  p.a_rounding = is_b ? problem.b_rounding : problem.a_rounding;
  p.biased = problem.biased;
  p.m = is_b ? problem.n : problem.m;
  p.k = problem.k;
  if ((is_b ? problem.b_major : problem.a_major) == Major::rows) {
    p.copies = Copies::columns;
    std::swap(p.m, p.k);
  }
  return p;
}

Result<std::vector<Preparation>> preparation_of(const Problem& problem, const Target& target,
                                                std::uint32_t which, Layout layout) {
  const DType type = source_type(which == 1 ? problem.b_type : problem.a_type);
  const Problem direct = quantize_problem(problem, which, type, layout);
  auto plan = default_plan(direct, target);
  if (plan.ok()) return std::vector<Preparation>{{direct, std::move(*plan)}};
  const Problem plain = quantize_problem(problem, which, type, Layout::plain);
  Problem pack;
  pack.op = Op::pack;
  pack.role = problem.role;
  pack.batch = plain.batch;
  pack.a_type = pack.d_type = DType::mxfp4;
  pack.a_layout = Layout::plain;
  pack.d_layout = layout;
  pack.rotation = problem.rotation;
  pack.m = which == 1 ? problem.n : problem.m;
  pack.k = problem.k;
  auto first = default_plan(plain, target), second = default_plan(pack, target);
  if (!first.ok() || !second.ok()) return plan.status();
  return std::vector<Preparation>{{plain, std::move(*first)}, {pack, std::move(*second)}};
}

}  // namespace quarterturn
