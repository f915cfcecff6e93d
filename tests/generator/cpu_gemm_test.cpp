// The family cpu_gemm: what it refuses and why, its space, its text, its parts.
#include <doctest/doctest.h>

#include <set>

#include "generator/cpu/families.hpp"
#include "tests/generator/golden.hpp"

using namespace quarterturn;

namespace {

const Family& family() { return cpu::gemm(); }
Target v4() { return *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni"); }

Problem down_projection() {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::fprop;
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = DType::f32;
  p.rotation = 32;
  p.m = {1, 16};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(14336);
  return p;
}

template <class Change>
std::string refusal(Change change) {
  Problem p = down_projection();
  change(p);
  return family().refuses(p, v4());
}

}  // namespace

TEST_CASE("cpu_gemm.refuses what it cannot compute, with the reason") {
  CHECK(refusal([](Problem&) {}).empty());
  CHECK(refusal([](Problem& p) { p.a_layout = Layout::int8_blocks; }).empty());
  CHECK(refusal([](Problem& p) { p.op = Op::quantize; }) ==
        "multiplies quantised operands: op = gemm");
  CHECK(refusal([](Problem& p) { p.a_type = DType::bf16; }) == "needs both operands in mxfp4");
  CHECK(refusal([](Problem& p) { p.b_layout = Layout::plain; }) ==
        "b_layout = plain: reads panel16 (pack it first)");
  CHECK(refusal([](Problem& p) { p.a_layout = Layout::e5m2; }) ==
        "a_layout = e5m2: reads int8_blocks (pack it first)");
  CHECK(refusal([](Problem& p) { p.bias_gradient = BiasGradient::f32; }) == "sums no gradients");
  CHECK(refusal([](Problem& p) { p.grouping = Grouping::m_masked; }).empty());
  CHECK(family().refuses(down_projection(), *parse_target("sm_90a")) == "runs on CPUs");
}

TEST_CASE("cpu_gemm.offers the instruction sets of the target, best first") {
  const auto isas = [](const char* target) {
    return family().parameters(down_projection(), *parse_target(target))[0].values;
  };
  CHECK(isas("x86-64-v4:avx512_vbmi,avx512_vnni") == std::vector<std::int64_t>{512, 256});
  CHECK(isas("x86-64-v4") == std::vector<std::int64_t>{256});
  CHECK(isas("x86-64-v3:avx_vnni") == std::vector<std::int64_t>{256});
  CHECK(isas("x86-64") == std::vector<std::int64_t>{0});
  CHECK(isas("aarch64") == std::vector<std::int64_t>{0});
}

TEST_CASE("cpu_gemm.variants are legal, distinct, and print back") {
  for (const char* target : {"x86-64-v4:avx512_vnni", "x86-64-v3", "x86-64", "aarch64"})
    for (const Extent m : {Extent{1, 16}, Extent{0, 8192}, Extent::exactly(1)}) {
      Problem p = down_projection();
      p.m = m;
      const auto t = *parse_target(target);
      const auto all = family().variants(p, t);
      REQUIRE(!all.empty());
      CHECK(all.size() < 3000);
      CHECK(all.front() == family().default_variant(p, t));
      std::set<std::string> texts;
      for (const auto& variant : all) {
        CHECK(family().check(p, t, variant).ok());
        CHECK(*parse_variant(variant.text()) == variant);
        CHECK(family().predicted_cost(p, t, variant, 0) > 0);
        texts.insert(variant.text());
      }
      CHECK(texts.size() == all.size());
    }
}

TEST_CASE("cpu_gemm.says why values do not go together") {
  const auto p = down_projection();
  const auto reason =
      [&](std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
        auto v = family().default_variant(p, v4());
        for (const auto& [name, value] : values) v.values[name] = value;
        return family().illegal(p, v4(), v);
      };
  CHECK(reason({}).empty());
  CHECK(reason({{"tile_m", 12}}) == "a tile of 12 x 32 needs 55 registers, there are 32");
  CHECK(reason({{"isa", 256}, {"tile_m", 12}}) == "16 registers hold no tile this high");
  CHECK(reason({{"block_k", 256}}) == "block_k sizes the buffer: 512 where there is none");
  CHECK(reason({{"decode", 1}, {"prefetch", 4}}) ==
        "prefetch is for decoding in registers: 0 with a buffer");
  CHECK(reason({{"tile_m", 4}, {"tile_n", 48}, {"part_n", 100}}) ==
        "part_n = 100 is not a multiple of tile_n = 48");
}

TEST_CASE("cpu_gemm.the cheapest prediction is the default where rows are few or many") {
  for (const Extent m : {Extent::exactly(1), Extent{1, 16}, Extent::exactly(512)}) {
    Problem p = down_projection();
    p.m = m;
    const auto first = family().default_variant(p, v4());
    auto best = first;
    for (const auto& variant : family().variants(p, v4()))
      if (family().predicted_cost(p, v4(), variant, 0) < family().predicted_cost(p, v4(), best, 0))
        best = variant;
    CHECK(best.text() == first.text());
  }
}

TEST_CASE("cpu_gemm.threads without a part cost, where their number is known") {
  Problem p = down_projection();
  p.m = Extent::exactly(2);
  p.n = Extent::exactly(512);
  Variant two_parts = family().default_variant(p, v4());
  two_parts.values["part_n"] = 384;
  const auto cost = [&](std::int64_t threads) {
    return family().predicted_cost(p, v4(), two_parts, threads);
  };
  CHECK(cost(1) == cost(2));
  CHECK(cost(8) == doctest::Approx(4 * cost(2)));
  CHECK(cost(0) == cost(8));
}

TEST_CASE("cpu_gemm.parts cover batch, rows and columns") {
  const auto p = down_projection();
  const auto v = family().default_variant(p, v4());
  qt_args args{};
  args.n = 4096;
  args.k = 14336;
  args.batch = 1;
  CHECK(family().launch(p, v, args, 2).parts == 0);
  args.m = 1;
  CHECK(family().launch(p, v, args, 2).parts == 43);
  args.m = 49;
  args.batch = 3;
  CHECK(family().launch(p, v, args, 64).parts == 3 * 2 * 43);
}

TEST_CASE("cpu_gemm.emits short source, dimensions and types as constants") {
  const auto emitted = [](const Problem& p, const Target& t, const Variant& v) {
    const auto source = family().emit(p, t, v);
    CHECK(source.entry == "qturn_kernel");
    CHECK(flatten(source).ok());
    return source.text;
  };
  const auto p = down_projection();
  golden::check("cpu_gemm_avx512.cpp", emitted(p, v4(), family().default_variant(p, v4())));

  Problem wgrad = down_projection();
  wgrad.role = Role::wgrad;
  wgrad.m = Extent::exactly(4096);
  wgrad.k = {0, 8192};
  wgrad.d_type = DType::bf16;
  wgrad.rotation = 128;
  wgrad.scale_rule = ScaleRule::ts34;
  wgrad.accumulate = Accumulate::accumulate;
  wgrad.bias = Bias::per_column;
  const auto arm = *parse_target("aarch64");
  golden::check("cpu_gemm_portable_wgrad.cpp",
                emitted(wgrad, arm, family().default_variant(wgrad, arm)));
}
