// The rotation against the Sylvester matrix itself and against another way to write its stages.
#include "mxfp4/hadamard.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "oracle.hpp"

using namespace qt;

namespace {

constexpr int kSize = 256;

template <int g>
void rotate_all(std::vector<float>& x, const SignMask& mask, Signs signs) {
  float segment[kSize];
  std::copy(x.begin(), x.end(), segment);
  if (signs == Signs::none) rotate<g, Signs::none>(segment, mask);
  if (signs == Signs::fixed) rotate<g, Signs::fixed>(segment, mask);
  if (signs == Signs::per_call) rotate<g, Signs::per_call>(segment, mask);
  std::copy(segment, segment + kSize, x.begin());
}

std::vector<float> rotated(int g, std::vector<float> x, Signs signs = Signs::none,
                           const SignMask& mask = {}) {
  switch (g) {
    case 16:
      rotate_all<16>(x, mask, signs);
      break;
    case 32:
      rotate_all<32>(x, mask, signs);
      break;
    case 64:
      rotate_all<64>(x, mask, signs);
      break;
    case 128:
      rotate_all<128>(x, mask, signs);
      break;
    case 256:
      rotate_all<256>(x, mask, signs);
      break;
    default:
      rotate_all<0>(x, mask, signs);
  }
  return x;
}

bool is_flipped(const SignMask& mask, int j) { return (mask.word[j / 32] >> (j % 32)) & 1u; }

// H x D in double, without the norm: entry (i, j) is -1 to the number of common one bits.
std::vector<double> by_matrix(int g, const std::vector<float>& x, Signs signs,
                              const SignMask& mask) {
  std::vector<double> out(x.size());
  for (int j = 0; j < int(x.size()); ++j)
    for (int i = 0; i < g; ++i) {
      double v = x[size_t(j / g * g + i)];
      if (signs != Signs::none && is_flipped(mask, i)) v = -v;
      out[size_t(j)] += std::popcount(unsigned(i & (j % g))) % 2 ? -v : v;
    }
  return out;
}

std::vector<float> made_up(unsigned seed, bool integers) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(kSize);
  for (auto& v : x) v = integers ? float(int(random() % 17u) - 8) : normal(random);
  return x;
}

}  // namespace

TEST_CASE("hadamard.norm is the nearest binary32") {
  for (const int g : {2, 4, 8, 16, 32, 64, 128, 256})
    CHECK(hadamard_norm(g) == float(1.0 / std::sqrt(double(g))));
}

TEST_CASE("hadamard.small integers agree with the matrix exactly") {
  const SignMask mask = sign_mask_from_seed(99);
  const auto x = made_up(1, true);
  for (const int g : {16, 32, 64, 128, 256})
    for (const auto signs : {Signs::none, Signs::fixed, Signs::per_call}) {
      const auto y = rotated(g, x, signs, mask);
      const auto expected = by_matrix(g, x, signs, mask);
      int wrong = 0;  // the sums are exact; the norm is one rounding
      for (size_t j = 0; j < y.size(); ++j)
        wrong += y[j] != float(expected[j]) * float(1.0 / std::sqrt(double(g)));
      INFO("g = ", g);
      CHECK(wrong == 0);
    }
}

TEST_CASE("hadamard.each stage is one addition in the order 1, 2, ..., g/2") {
  const SignMask mask = sign_mask_from_seed(5);
  auto x = made_up(2, false);
  x[3] = 1e8f;  // so that any other order rounds differently
  x[200] = -3e7f;
  for (const int g : {16, 32, 64, 128, 256}) {
    // As lanes that exchange with lane j^h do it.
    std::vector<float> lane(x);
    for (int j = 0; j < kSize; ++j)
      if (is_flipped(mask, j % g)) lane[size_t(j)] = -lane[size_t(j)];
    for (int h = 1; h < g; h *= 2) {
      const auto before = lane;
      for (int j = 0; j < kSize; ++j) {
        const float mine = before[size_t(j)], other = before[size_t(j ^ h)];
        lane[size_t(j)] = j & h ? other - mine : mine + other;
      }
    }
    const auto y = rotated(g, x, Signs::fixed, mask);
    int wrong = 0;
    for (size_t j = 0; j < y.size(); ++j)
      wrong += oracle::to_bits(y[j]) != oracle::to_bits(lane[j] * hadamard_norm(g));
    INFO("g = ", g);
    CHECK(wrong == 0);
  }
}

TEST_CASE("hadamard.is its own inverse and keeps the length") {
  const auto x = made_up(3, false);
  for (const int g : {16, 32, 64, 128, 256}) {
    const auto y = rotated(g, x);
    const auto back = rotated(g, y);
    double before = 0, after = 0, worst = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      before += double(x[j]) * x[j];
      after += double(y[j]) * y[j];
      worst = std::fmax(worst, std::fabs(double(back[j]) - x[j]));
    }
    CHECK(std::fabs(after / before - 1) < 1e-6);
    CHECK(worst < 2e-6);
  }
}

TEST_CASE("hadamard.g = 0 changes nothing, signs included") {
  const auto x = made_up(4, false);
  CHECK(rotated(0, x, Signs::fixed, sign_mask_from_seed(1)) == x);
}

TEST_CASE("hadamard.allowed segments") {
  int allowed = 0;
  for (int g = -1; g <= 1024; ++g) allowed += is_rotation(g);
  CHECK(allowed == 6);
  for (const int g : {0, 16, 32, 64, 128, 256}) CHECK(is_rotation(g));
}
