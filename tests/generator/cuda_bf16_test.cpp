// Which plans and operands Hopper's products in bf16 have: exact ones of any spread, and those of
// activations as they are.
#include <doctest/doctest.h>

#include "generator/cuda/families.hpp"

using namespace quarterturn;

namespace {

Target hopper() { return *parse_target("sm_90a"); }

Problem linear(Role role) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = role;
  p.rotation = 32;
  p.a_type = p.b_type = DType::bf16;
  p.d_type = DType::f32;
  p.m = {1, 8192};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  if (role == Role::dgrad) p.b_major = Major::rows;
  if (role == Role::wgrad) {
    p.a_major = p.b_major = Major::rows;
    p.m = Extent::exactly(4096);
    p.k = {0, 8191};
  }
  return p;
}

Problem weight_only(std::int64_t tokens) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.a_type = p.d_type = DType::bf16;
  p.b_type = DType::mxfp4;
  p.m = {1, tokens};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  return p;
}

}  // namespace

TEST_CASE("exact products of any spread run on Hopper's tensor cores, each operand in one pass") {
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad})
    for (const auto rounding : {Rounding::rne, Rounding::sr16}) {
      auto p = linear(role);
      p.a_rounding = p.b_rounding = rounding;
      const auto plan = default_plan(p, hopper());
      REQUIRE_MESSAGE(plan.ok(), plan.status().message());
      INFO(plan->text());
      REQUIRE(plan->steps.size() == 3);
      CHECK(plan->steps[0].kind == StepKind::quantize_a);
      CHECK(plan->steps[1].kind == StepKind::quantize_b);
      CHECK(plan->steps[2].variant.family == "cuda_gemm_bf16");
      const auto a = step_problem(p, hopper(), *plan, StepKind::quantize_a);
      CHECK(a.d_layout == Layout::bf16);
      CHECK(a.copies == (role == Role::wgrad ? Copies::columns : Copies::rows));
    }
}

TEST_CASE("weight-only products on Hopper keep weights packed and activations as they are") {
  for (const auto& [tokens, family] : {std::pair{8, "cuda_gemm_packed_bf16"},
                                       {64, "cuda_gemm_packed_bf16"},
                                       {256, "cuda_gemm_packed_tiles_bf16"},
                                       {8192, "cuda_gemm_packed_tiles_bf16"}}) {
    const auto p = weight_only(tokens);
    const auto plan = default_plan(p, hopper());
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    REQUIRE(plan->steps.size() == 1);
    const Variant& gemm = plan->steps[0].variant;
    CHECK(gemm.family == family);
    CHECK(find_family(gemm.family)->a_layout(p, gemm) == Layout::plain);
    CHECK(find_family(gemm.family)->b_layout(p, gemm) == Layout::permuted);
    CHECK_FALSE(find_family(gemm.family)->stand_in(p, gemm));
  }
}

TEST_CASE("what weight-only products refuse, they say") {
  const auto refusal = [](const Family& family, auto change) {
    auto p = weight_only(64);
    change(p);
    return family.refuses(p, hopper());
  };
  for (const Family* family : {&cuda::gemm_packed_bf16(), &cuda::gemm_packed_tiles_bf16()}) {
    CHECK(refusal(*family, [](Problem&) {}).empty());
    CHECK(refusal(*family, [](Problem& p) { p.accumulate = Accumulate::accumulate; }).empty());
    CHECK(refusal(*family, [](Problem& p) { p.a_type = DType::f16; }) ==
          "needs B in mxfp4, and A in mxfp4 or bf16 (weight-only)");
    CHECK(refusal(*family, [](Problem& p) { p.b_layout = Layout::plain; }) ==
          "b_layout = plain: reads permuted (pack it first)");
    CHECK(refusal(*family, [](Problem& p) { p.a_layout = Layout::bf16; }) ==
          "a_layout = bf16: reads plain (pack it first)");
  }
  CHECK(refusal(cuda::gemm_packed(), [](Problem& p) { p.contract = Contract::fast; }) ==
        "needs both operands in mxfp4");
}

TEST_CASE(
    "tensor maps of activations follow the caller's rows, and are left out where they cannot") {
  const auto p = weight_only(8192);
  const Family& family = cuda::gemm_packed_tiles_bf16();
  const auto v = family.default_variant(p, hopper());
  qt_args args{};
  args.m = 300;
  args.n = args.k = 4096;
  args.batch = 1;
  args.a.ld = 4099;
  const auto launch = family.launch(p, v, args, 132);
  REQUIRE(launch.map_count == 1);
  CHECK(launch.maps[0].need == TensorMap::Need::where_aligned);
  CHECK(launch.maps[0].sizes[0] == 4096 * 2);
  CHECK(launch.maps[0].sizes[1] == 300);
  CHECK(launch.maps[0].strides_bytes[0] == 4099 * 2);
  // Quantised ones are tightly packed, whatever ld says.
  auto quantised = p;
  quantised.a_type = DType::mxfp4;
  const auto tight = family.launch(quantised, v, args, 132);
  CHECK(tight.maps[0].need == TensorMap::Need::always);
  CHECK(tight.maps[0].strides_bytes[0] == 4096 * 2);
}
