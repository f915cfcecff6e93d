// One weight layout over the token ranges of a call site, decided from trials.
#include "tuner/site.hpp"

#include <doctest/doctest.h>

#include "generator/family.hpp"
#include "tests/cache/support.hpp"
#include "tuner/redecide.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

namespace {

constexpr const char* kTarget = "sm_90a";

Problem tokens(std::int64_t most) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.a_type = DType::bf16;
  p.b_type = DType::mxfp4;
  p.d_type = DType::bf16;
  p.rotation = 32;
  p.contract = Contract::fast;
  p.m = {1, most};
  p.n = Extent::exactly(4096);
  p.k = Extent::exactly(4096);
  return p;
}

Layout layout_of(const Problem& p, const std::string& text) {
  const auto plan = parse_plan(text);
  REQUIRE(plan.ok());
  const auto& variant = plan->main_step().variant;
  return find_family(variant.family)->b_layout(p, variant);
}

// A plan of the problem that reads its weight in `layout`, other than the default.
std::string plan_in(const Problem& p, Layout layout) {
  const auto target = *parse_target(kTarget);
  const auto fallback = default_plan(p, target)->text();
  for (const auto& plan : plans(p, target, 2000))
    if (plan.text() != fallback && layout_of(p, plan.text()) == layout) return plan.text();
  FAIL("no such plan");
  return {};
}

Trial timed(const Problem& p, const std::string& plan, double ratio, int number) {
  Trial out = trial(number);
  out.uuid = uuid(number + 1);
  out.problem = p.key();
  out.plan = plan;
  auto place = *env();
  place.target = kTarget;
  out.env = std::make_shared<const Env>(place);
  out.kind = TrialKind::timing;
  out.ratio = ratio;
  out.ratio_low = ratio * 0.998;
  out.ratio_high = ratio * 1.002;
  out.median_ns = 1000 / ratio;
  out.extra = "proved=1";
  return out;
}

struct Bench {
  Problem few = tokens(16), many = tokens(8192);
  Database db = std::move(*Database::open(""));
  int count = 0;
  void time(const Problem& p, Layout layout, double ratio) {
    REQUIRE(db.add_trial(timed(p, plan_in(p, layout), ratio, ++count)).ok());
  }
  std::vector<Site> decide() {
    REQUIRE(redecide(db).ok());
    auto sites = settle_sites(db, kTarget, env()->performance_class);
    REQUIRE_MESSAGE(sites.ok(), sites.status().message());
    return *sites;
  }
  Winner winner(const Problem& p) {
    return **db.winner_of(p.key(), kTarget, env()->performance_class);
  }
};

}  // namespace

TEST_CASE("site.of a prepared weight is the problem without its tokens") {
  CHECK(site_of(tokens(16)) == site_of(tokens(8192)));
  auto other = tokens(16);
  other.rotation = 64;
  CHECK(site_of(other) != site_of(tokens(16)));
  other = tokens(16);
  other.b_layout = Layout::e5m2;  // given: nothing to choose
  CHECK(site_of(other).empty());
  other.b_layout = Layout::chosen;
  other.b_type = DType::bf16;  // quantised at each call
  CHECK(site_of(other).empty());
}

TEST_CASE("site.settles on the layout that costs all members together least") {
  const Layout packed =
      layout_of(tokens(16), default_plan(tokens(16), *parse_target(kTarget))->text());
  const Layout other = packed == Layout::e5m2 ? Layout::permuted : Layout::e5m2;
  for (const bool few_count : {true, false}) {
    Bench bench;
    // Each has a favourite; one of them loses little under the other's.
    bench.time(bench.few, packed, 1.5);
    bench.time(bench.few, other, few_count ? 1.1 : 1.48);
    bench.time(bench.many, packed, few_count ? 1.27 : 1.02);
    bench.time(bench.many, other, 1.3);
    const auto sites = bench.decide();
    REQUIRE(sites.size() == 1);
    CHECK(sites[0].layout == (few_count ? packed : other));
    CHECK(sites[0].members.size() == 2);
    CHECK(sites[0].bits_per_element ==
          doctest::Approx(sites[0].layout == Layout::e5m2 ? 8.0 : 4.25).epsilon(0.02));
    for (const auto& p : {bench.few, bench.many})
      CHECK(layout_of(p, bench.winner(p).plan) == sites[0].layout);
    const auto loser = bench.winner(few_count ? bench.many : bench.few);
    CHECK(loser.regret ==
          doctest::Approx(few_count ? 1.3 / 1.27 - 1 : 1.5 / 1.48 - 1).epsilon(1e-3));
    CHECK(loser.speedup == doctest::Approx(few_count ? 1.27 : 1.48));
    CHECK(loser.certificate.find("weight_layout=") == 0);
    CHECK(loser.certificate.find("proved=1") != std::string::npos);
    CHECK(sites[0].text().find("bits an element") != std::string::npos);
    // Deciding again changes nothing.
    CHECK(bench.decide()[0].layout == sites[0].layout);
  }
}

TEST_CASE("site.members that were not timed with a layout are named, and keep their own answer") {
  Bench bench;
  const Layout packed =
      layout_of(bench.few, default_plan(bench.few, *parse_target(kTarget))->text());
  const Layout other = packed == Layout::e5m2 ? Layout::permuted : Layout::e5m2;
  bench.time(bench.few, packed, 1.5);
  bench.time(bench.many, other, 1.3);
  bench.decide();
  const auto untimed = untimed_layouts(bench.db, kTarget, env()->performance_class);
  REQUIRE(untimed.ok());
  bool named = false;
  for (const auto& [problem, layout] : *untimed)
    named = named || (problem == bench.few.key() && layout == other);
  CHECK(named);
}
