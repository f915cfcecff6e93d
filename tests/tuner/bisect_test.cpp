// The generation that slowed a problem: by what is stored, and by measuring on a made-up device.
#include "tuner/bisect.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

namespace {

// One generation a plan, numbered from 1; an empty name: nothing stored.
History history(const std::vector<std::pair<std::string, double>>& steps) {
  History out{"p", "t", "c", {}};
  for (const auto& [plan, microseconds] : steps) {
    StoredStep step;
    step.generation = static_cast<std::int64_t>(out.steps.size()) + 1;
    if (!plan.empty()) {
      Winner winner;
      winner.plan = plan;
      winner.median_ns = 1e3 * microseconds;
      step.winner = winner;
    }
    out.steps.push_back(step);
  }
  return out;
}

}  // namespace

TEST_CASE("bisect.stored plans and times") {
  const auto same = history({{"a", 10}, {"a", 10.05}, {"a", 9.95}});
  CHECK(plan_changed_since(same) == 0);
  CHECK(stored_slower_since(same) == 0);
  const auto slower = history({{"", 0}, {"a", 10}, {"b", 9}, {"c", 12}, {"c", 12}, {"d", 11}});
  CHECK(plan_changed_since(slower) == 6);
  CHECK(stored_slower_since(slower) == 4);
  CHECK(change_at(slower, 0) == Change::first);
  CHECK(change_at(slower, 1) == Change::appeared);
  CHECK(change_at(slower, 2) == Change::plan);
  CHECK(change_at(slower, 4) == Change::none);
  // Slow for a while only.
  CHECK(stored_slower_since(history({{"a", 10}, {"b", 12}, {"c", 10}})) == 0);
  auto broken = history({{"a", 10}, {"", 0}, {"a", 10}, {"", 0}});
  broken.steps[1].unreadable = "damaged";
  CHECK(change_at(broken, 1) == Change::unreadable);
  CHECK(change_at(broken, 2) == Change::none);  // against the one that could be read
  CHECK(change_at(broken, 3) == Change::gone);
  CHECK(plan_changed_since(broken) == 4);
}

TEST_CASE("bisect.measuring finds the generation in few steps, each plan once") {
  std::vector<std::pair<std::string, double>> steps;
  for (int i = 0; i < 64; ++i) steps.emplace_back(i < 41 ? "a" + std::to_string(i / 8) : "slow", 1);
  const auto all = history(steps);
  int asked = 0;
  const auto measure = [&](const std::string& good, const std::string& other) {
    ++asked;
    CHECK(good == "a0");
    CHECK(other != good);
    return Result<TimeRatio>(other == "slow" ? TimeRatio{1.3, 1.28, 1.32}
                                             : TimeRatio{1.01, 0.99, 1.03});
  };
  const auto found = bisect(all, 0, 0, 0.01, measure);
  REQUIRE(found.ok());
  CHECK(found->slower_since == 42);
  CHECK(found->measured.size() <= 7);
  CHECK(asked <= 5);
  const auto fine = bisect(all, 1, 30, 0.01, measure);
  CHECK(fine->slower_since == 0);
  CHECK(fine->measured.size() == 1);
  CHECK(bisect(all, 30, 1, 0.01, measure).status().code() == Code::invalid_argument);
  CHECK(bisect(all, 1, 65, 0.01, measure).status().code() == Code::invalid_argument);
  CHECK(bisect(history({}), 0, 0, 0.01, measure).status().code() == Code::invalid_argument);
  // What cannot be measured ends it.
  const auto broken = bisect(all, 0, 0, 0.01, [](const std::string&, const std::string&) {
    return Result<TimeRatio>(Status(Code::no_compiler, "none"));
  });
  CHECK(broken.status().code() == Code::no_compiler);
}
