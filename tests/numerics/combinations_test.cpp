// Everything with everything: 8 scale rules, 6 roundings, 6 rotations, 3 kinds of signs.
#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

void compare_all(const std::vector<float>& x, std::int64_t rows, std::int64_t k,
                 std::uint64_t seed) {
  Random random(seed);
  Differences differences;
  for (const auto rule : kRules)
    for (const auto rounding : kRoundings)
      for (const int g : kRotations)
        for (const auto signs : kSigns) {
          reference::QuantizeSpec spec;
          spec.rule = rule;
          spec.rounding = rounding;
          spec.rotation = g;
          spec.signs = signs;
          spec.sign_seed = random();
          for (auto& word : spec.sign_mask) word = static_cast<std::uint32_t>(random());
          spec.noise = {random(), 1, static_cast<std::uint32_t>(random() % 2), 0};
          differences.matrix(x.data(), rows, k, k, spec);
        }
  differences.check(8 * 6 * 6 * 3);
}

}  // namespace

TEST_CASE("combinations.data of every kind, mixed block by block") {
  Random random(16);
  compare_all(mixed_matrix(48, 512, random), 48, 512, 17);
}

TEST_CASE("combinations.ordinary data with outliers, which rotation does not drown") {
  Random random(18);
  std::vector<float> x(16 * 512);
  for (std::size_t start = 0; start < x.size(); start += 32)
    fill_outliers(std::span(x).subspan(start, 32), random);
  compare_all(x, 16, 512, 19);
}
