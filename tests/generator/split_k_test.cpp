// Where blocks share a tile's K: which products have the axis, what its model makes of it, and the
// scratch memory that it asks for; and which Hopper tiles have no registers for what they add.
#include "generator/split_k.hpp"

#include <doctest/doctest.h>

#include "generator/cuda/families.hpp"
#include "generator/hip/families.hpp"

using namespace quarterturn;

namespace {

Problem product(std::int64_t m, std::int64_t n, std::int64_t k, Role role = Role::wgrad) {
  Problem p;
  p.op = Op::gemm;
  p.role = role;
  p.m = Extent::exactly(m);
  p.n = Extent::exactly(n);
  p.k = Extent::exactly(k);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = DType::f32;
  return p;
}

const Variant& gemm_of(const Plan& plan) { return plan.find(StepKind::gemm)->variant; }

Variant by_default(const Problem& p, const char* target) {
  const auto plan = default_plan(p, *parse_target(target));
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return gemm_of(*plan);
}

bool has_axis(const Family& family, const Problem& p, const char* target) {
  for (const auto& axis : family.parameters(p, *parse_target(target)))
    if (axis.name == "splits") return true;
  return false;
}

}  // namespace

TEST_CASE("split_k.small weights' gradients share out K by default") {
  for (const auto contract : {Contract::exact, Contract::fast})
    for (const std::int64_t n : {512, 1408}) {
      auto p = product(512, n, 32768);
      p.contract = contract;
      const auto chosen = by_default(p, "sm_90a");
      CHECK(chosen.value("splits", 1) > 1);
      CHECK(chosen.family == (contract == Contract::exact ? "cuda_gemm_bf16" : "cuda_gemm_e5m2"));
    }
  // Tiles for more than half of the chip: the tuner may, the model does not.
  const auto more = product(1024, 1280, 8192);
  CHECK(has_axis(cuda::gemm_bf16(), more, "sm_90a"));
  CHECK(by_default(more, "sm_90a").value("splits", 1) == 1);
  // Tiles enough, a short K, or another role: as stored answers know it.
  CHECK(!has_axis(cuda::gemm_bf16(), product(4096, 4096, 4096), "sm_90a"));
  CHECK(!has_axis(cuda::gemm_bf16(), product(512, 512, 1024), "sm_90a"));
  CHECK(!has_axis(cuda::gemm_bf16(), product(64, 4096, 4096, Role::fprop), "sm_90a"));
  // Few tokens on chips where nobody has measured anything.
  CHECK(by_default(product(16, 4096, 14336, Role::fprop), "sm_120f").value("splits", 1) > 1);
  CHECK(by_default(product(16, 4096, 14336, Role::fprop), "gfx950").value("splits", 1) > 1);
  CHECK(by_default(product(8192, 4096, 14336, Role::fprop), "sm_120f").value("splits", 1) == 1);
  auto weight_only = product(16, 4096, 14336, Role::fprop);
  weight_only.a_type = DType::bf16;
  CHECK(by_default(weight_only, "gfx950").value("splits", 1) > 1);
}

TEST_CASE("split_k.a row's sums that may not follow the batch have no axis") {
  auto p = product(512, 512, 32768);
  p.repro = Reproducibility::batch_invariant;
  CHECK(!has_axis(cuda::gemm_bf16(), p, "sm_90a"));
  CHECK(by_default(p, "sm_90a").value("splits", 1) == 1);
  CHECK(refuse_splits(p, {128, 128, 1, 2}, {64}).find("follow the batch") != std::string::npos);
}

