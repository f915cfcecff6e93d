// Stochastic rounding is unbiased where the contract says so, and the test that shows it also
// rejects every biased combination that is known.
#include <doctest/doctest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "reference/formats.hpp"
#include "reference/gemm.hpp"
#include "reference/quantize.hpp"
#include "reference/statistics.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

// Grid neighbours of a magnitude in units of the scale. Beyond 6 the grid is thought to go on: what
// is clipped there is what the test is to find.
std::pair<double, double> neighbours(double a) {
  if (a > 6) return {6, 8};
  int low = 0;
  while (low < 7 && kMagnitudes[low + 1] <= a) ++low;
  return low == 7 || kMagnitudes[low] == a ? std::pair{a, a}
                                           : std::pair{kMagnitudes[low], kMagnitudes[low + 1]};
}

enum class Vary { rows, streams, seeds };

// Rounds one block of 32 many times, reads the codes as `factor` times their value, and compares
// the means with the block. `true_factor` is what the rule's definition asks for.
BiasTest test_block(std::vector<float> block, ScaleRule rule, Rounding rounding, double factor,
                    double true_factor, Vary vary, std::int64_t draws = 16384) {
  QuantizeSpec spec;
  spec.rule = rule;
  spec.rounding = rounding;
  spec.noise = {0x9e3779b97f4a7c15, 0, 0, 0};
  std::vector<double> sums(32, 0.0);
  std::uint8_t byte = 0;
  const auto add = [&](const Quantized& q, std::int64_t row) {
    byte = q.scales[static_cast<std::size_t>(row)];
    for (std::int64_t i = 0; i < 32; ++i)
      sums[static_cast<std::size_t>(i)] += std::fabs(q.value(row, i));
  };
  if (vary == Vary::rows) {
    std::vector<float> rows;
    for (std::int64_t n = 0; n < draws; ++n) rows.insert(rows.end(), block.begin(), block.end());
    const auto q = quantize(rows.data(), draws, 32, 32, spec);
    for (std::int64_t n = 0; n < draws; ++n) add(q, n);
  } else {
    for (std::int64_t n = 0; n < draws; ++n) {
      (vary == Vary::streams ? spec.noise.stream += 1 : spec.noise.seed += 1);
      add(quantize(block.data(), 1, 32, 32, spec), 0);
    }
  }
  BiasTest test(draws);
  const double unit = true_factor * e8m0_value(byte);
  for (std::size_t i = 0; i < 32; ++i) {
    const double a = std::fabs(static_cast<double>(block[i]));
    const auto [low, high] = neighbours(a / unit);
    test.add(a, low * unit, high * unit, factor * sums[i] / static_cast<double>(draws));
  }
  return test;
}

// Values between all codes and near every end, with largest magnitude `amax`.
std::vector<float> block_below(float amax, std::uint64_t seed) {
  Samples random(seed);
  std::vector<float> x = {1e-3f,  0.25f, -0.499f, 0.5f,   0.75f,  -1.99f, 2,
                          3.999f, -4,    4.5f,    -1.25f, 0.001f, 0,      amax};
  while (x.size() < 32)
    x.push_back(static_cast<float>((2 * random.uniform() - 1) * static_cast<double>(amax)));
  return x;
}

}  // namespace

TEST_CASE("unbiased.rceil and ceil with stochastic rounding, over rows, streams and seeds") {
  for (const auto rounding : {Rounding::sr16, Rounding::sr22})
    for (const auto vary : {Vary::rows, Vary::streams, Vary::seeds})
      for (const float amax : {5.9f, 6.0f, 4.7f}) {
        const auto block = block_below(amax, 1);
        const auto rceil = test_block(block, ScaleRule::rceil, rounding, 1, 1, vary);
        CHECK_MESSAGE(rceil.unbiased(), rceil.worst_z() << ", mean " << rceil.mean_z());
        const auto ceil = test_block(block, ScaleRule::ceil, rounding, 1, 1, vary);
        CHECK_MESSAGE(ceil.unbiased(), ceil.worst_z() << ", mean " << ceil.mean_z());
      }
}

TEST_CASE("unbiased.ts34 with its 4/3, and not without it") {
  for (const float amax : {4.7f, 5.9f, 7.9f}) {
    const auto block = block_below(amax, 2);
    const auto right =
        test_block(block, ScaleRule::ts34, Rounding::sr16, 4.0 / 3, 4.0 / 3, Vary::rows);
    CHECK_MESSAGE(right.unbiased(), right.worst_z() << ", mean " << right.mean_z());
    CHECK_FALSE(
        test_block(block, ScaleRule::ts34, Rounding::sr16, 1, 4.0 / 3, Vary::rows).unbiased());
  }
}

