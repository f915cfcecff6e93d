// A compile sweep takes variants in turn from every family, the defaults first, each once.
#include "tuner/sweep.hpp"

#include <doctest/doctest.h>

#include <set>

using namespace quarterturn;

namespace {

std::set<std::string> families_in(const std::vector<SweepRow>& rows) {
  std::set<std::string> out;
  for (const auto& row : rows) out.emplace(row.family->name());
  return out;
}

}  // namespace

TEST_CASE("sweep.sample covers the families of a target, defaults first, nothing twice") {
  const auto problems = covering_problems();
  CHECK(problems.size() > 40);
  for (const auto* name : {"sm_80", "sm_90a", "sm_100f", "sm_120f", "gfx950", "x86-64-v4"}) {
    const auto target = *parse_target(name);
    const auto rows = sample_variants(problems, target, 400);
    INFO(name);
    CHECK(rows.size() > 20);
    std::set<std::string> seen;
    for (const auto& row : rows) {
      CHECK(row.family->illegal(row.problem, target, row.variant) == "");
      CHECK(seen.insert(row.problem.key() + row.variant.text()).second);
    }
    CHECK(sample_variants(problems, target, 3).size() == 3);
  }
  const auto native = families_in(sample_variants(problems, *parse_target("sm_120f"), 200));
  CHECK(native.contains("cuda_gemm_sm120"));
  CHECK(native.contains("cuda_pack"));
  CHECK(families_in(sample_variants(problems, *parse_target("sm_100a"), 200))
            .contains("cuda_gemm_sm100"));
}

TEST_CASE("sweep.sample of one small space is all of it") {
  Problem p;
  p.op = Op::column_sums;
  p.m = {1, 64};
  p.k = Extent::exactly(64);
  p.a_type = DType::bf16;
  p.d_type = DType::f32;
  const auto target = *parse_target("sm_90a");
  const auto rows = sample_variants({p}, target, 1000);
  REQUIRE(!rows.empty());
  CHECK(rows.size() == rows[0].family->variants(p, target).size());
}
