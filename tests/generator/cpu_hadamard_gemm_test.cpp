// The family cpu_hadamard_gemm: when fusing pays, its workspace, its text.
#include <doctest/doctest.h>

#include "generator/cpu/families.hpp"
#include "tests/generator/golden.hpp"

using namespace quarterturn;

namespace {

const Family& family() { return cpu::hadamard_gemm(); }
Target v4() { return *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni"); }

Problem projection(Extent m) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::fprop;
  p.a_type = DType::bf16;
  p.b_type = DType::mxfp4;
  p.d_type = DType::bf16;
  p.rotation = 32;
  p.m = m;
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  return p;
}

}  // namespace

TEST_CASE("cpu_hadamard_gemm.refuses what it cannot compute, with the reason") {
  const auto refusal = [](auto change) {
    Problem p = projection({1, 16});
    change(p);
    return family().refuses(p, v4());
  };
  CHECK(refusal([](Problem&) {}).empty());
  CHECK(refusal([](Problem& p) { p.op = Op::gemm; }) ==
        "quantises A and multiplies: op = hadamard_gemm");
  CHECK(refusal([](Problem& p) { p.b_type = DType::bf16; }) ==
        "needs a prepared weight: b_type = mxfp4");
  CHECK(refusal([](Problem& p) { p.a_major = Major::rows; }) == "reads A along K: a_major = k");
  CHECK(refusal([](Problem& p) { p.scale_block = ScaleBlock::b32x32; }) ==
        "quantises a row at a time: scale_block = 1x32");
  CHECK(refusal([](Problem& p) { p.b_layout = Layout::plain; }) ==
        "b_layout = plain: reads panel16 (pack it first)");
}

TEST_CASE("cpu_hadamard_gemm.parts are wide enough to pay for quantising their rows again") {
  const auto widths = [](std::int64_t n) {
    Problem p = projection({1, 16});
    p.n = Extent::exactly(n);
    for (const auto& parameter : family().parameters(p, v4()))
      if (parameter.name == "part_n") return parameter.values;
    return std::vector<std::int64_t>{};
  };
  CHECK(widths(14336) == std::vector<std::int64_t>{7200, 14400, 3648});
  CHECK(widths(2048) == std::vector<std::int64_t>{1056, 2112});
  CHECK(widths(1024) == std::vector<std::int64_t>{1056});
  CHECK(widths(100) == std::vector<std::int64_t>{192});
}

TEST_CASE("cpu_hadamard_gemm.is a plan to try, and two steps are the default") {
  for (const auto* target : {"x86-64-v4:avx512_vbmi,avx512_vnni", "x86-64-v3", "x86-64"})
    for (const std::int64_t m : {1, 16, 512}) {
      const auto p = projection(Extent::exactly(m));
      const auto t = *parse_target(target);
      const auto plan = default_plan(p, t);
      REQUIRE(plan.ok());
      CHECK(plan->steps.size() == 2);
      bool fused = false;
      for (const auto& candidate : plans(p, t, 5000))
        fused = fused || candidate.steps[0].variant.family == "cpu_hadamard_gemm";
      CHECK(fused);
    }
}

TEST_CASE("cpu_hadamard_gemm.workspace holds the rows of every part") {
  const auto p = projection({1, 4096});
  const auto v = family().default_variant(p, v4());
  CHECK(v.value("block_m") == 48);
  CHECK(v.value("part_n") == 2112);
  CHECK(family().workspace_bytes(p, v, {1, 4096, 4096, 1}) == 2 * (4096 + 1024));
  CHECK(family().workspace_bytes(p, v, {49, 4096, 4096, 3}) == 3 * 2 * 2 * 48 * (4096 + 1024));
  CHECK(family().workspace_bytes(p, v, {0, 4096, 4096, 1}) == 0);
}

TEST_CASE("cpu_hadamard_gemm.emits short source") {
  auto p = projection({1, 16});
  p.signs = Signs::per_call;
  p.a_rounding = Rounding::sr16;
  const auto source = family().emit(p, v4(), family().default_variant(p, v4()));
  CHECK(flatten(source).ok());
  golden::check("cpu_hadamard_gemm_avx512.cpp", source.text);
}
