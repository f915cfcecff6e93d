// 32x32 scale blocks of unrotated weights: one byte for a tile, by both sides.
#include <algorithm>
#include <limits>

#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

reference::QuantizeSpec tile_spec(reference::ScaleRule rule, reference::Rounding rounding) {
  reference::QuantizeSpec spec;
  spec.rule = rule;
  spec.rounding = rounding;
  spec.block = reference::ScaleBlock::b32x32;
  spec.noise = {0xfeedface12345678, 3, 1, 0};
  return spec;
}

}  // namespace

TEST_CASE("tile.every rule and rounding, whole tiles and tails") {
  Random random(13);
  Differences differences;
  for (const auto rule : kTileRules)
    for (const auto rounding : kRoundings)
      for (int repeat = 0; repeat < 4; ++repeat) {
        const std::int64_t rows = 64 + repeat, k = 96 + 7 * repeat;
        const auto x = mixed_matrix(rows, k, random);
        differences.matrix(x.data(), rows, k, k, tile_spec(rule, rounding));
      }
  differences.check(96);
}

TEST_CASE("tile.one kind of data in all of a tile, so that its byte is not that of outliers") {
  Random random(14);
  Differences differences;
  for (const auto rule : kTileRules)
    for (const auto rounding : kRoundings)
      for (const Fill fill : kFills)
        for (int repeat = 0; repeat < 8; ++repeat) {
          std::vector<float> x(1024);
          if (fill == fill_normal || fill == fill_thresholds) {  // one exponent for the whole tile
            fill(std::span(x).first(32), random);
            for (std::size_t j = 32; j < x.size(); ++j)
              x[j] = x[j - 32] * (j % 5 == 0 ? -0.75f : 1);
          } else {
            for (std::size_t start = 0; start < x.size(); start += 32)
              fill(std::span(x).subspan(start, 32), random);
          }
          differences.matrix(x.data(), 32, 32, 32, tile_spec(rule, rounding));
        }
  differences.check(1500);
}

TEST_CASE("tile.a NaN breaks its tile and no other, and a zero row within a tile keeps signs") {
  Differences differences;
  for (const auto rule : kTileRules) {
    std::vector<float> x(32 * 64, 1.0f);
    x[17 * 64 + 40] = std::numeric_limits<float>::quiet_NaN();
    std::fill(x.begin() + 5 * 64, x.begin() + 6 * 64, -0.0f);
    const auto spec = tile_spec(rule, reference::Rounding::rne);
    const auto q = quantize_by_text(x.data(), 32, 64, 64, spec);
    for (std::int64_t i = 0; i < 32; ++i) {
      CHECK(int(q.scale(i, 0)) != 255);
      CHECK(int(q.scale(i, 32)) == 255);
      CHECK(int(q.code(i, 40)) == 0);
    }
    CHECK(int(q.code(5, 3)) == 8);
    differences.matrix(x.data(), 32, 64, 64, spec);
  }
  differences.check(4);
}