TEST_CASE("split_k.parts are long enough, and their sums have room") {
  const auto p = product(512, 512, 4096);
  CHECK(refuse_splits(p, {128, 128, 1, 1}, {128}) == "");
  CHECK(refuse_splits(p, {128, 128, 1, 8}, {128}) == "");
  CHECK(refuse_splits(p, {128, 128, 1, 16}, {128}) != "");
  CHECK(refuse_splits(p, {128, 128, 1, 4}, {128, 4}) != "");  // promoted every four chunks
  // 16 tiles, three parts kept of four, binary32 and flags.
  CHECK(split_bytes(p, {128, 128, 1, 4}, most_sizes(p)) == 16 * 3 * (128 * 128 * 4 + 128));
  CHECK(split_bytes(p, {128, 128, 2, 4}, {130, 10, 4096}) == 2 * 3 * (128 * 128 * 4 + 128));
  CHECK(split_bytes(p, {128, 128, 1, 1}, most_sizes(p)) == 0);
  auto batch = p;
  batch.batch = Extent::exactly(3);
  CHECK(split_bytes(batch, {128, 128, 1, 2}, most_sizes(batch)) == 3 * 16 * (128 * 128 * 4 + 128));
  const auto target = *parse_target("sm_90a");
  const auto plan = plans(product(512, 512, 32768), target, 2)[1];
  const auto bytes =
      cuda::gemm_bf16().workspace_bytes(product(512, 512, 32768), gemm_of(plan), {512, 512, 32768});
  CHECK(bytes > 0);
  CHECK(workspace_of(product(512, 512, 32768), target, plan, {512, 512, 32768}).bytes >= bytes);
  CHECK(cuda::gemm_bf16().relative_error(p, gemm_of(plan), 32768) >
        cuda::gemm_bf16().relative_error(p, {}, 32768));
}

TEST_CASE("split_k.model: a hand-over is paid for by idle units alone") {
  const auto p = product(512, 512, 32768);
  const auto whole = split_cost(p, {128, 128, 1, 1}, {64}, 128, 132);
  CHECK(whole.waves == 1);
  CHECK(whole.fill == doctest::Approx(132.0 / 16));
  CHECK(whole.seconds == 0);
  const auto eight = split_cost(p, {128, 128, 1, 8}, {64}, 128, 132);
  CHECK(eight.waves == doctest::Approx(1.0 / 8));
  CHECK(eight.fill == doctest::Approx(132.0 / 128));
  CHECK(eight.seconds == doctest::Approx(2e-6 + 7 * 65536 / 1e11));
  // 144 items are two waves of 132.
  CHECK(split_cost(product(384, 384, 32768), {128, 128, 1, 16}, {64}, 128, 132).waves ==
        doctest::Approx(2.0 / 16));
  // More than half of the chip has work: sharing never looks better.
  const auto busy = split_cost(product(1024, 1280, 8192), {128, 128, 1, 4}, {64}, 128, 132);
  CHECK(busy.waves >= 1);
}

TEST_CASE("cuda products refuse tiles whose C and bias have no registers") {
  const auto target = *parse_target("sm_90a");
  const auto reason = [&](const Family& family, Problem p, std::int64_t m, std::int64_t n,
                          Accumulate accumulate, Bias bias, DType type) {
    p.accumulate = accumulate;
    p.bias = bias;
    p.d_type = type;
    auto v = family.default_variant(p, target);
    v.values["tile_m"] = m;
    v.values["tile_n"] = n;
    return family.illegal(p, target, v);
  };
  const auto p = product(8192, 4096, 4096);
  const auto& bf16 = cuda::gemm_bf16();
  const auto adds = Accumulate::accumulate;
  CHECK(reason(bf16, p, 256, 160, adds, Bias::none, DType::f32).find("C and bias") !=
        std::string::npos);
  CHECK(reason(bf16, p, 256, 160, adds, Bias::per_column, DType::bf16) != "");
  CHECK(reason(bf16, p, 256, 128, adds, Bias::per_column, DType::f32) != "");
  CHECK(reason(bf16, p, 256, 128, adds, Bias::none, DType::f32) == "");
  CHECK(reason(bf16, p, 128, 256, adds, Bias::per_column, DType::f32) == "");
  CHECK(reason(bf16, p, 256, 160, Accumulate::overwrite, Bias::none, DType::f32) == "");
  auto few = product(64, 4096, 4096);
  auto v = cuda::gemm_packed_bf16().default_variant(few, target);
  for (const std::int64_t stripes : {4, 2}) {
    v.values["stripes"] = stripes;
    v.values["stages"] = 3;
    INFO(v.text());
    CHECK((cuda::gemm_packed_bf16().illegal(few, target, v) == "") == (stripes == 4));
  }
}