TEST_CASE("unbiased.rules that clip are not, where they clip") {
  for (const auto rule : {ScaleRule::floor, ScaleRule::even}) {
    const float clipped = rule == ScaleRule::floor ? 7.9f : 6.9f;
    CHECK_FALSE(
        test_block(block_below(clipped, 3), rule, Rounding::sr16, 1, 1, Vary::rows).unbiased());
    CHECK(test_block(block_below(5.9f, 3), rule, Rounding::sr16, 1, 1, Vary::rows).unbiased());
  }
}

TEST_CASE("unbiased.nearest rounding is not") {
  for (const auto rounding : {Rounding::rne, Rounding::half_away, Rounding::half_to_zero})
    CHECK_FALSE(
        test_block(block_below(5.9f, 4), ScaleRule::rceil, rounding, 1, 1, Vary::rows).unbiased());
}

TEST_CASE("unbiased.8 random bits are not, as a large enough sample shows") {
  // k / 256 rounds down: 1/512 of a step on average. A quarter of a million draws see it, 16-bit
  // noise they do not.
  const auto block = block_below(5.9f, 5);
  CHECK_FALSE(
      test_block(block, ScaleRule::rceil, Rounding::sr8, 1, 1, Vary::rows, 1 << 18).unbiased());
  CHECK(test_block(block, ScaleRule::rceil, Rounding::sr16, 1, 1, Vary::rows, 1 << 18).unbiased());
}

TEST_CASE("unbiased.noise from words shifted too far truncates half of the elements") {
  // A published kernel draws one 32-bit word for two pairs of elements and hands the second pair
  // word >> 16, to an instruction that consumes the top 22 bits. Simulated: 8.5 % shrink an
  // operand.
  const auto shrink = [](bool shifted) {
    Samples random(6);
    ErrorSums sums;
    for (std::uint64_t block = 0; block < 20000; ++block) {
      const auto x = sample(32, [&] { return random.normal(); });
      const double scale = e8m0_value(scale_byte(x, ScaleRule::rceil));
      for (std::uint64_t i = 0; i < 32; ++i) {
        const std::uint64_t group = block * 8 + i / 4;
        const std::uint32_t word =
            philox4x32({static_cast<std::uint32_t>(group), 0, 0, 0}, {1, 2}, 7)[0];
        const std::uint32_t seed = shifted && i % 4 >= 2 ? word >> 16 : word;
        const auto value = static_cast<double>(x[i]);
        sums.add(value, scale * e2m1_value(encode(value / scale, Rounding::sr22, seed >> 10)));
      }
    }
    return sums.shrink();
  };
  CHECK(std::fabs(shrink(false)) < 1.5e-3);
  CHECK(std::fabs(shrink(true) - 0.085) < 0.005);
}

