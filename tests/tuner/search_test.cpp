// Strategies: order, patience, seeds, and never the same plan twice.
#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "tuner/neighbours.hpp"
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
  const auto leading = leading_plans(ordered_plans(s));
  CHECK(leading <= 3 * families.size());
  const auto first = in_predicted_order(s, {})->next({}, leading);
  for (const auto& plan : first) early.insert(plan.main_step().variant.family);
  CHECK(early == families);
  CHECK(first.front() == s.plans.front());
}

namespace {

// A made-up device: some parameters matter, the model's order does not.
double made_up_speed(const Plan& plan) {
  const Variant& v = plan.main_step().variant;
  double speed = 0;
  if (v.family == "cpu_gemm") speed += 0.1;
  speed -= 0.02 * std::abs(static_cast<double>(v.value("tile_m")) - 6);
  if (v.value("block_k") == 1024) speed += 0.05;
  if (v.value("prefetch") == 8) speed += 0.05;
  if (v.value("isa") != 512) speed -= 0.7;
  return speed;
}

std::pair<double, std::size_t> best_found(Strategy& strategy) {
  std::vector<Outcome> history;
  double best = -10;
  for (;;) {
    const auto batch = strategy.next(history, 6);
    if (batch.empty() || strategy.satisfied(history)) return {best, history.size()};
    for (const auto& plan : batch) {
      history.push_back(outcome(plan, made_up_speed(plan)));
      best = std::max(best, history.back().log_speedup);
    }
  }
}

}  // namespace

TEST_CASE("the learning strategy finds what parameters matter, and never asks twice") {
  const auto s = space();
  double best = -10;
  for (const auto& plan : s.plans) best = std::max(best, made_up_speed(plan));
  SearchSettings settings;
  settings.most = 60;
  settings.patience = 60;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    settings.seed = seed;
    auto strategy = learned(s, settings);
    const auto [found, tried] = best_found(*strategy);
    CHECK(found >= best - 0.03);
    CHECK(tried <= 60);
  }
  std::set<std::string> seen;
  auto strategy = learned(s, settings);
  std::vector<Outcome> history;
  for (;;) {
    const auto batch = strategy->next(history, 9);
    if (batch.empty()) break;
    for (const auto& plan : batch) {
      CHECK(seen.insert(plan.text()).second);
      history.push_back(outcome(plan, made_up_speed(plan)));
    }
  }
}

TEST_CASE("equal histories get equal answers") {
  const auto s = space();
  SearchSettings settings;
  settings.most = 40;
  auto one = learned(s, settings), two = learned(s, settings);
  std::vector<Outcome> history;
  for (;;) {
    const auto a = one->next(history, 5), b = two->next(history, 5);
    REQUIRE(a == b);
    if (a.empty()) break;
    for (const auto& plan : a) history.push_back(outcome(plan, made_up_speed(plan)));
  }
}

TEST_CASE("what fails is learned, too") {
  const auto s = space();
  SearchSettings settings;
  settings.most = 80;
  settings.patience = 80;
  auto strategy = learned(s, settings);
  std::vector<Outcome> history;
  std::size_t early = 0, late = 0;
  for (;;) {
    const auto batch = strategy->next(history, 4);
    if (batch.empty()) break;
    for (const auto& plan : batch) {
      const bool fails = plan.main_step().variant.value("block_k") == 512;
      (history.size() < 30 ? early : late) += fails;
      history.push_back(outcome(plan, made_up_speed(plan)));
      if (fails) history.back().status = TrialStatus::compile_failed;
    }
  }
  CHECK(early > 3);
  CHECK(late <= 8);
}

TEST_CASE("neighbours' best come first, and their trials spare some of one's own") {
  const auto s = space();
  double best = -10;
  Plan fastest;
  for (const auto& plan : s.plans)
    if (made_up_speed(plan) > best) best = made_up_speed(plan), fastest = plan;
  Space known = s;
  Neighbour neighbour{linear_problem({"other", 5120, 4096, 1}, Role::fprop, {1, 16}, {}), {}, {}};
  for (std::size_t i = 0; i < s.plans.size(); i += 40)
    neighbour.outcomes.push_back(outcome(s.plans[i], made_up_speed(s.plans[i])));
  neighbour.outcomes.push_back(outcome(fastest, best));
  known.neighbours = {neighbour};
  known.seeds = seeds_of(known.neighbours);
  REQUIRE(!known.seeds.empty());
  CHECK(made_up_speed(known.seeds.front()) == best);
  auto strategy = learned(known, {});
  CHECK(strategy->next({}, 1).front() == known.seeds.front());
  CHECK(distance(neighbour.problem, s.problem) > 0);
  CHECK(distance(neighbour.problem, s.problem) < 1);
  Problem other = s.problem;
  other.contract = Contract::fast;
  CHECK(std::isinf(distance(other, s.problem)));
}
