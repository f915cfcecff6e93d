// Forests: what they can learn, determinism, and how sure they are.
#include <doctest/doctest.h>

#include <cmath>

#include "tuner/forest.hpp"
#include "tuner/random.hpp"

using namespace quarterturn;

namespace {

std::vector<Example> examples(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<Example> out;
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>(random.below(8)), y = static_cast<float>(random.below(8)),
               z = static_cast<float>(random.below(8));
    // A step, an interaction, and a feature that says nothing.
    out.push_back({{x, y, z}, (x > 3 ? 1.0 : 0.0) + (x > 3 && y > 4 ? 2.0 : 0.0), 1});
  }
  return out;
}

}  // namespace

TEST_CASE("a forest learns steps and interactions") {
  const Forest forest(examples(300, 1), {});
  double worst = 0;
  for (const auto& example : examples(100, 2))
    worst = std::max(worst, std::fabs(forest.predict(example.features).mean - example.value));
  CHECK(worst < 0.4);
}

TEST_CASE("equal seeds give equal forests, others differ a little") {
  const auto data = examples(60, 3);
  const Forest a(data, {}), b(data, {}), c(data, {.seed = 9});
  bool differs = false;
  for (const auto& example : examples(50, 4)) {
    CHECK(a.predict(example.features).mean == b.predict(example.features).mean);
    differs = differs || a.predict(example.features).mean != c.predict(example.features).mean;
  }
  CHECK(differs);
}

TEST_CASE("trees agree where much is known and disagree where nothing is") {
  std::vector<Example> data;
  for (int i = 0; i < 40; ++i)
    data.push_back({{static_cast<float>(i % 4), 0}, static_cast<double>(i % 2), 1});
  data.push_back({{9, 9}, 5, 1});
  const Forest forest(data, {.least_leaf = 1});
  const std::vector<float> known{1, 0}, unknown{8, 8};
  CHECK(forest.predict(known).spread < forest.predict(unknown).spread);
}

TEST_CASE("weights count: what weighs nothing is not learned") {
  std::vector<Example> data;
  for (int i = 0; i < 20; ++i) {
    data.push_back({{static_cast<float>(i)}, 1, 1});
    data.push_back({{static_cast<float>(i)}, 100, 1e-9});
  }
  CHECK(Forest(data, {}).predict(std::vector<float>{4}).mean < 1.5);
}

TEST_CASE("one example, equal examples and none make no trouble") {
  CHECK(Forest().predict(std::vector<float>{1}).mean == 0);
  CHECK(Forest().opinion(std::vector<float>{1}, 0, 4) == 0);
  const Forest one(std::vector<Example>{{{1, 2}, 3, 1}}, {});
  CHECK(one.predict(std::vector<float>{7, 7}).mean == 3);
  const Forest equal(std::vector<Example>(10, Example{{1, 2}, 4, 1}), {});
  CHECK(equal.predict(std::vector<float>{1, 2}).mean == 4);
  CHECK(equal.opinion(std::vector<float>{1, 2}, 40, 16) == 4);
}
