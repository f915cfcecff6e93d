// The family cpu_weight_only: what it refuses and why, its space, its text.
#include <doctest/doctest.h>

#include "generator/cpu/families.hpp"
#include "tests/generator/golden.hpp"

using namespace quarterturn;

namespace {

const Family& family() { return cpu::weight_only(); }
Target v4() { return *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni"); }

Problem expert() {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.a_type = DType::bf16;
  p.b_type = DType::mxfp4;
  p.d_type = DType::bf16;
  p.m = {1, 8};
  p.n = Extent::exactly(5760);
  p.k = Extent::exactly(2880);
  p.bias = Bias::per_column;
  return p;
}

}  // namespace

TEST_CASE("cpu_weight_only.refuses what it cannot compute, with the reason") {
  const auto refusal = [](auto change) {
    Problem p = expert();
    change(p);
    return family().refuses(p, v4());
  };
  CHECK(refusal([](Problem&) {}).empty());
  CHECK(refusal([](Problem& p) { p.a_type = DType::mxfp4; }) == "needs A in bf16, f16 or f32");
  CHECK(refusal([](Problem& p) { p.b_type = DType::bf16; }) == "needs B in mxfp4");
  CHECK(refusal([](Problem& p) { p.rotation = 32; }) ==
        "multiplies A as it is: rotation = 0 (else use hadamard_gemm)");
  CHECK(refusal([](Problem& p) { p.a_major = Major::rows; }) == "reads A along K: a_major = k");
  CHECK(refusal([](Problem& p) { p.b_layout = Layout::permuted; }) ==
        "b_layout = permuted: reads panel16 (pack it first)");
  CHECK(refusal([](Problem& p) { p.bias_gradient = BiasGradient::f32; }) == "sums no gradients");
}

TEST_CASE("cpu_weight_only.solves weight-only problems as a plan of one kernel") {
  const auto plan = default_plan(expert(), v4());
  REQUIRE(plan.ok());
  REQUIRE(plan->steps.size() == 1);
  CHECK(plan->steps[0].variant.family == "cpu_weight_only");
  CHECK(check_plan(expert(), v4(), *plan).ok());
}

TEST_CASE("cpu_weight_only.variants are legal and print back") {
  for (const char* target : {"x86-64-v4:avx512_vnni", "x86-64-v3", "x86-64", "aarch64"}) {
    const auto t = *parse_target(target);
    const auto all = family().variants(expert(), t);
    REQUIRE(!all.empty());
    CHECK(all.front() == family().default_variant(expert(), t));
    for (const auto& variant : all) CHECK(*parse_variant(variant.text()) == variant);
  }
  auto v = family().default_variant(expert(), v4());
  v.values["tile_m"] = 12;
  CHECK(family().illegal(expert(), v4(), v) ==
        "a tile of 12 x 48 needs 43 registers, there are 32");
}

TEST_CASE("cpu_weight_only.emits short source") {
  const auto v = family().default_variant(expert(), v4());
  golden::check("cpu_weight_only_avx512.cpp", family().emit(expert(), v4(), v).text);
}