namespace {

enum class Noise { independent, shared };

struct ProductTest {
  bool unbiased;
  double gain;            // <mean of products, exact> / <exact, exact>
  double variance_ratio;  // of the products to the formula's, summed over outputs
};

// Many stochastic quantisations of both operands. For each output, the standard deviation that
// follows from independent roundings: sum of Va Vb + Va b^2 + Vb a^2, V = (high - a)(a - low).
ProductTest test_products(const std::vector<float>& a, const std::vector<float>& b, std::int64_t k,
                          ScaleRule rule, double alpha, Noise noise) {
  constexpr std::int64_t kDraws = 1500;
  const auto m = static_cast<std::int64_t>(a.size()) / k,
             n = static_cast<std::int64_t>(b.size()) / k;
  QuantizeSpec spec;
  spec.rule = rule;
  spec.rounding = Rounding::sr16;
  spec.noise.seed = 0xb7e151628aed2a6a;
  GemmSpec gemm_spec;
  gemm_spec.alpha = alpha;
  std::vector<double> sums(static_cast<std::size_t>(m * n)), squares(sums.size());
  Quantized qa, qb;
  for (std::int64_t draw = 0; draw < kDraws; ++draw) {
    spec.noise.stream = static_cast<std::uint32_t>(draw);
    spec.noise.operand = 0;
    qa = quantize(a.data(), m, k, k, spec);
    spec.noise.operand = noise == Noise::shared ? 0 : 1;
    qb = quantize(b.data(), n, k, k, spec);
    const auto products = gemm(qa, qb, gemm_spec);
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i] += products[i].value;
      squares[i] += products[i].value * products[i].value;
    }
  }
  const double factor = ts34_factor(rule);
  const auto variances = [&](const std::vector<float>& x, const Quantized& q) {
    std::vector<double> out;
    for (std::int64_t i = 0; i < q.rows; ++i)
      for (std::int64_t j = 0; j < k; ++j) {
        const double unit = factor * e8m0_value(q.scale(i, j));
        const double value =
            std::fabs(static_cast<double>(x[static_cast<std::size_t>(i * k + j)])) / unit;
        const auto [low, high] = neighbours(value);
        out.push_back((high - value) * (value - low) * unit * unit);
      }
    return out;
  };
  const auto va = variances(a, qa), vb = variances(b, qb);
  BiasTest test(kDraws);
  double product = 0, energy = 0, measured = 0, expected = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double exact = 0, variance = 0;
      for (std::int64_t l = 0; l < k; ++l) {
        const auto at = static_cast<std::size_t>(i * k + l),
                   bt = static_cast<std::size_t>(j * k + l);
        const auto x = static_cast<double>(a[at]), y = static_cast<double>(b[bt]);
        exact += x * y;
        variance += va[at] * vb[bt] + va[at] * y * y + vb[bt] * x * x;
      }
      const auto at = static_cast<std::size_t>(i * n + j);
      const double mean = sums[at] / kDraws;
      test.add_standardised((mean - exact) / std::sqrt(variance / kDraws));
      product += mean * exact;
      energy += exact * exact;
      measured += squares[at] / kDraws - mean * mean;
      expected += variance;
    }
  return {test.unbiased(), product / energy, measured / expected};
}

std::vector<float> normal_operand(std::uint64_t seed) {
  Samples random(seed);
  return sample(8 * 256, [&] { return random.normal(); });
}

// One row, as long as eight above: operands share noise only where their positions are the same.
std::vector<float> positive_row(std::uint64_t seed) {
  auto x = normal_operand(seed);
  for (float& v : x) v = std::fabs(v);
  return x;
}

}  // namespace

TEST_CASE("unbiased.products of rceil and ts34, with the variance of independent roundings") {
  const auto a = normal_operand(7), b = normal_operand(8);
  const auto rceil = test_products(a, b, 256, ScaleRule::rceil, 1, Noise::independent);
  CHECK(rceil.unbiased);
  CHECK(std::fabs(rceil.gain - 1) < 2e-3);
  CHECK(std::fabs(rceil.variance_ratio - 1) < 0.03);
  const auto ts34 = test_products(a, b, 256, ScaleRule::ts34, 16.0 / 9, Noise::independent);
  CHECK(ts34.unbiased);
  CHECK(std::fabs(ts34.gain - 1) < 2e-3);
  CHECK(std::fabs(ts34.variance_ratio - 1) < 0.03);
}

TEST_CASE("unbiased.products of floor are not: the published gain is 0.970") {
  const auto floor = test_products(normal_operand(7), normal_operand(8), 256, ScaleRule::floor, 1,
                                   Noise::independent);
  CHECK_FALSE(floor.unbiased);
  CHECK(std::fabs(floor.gain - 0.970) < 0.01);
}

TEST_CASE("unbiased.products of ts34 are not where 16/9 is forgotten, or half of it") {
  const auto a = normal_operand(7), b = normal_operand(8);
  const auto none = test_products(a, b, 256, ScaleRule::ts34, 1, Noise::independent);
  CHECK_FALSE(none.unbiased);
  CHECK(std::fabs(none.gain - 0.5625) < 2e-3);
  const auto half = test_products(a, b, 256, ScaleRule::ts34, 4.0 / 3, Noise::independent);
  CHECK_FALSE(half.unbiased);
  CHECK(std::fabs(half.gain - 0.75) < 2e-3);
}

TEST_CASE("unbiased.products of operands that share their noise are not") {
  // The independent simulation has 1.2 to 1.9 % for data of one sign.
  const auto a = positive_row(9), b = positive_row(10);
  CHECK(test_products(a, b, 2048, ScaleRule::rceil, 1, Noise::independent).unbiased);
  const auto shared = test_products(a, b, 2048, ScaleRule::rceil, 1, Noise::shared);
  CHECK_FALSE(shared.unbiased);
  CHECK(shared.gain > 1.012);
  CHECK(shared.gain < 1.025);
  CHECK(shared.variance_ratio > 1.3);
}
