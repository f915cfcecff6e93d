// Prologues' arithmetic against the reference that is written apart from it: equal bits.
#include "mxfp4/prologue.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

#include "reference/prologue.hpp"

using namespace qt;
namespace ref = quarterturn::reference;

namespace {

// The order of prologue.h's comment, block by block.
float factor_of(const std::vector<float>& row, float epsilon) {
  float lanes[kNormLanes] = {};
  for (std::size_t block = 0; 32 * block < row.size(); ++block) {
    float x[32];
    for (std::size_t j = 0; j < 32; ++j)
      x[j] = 32 * block + j < row.size() ? row[32 * block + j] : 0.0f;
    lanes[block % kNormLanes] += square_sum(x);
  }
  for (int half = kNormLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return norm_factor(lanes[0], i64(row.size()), epsilon);
}

}  // namespace

TEST_CASE("prologue.silu and swiglu have the reference's bits") {
  std::mt19937 random(81);
  std::normal_distribution<float> usual(0.0f, 8.0f);
  long wrong = 0;
  const auto check = [&](float gate, float value) {
    const float now = swiglu(gate, value), wanted = ref::swiglu32(gate, value);
    wrong += std::isnan(wanted) ? !std::isnan(now) : bits_of(now) != bits_of(wanted);
  };
  for (u32 h = 0; h < 0x10000u; ++h) check(float_of(h << 16), 1.0f);
  for (int i = 0; i < 1'000'000; ++i) check(float_of(u32(random())), float_of(u32(random())));
  for (int i = 0; i < 1'000'000; ++i) check(usual(random), usual(random));
  CHECK(wrong == 0);
}

TEST_CASE("prologue.rmsnorm has the reference's bits") {
  std::mt19937 random(82);
  std::normal_distribution<float> usual(0.0f, 3.0f);
  for (const std::size_t k : {1u, 31u, 32u, 96u, 2048u, 2080u, 4104u}) {
    std::vector<float> x(k), weight(k);
    for (auto& v : x) v = usual(random);
    for (auto& v : weight) v = usual(random);
    for (const float epsilon : {0.0f, 1e-5f}) {
      const auto wanted = ref::rmsnorm(x.data(), weight.data(), i64(k), epsilon);
      const float factor = factor_of(x, epsilon);
      long wrong = 0;
      double squares = 0;
      for (const float v : x) squares += double(v) * double(v);
      for (std::size_t i = 0; i < k; ++i)
        wrong += bits_of(normed(x[i], factor, weight[i])) != bits_of(wanted[i]);
      CHECK(wrong == 0);
      CHECK(double(factor) == doctest::Approx(1 / std::sqrt(squares / double(k) + epsilon)));
    }
  }
}
