// Strategies: order, patience, seeds, and never the same plan twice.
#include <doctest/doctest.h>

#include <set>

#include "tuner/search.hpp"
#include "tuner/workload.hpp"

using namespace quarterturn;

namespace {

Space space() {
  Recipe recipe;
  Space out;
  out.problem = linear_problem({"layer", 4096, 4096, 1}, Role::fprop, {1, 16}, recipe);
  out.target = *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni");
  out.plans = plans(out.problem, out.target, 20000);
  return out;
}

Outcome outcome(const Plan& plan, double log_speedup) {
  return {plan, TrialStatus::ok, log_speedup, 0, 0, 0};
}

}  // namespace

TEST_CASE("exhaustive search gives every plan once, the default first") {
  const auto s = space();
  const auto& all = s.plans;
  REQUIRE(all.size() > 10);
  auto strategy = exhaustive(s);
  CHECK(strategy->remaining() == all.size());
  std::vector<Outcome> history;
  std::set<std::string> seen;
  for (;;) {
    const auto batch = strategy->next(history, 7);
    if (batch.empty()) break;
    CHECK(batch.size() <= 7);
    for (const auto& plan : batch) {
      CHECK(seen.insert(plan.text()).second);
      history.push_back(outcome(plan, -1));
    }
  }
  CHECK(seen.size() == all.size());
  CHECK(history.front().plan == all.front());
  CHECK(strategy->remaining() == 0);
}

TEST_CASE("patience ends the search, a gain renews it") {
  const auto s = space();
  auto strategy = in_predicted_order(s, {1000, 5});
  std::vector<Outcome> history;
  std::size_t tried = 0;
  for (;;) {
    const auto batch = strategy->next(history, 1);
    if (batch.empty()) break;
    ++tried;
    history.push_back(outcome(batch[0], tried == 4 ? 0.2 : 0.0));
  }
  CHECK(tried == 9);
}

TEST_CASE("failures count against patience, and what was tried before is not tried again") {
  const auto s = space();
  auto strategy = in_predicted_order(s, {1000, 3});
  std::vector<Outcome> history{outcome(s.plans[1], 0)};
  auto first = strategy->next(history, 2);
  REQUIRE(first.size() == 2);
  CHECK(first[0] == s.plans[0]);
  CHECK(first[1] == s.plans[2]);
  history.push_back({first[0], TrialStatus::wrong, 0, 0, 0, 0});
  history.push_back({first[1], TrialStatus::crashed, 0, 0, 0, 0});
  CHECK(strategy->next(history, 2).empty());
}

TEST_CASE("seeds come first, illegal ones never") {
  auto s = space();
  const auto& all = s.plans;
  Plan illegal = all[2];
  illegal.steps.back().variant.values["no_such_axis"] = 1;
  s.seeds = {illegal, all[5], all[5]};
  auto strategy = in_predicted_order(s, {100000, 1000});
  const auto batch = strategy->next({}, 100000);
  CHECK(batch[0] == all[5]);
  CHECK(batch[1] == all[0]);
  CHECK(batch.size() == all.size());
}

TEST_CASE("the number of candidates is bounded") {
  auto strategy = in_predicted_order(space(), {4, 100});
  CHECK(strategy->next({}, 100).size() == 4);
}

TEST_CASE("the best of every family that multiplies comes before the rest of any") {
  Recipe recipe;
  recipe.contract = Contract::fast;
  recipe.spread = Spread::narrow;
  Space s;
  s.problem = linear_problem({"layer", 4096, 4096, 1}, Role::fprop, Extent::exactly(8192), recipe);
  s.target = *parse_target("sm_90a");
  s.target.shared_bytes = 232448;
  s.plans = plans(s.problem, s.target, 20000);
  std::set<std::string> families, early;
  for (const auto& plan : s.plans) families.insert(plan.main_step().variant.family);
  REQUIRE(families.size() >= 3);
  const auto first = in_predicted_order(s, {})->next({}, 16);
  for (const auto& plan : first) early.insert(plan.main_step().variant.family);
  CHECK(early == families);
  CHECK(first.front() == s.plans.front());
}
