// Native MXFP4 on Blackwell: which targets and problems the families take, and what plans are made
// of them.
#include <doctest/doctest.h>

#include <algorithm>

#include "generator/cuda/families.hpp"

using namespace quarterturn;

namespace {

Problem product(Op op) {
  Problem p;
  p.op = op;
  p.role = Role::fprop;
  p.m = {1, 4096};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  p.a_type = p.b_type = op == Op::gemm ? DType::mxfp4 : DType::bf16;
  p.d_type = DType::bf16;
  p.rotation = 32;
  return p;
}

// The first plan around a family; empty steps when there is none.
Plan plan_with(const Problem& p, const Target& t, std::string_view family) {
  for (auto& plan : plans(p, t, 2000))
    if (plan.main_step().variant.family == family) return plan;
  return {};
}

void check_native_plans(const char* target, const char* family) {
  const auto t = *parse_target(target);
  INFO(target);
  auto p = product(Op::gemm);
  CHECK(plan_with(p, t, family).steps.size() == 1);
  p.a_layout = p.b_layout = Layout::scales_128x4;
  CHECK(plan_with(p, t, family).steps.size() == 1);
  CHECK(default_plan(p, t)->main_step().variant.family == family);
  p.a_layout = p.b_layout = Layout::plain;
  const auto packed = plan_with(p, t, family);
  REQUIRE(packed.steps.size() == 3);
  CHECK(packed.find(StepKind::pack_b)->variant.family == "cuda_pack");
  CHECK(check_plan(p, t, packed).ok());
  CHECK(step_problem(p, t, packed, StepKind::pack_a).d_layout == Layout::scales_128x4);

  const auto whole = product(Op::hadamard_gemm);
  const auto plan = plan_with(whole, t, family);
  REQUIRE(plan.steps.size() == 3);
  CHECK(check_plan(whole, t, plan).ok());
  CHECK(step_problem(whole, t, plan, StepKind::quantize_a).d_layout == Layout::scales_128x4);
  // It costs least; that it ran on no hardware yet is for the device's proof to settle.
  CHECK(default_plan(whole, t)->main_step().variant.family == family);
  for (const auto& step : plan.steps)
    CHECK(find_family(step.variant.family)->evidence(t) == Family::Evidence::simulated);
}

}  // namespace

TEST_CASE("blackwell.targets have the limits of their chips") {
  for (const auto* name : {"sm_120f", "sm_120a", "sm_121a"}) {
    CHECK(parse_target(name)->shared_bytes == 99 * 1024);
    CHECK(parse_target(name)->key() == name);
  }
  for (const auto* name : {"sm_100f", "sm_100a", "sm_103a"})
    CHECK(parse_target(name)->shared_bytes == 227 * 1024);
}

TEST_CASE("blackwell.plans begin with native products, which nobody has run") {
  for (const auto* name : {"sm_120f", "sm_120a", "sm_121a"})
    check_native_plans(name, "cuda_gemm_sm120");
}

TEST_CASE("blackwell.families refuse what they cannot do, with a reason") {
  const auto refuses = [](const Problem& p, const char* target) {
    return cuda::gemm_sm120().refuses(p, *parse_target(target));
  };
  auto p = product(Op::gemm);
  CHECK(refuses(p, "sm_120f").empty());
  CHECK(refuses(p, "sm_120").find("sm_120f") != std::string::npos);
  CHECK(refuses(p, "sm_90a").find("mma.sync kind::mxf4") != std::string::npos);
  p.a_type = DType::bf16;
  CHECK(refuses(p, "sm_120f") == "needs both operands in mxfp4");
  p = product(Op::gemm);
  p.a_layout = Layout::e5m2;
  CHECK(refuses(p, "sm_120f").find("a_layout = e5m2") != std::string::npos);
  const auto& family = cuda::gemm_sm120();
  const auto t = *parse_target("sm_120f");
  p = product(Op::gemm);
  auto v = family.default_variant(p, t);
  v.values["warps"] = 2;
  CHECK(family.illegal(p, t, v).find("2 warps cannot share a 128 x 128 tile") == 0);
  v.values["warps"] = 8;
  v.values["tile_m"] = v.values["tile_n"] = 256;
  v.values["stages"] = 4;
  CHECK_FALSE(family.illegal(p, t, v).empty());
}
