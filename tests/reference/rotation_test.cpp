// The rotation against the Sylvester matrix, its fixed order of additions, and its signs.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <set>
#include <vector>

#include "reference/quantize.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

constexpr int kSizes[] = {16, 32, 64, 128, 256};

// The unscaled transform by halves: the same additions as stages h = 1, 2, ..., g/2.
std::vector<float> by_halves(const std::vector<float>& x) {
  if (x.size() == 1) return x;
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  const auto low = by_halves({x.begin(), middle});
  const auto high = by_halves({middle, x.end()});
  std::vector<float> out(x.size());
  for (std::size_t i = 0; i < low.size(); ++i) {
    out[i] = low[i] + high[i];
    out[i + low.size()] = low[i] - high[i];
  }
  return out;
}

QuantizeSpec rotation(int g) {
  QuantizeSpec spec;
  spec.rotation = g;
  return spec;
}

}  // namespace

TEST_CASE("rotation.small integers become rows of the Sylvester matrix over sqrt(g)") {
  Samples random(1);
  for (const int g : kSizes) {
    const auto n = static_cast<std::size_t>(g);
    const auto x = sample(n, [&] { return std::floor(17 * random.uniform()) - 8; });
    auto rotated = x;
    rotate_segment(rotated, rotation(g));
    for (std::size_t i = 0; i < n; ++i) {
      float sum = 0;
      for (std::size_t j = 0; j < n; ++j) sum += std::popcount(i & j) % 2 == 1 ? -x[j] : x[j];
      CHECK(rotated[i] == sum * static_cast<float>(1 / std::sqrt(static_cast<double>(g))));
    }
  }
}

TEST_CASE("rotation.additions are in the contract's order") {
  Samples random(2);
  for (const int g : kSizes)
    for (int n = 0; n < 50; ++n) {
      const auto x = sample(static_cast<std::size_t>(g),
                            [&] { return random.normal() * std::exp2(20 * random.uniform()); });
      auto rotated = x;
      rotate_segment(rotated, rotation(g));
      auto expected = by_halves(x);
      for (float& v : expected) v *= static_cast<float>(1 / std::sqrt(static_cast<double>(g)));
      CHECK(rotated == expected);
    }
}

TEST_CASE("rotation.keeps lengths and inner products, and undoes itself") {
  Samples random(3);
  for (const int g : kSizes)
    for (const auto signs : {Signs::none, Signs::fixed, Signs::per_call}) {
      auto spec = rotation(g);
      spec.signs = signs;
      spec.sign_seed = random.bits();
      for (auto& word : spec.sign_mask) word = static_cast<std::uint32_t>(random.bits());
      const auto x = sample(512, [&] { return random.normal(); });
      const auto y = sample(512, [&] { return random.normal(); });
      auto rx = x, ry = y;
      rotate_row(rx, spec);
      rotate_row(ry, spec);
      double before = 0, after = 0, difference = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        before += static_cast<double>(x[i]) * static_cast<double>(y[i]);
        after += static_cast<double>(rx[i]) * static_cast<double>(ry[i]);
      }
      CHECK(after == doctest::Approx(before).epsilon(1e-5));
      if (signs != Signs::none) continue;
      rotate_row(rx, spec);
      for (std::size_t i = 0; i < x.size(); ++i)
        difference = std::max(difference, std::fabs(static_cast<double>(rx[i] - x[i])));
      CHECK(difference < 1e-5);
    }
}

TEST_CASE("rotation.signs flip the elements that the mask or the seed names, in every segment") {
  for (const int g : kSizes) {
    auto spec = rotation(g);
    spec.sign_mask = {0x80000001, 0xd7e8, 0x55555555, 0, 0xffffffff, 7, 0x1234567, 0xf0000000};
    spec.sign_seed = 0xfeedfacecafebeef;
    const Words first = philox4x32({0, 0, 0x7369676e, 0}, {0xcafebeef, 0xfeedface}, 7);
    const Words second = philox4x32({1, 0, 0x7369676e, 0}, {0xcafebeef, 0xfeedface}, 7);
    for (const auto signs : {Signs::fixed, Signs::per_call}) {
      spec.signs = signs;
      std::vector<float> row(static_cast<std::size_t>(3 * g)), flipped;
      for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i + 1);
      flipped = row;
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::size_t j = i % static_cast<std::size_t>(g);
        const std::uint32_t word = signs == Signs::fixed ? spec.sign_mask[j / 32]
                                   : j < 128             ? first[j / 32]
                                                         : second[j / 32 - 4];
        if ((word >> (j % 32) & 1) != 0) flipped[i] = -flipped[i];
      }
      rotate_row(row, spec);
      rotate_row(flipped, rotation(g));
      CHECK(row == flipped);
    }
  }
}

TEST_CASE("rotation.of size 0 leaves a row as it is, signs or not") {
  Samples random(4);
  const auto x = sample(96, [&] { return random.normal(); });
  QuantizeSpec spec;
  spec.signs = Signs::fixed;
  spec.sign_mask.fill(0xffffffff);
  auto row = x;
  rotate_row(row, spec);
  CHECK(row == x);
}

TEST_CASE("rotation.signs of 512 seeds are balanced and all different") {
  std::set<std::vector<bool>> seen;
  int flips = 0;
  for (std::uint64_t seed = 0; seed < 512; ++seed) {
    auto spec = rotation(256);
    spec.signs = Signs::per_call;
    spec.sign_seed = seed << 20;
    // A rotated unit vector is a row of H: element 0 of it shows the flip.
    std::vector<bool> signs;
    for (std::size_t j = 0; j < 256; ++j) {
      std::vector<float> unit(256, 0.0f);
      unit[j] = 16;
      rotate_segment(unit, spec);
      signs.push_back(unit[0] < 0);
      flips += unit[0] < 0 ? 1 : 0;
    }
    seen.insert(signs);
  }
  CHECK(seen.size() == 512);
  CHECK(std::abs(flips - 65536) < 5 * 181);  // five deviations of 131072 fair coins
}
