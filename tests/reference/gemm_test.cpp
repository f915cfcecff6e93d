// The oracle's products against sums worked out another way, and its rule for NaN.
#include "reference/gemm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "reference/formats.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

// Any codes, and bytes around 127 so that every sum below is an exact integer of quarter steps.
Quantized any_operand(std::int64_t rows, std::int64_t k, std::uint64_t seed) {
  Samples random(seed);
  Quantized q;
  q.rows = rows;
  q.k = k;
  for (std::int64_t i = 0; i < rows * k / 2; ++i)
    q.codes.push_back(static_cast<std::uint8_t>(random.bits()));
  for (std::int64_t i = 0; i < rows * k / 32; ++i)
    q.scales.push_back(static_cast<std::uint8_t>(127 - 4 + random.bits() % 9));
  return q;
}

// The dot product in integers: codes doubled, scales as shifts.
struct Integers {
  std::int64_t sum = 0, magnitude = 0;  // in units of 2^-10
};

Integers by_integers(const Quantized& a, const Quantized& b, std::int64_t i, std::int64_t j) {
  constexpr std::int64_t twice[] = {0, 1, 2, 3, 4, 6, 8, 12};
  Integers out;
  for (std::int64_t k = 0; k < a.k; ++k) {
    const auto x = a.code(i, k), y = b.code(j, k);
    const std::int64_t product = twice[x & 7] * twice[y & 7]
                                 << (a.scale(i, k) - 123 + b.scale(j, k) - 123);
    out.sum += ((x ^ y) & 8) != 0 ? -product : product;
    out.magnitude += product;
  }
  return out;
}

}  // namespace

TEST_CASE("gemm.sums and magnitudes equal integer arithmetic") {
  const auto a = any_operand(5, 256, 1), b = any_operand(7, 256, 2);
  const auto all = gemm(a, b);
  REQUIRE(all.size() == 35);
  for (std::int64_t i = 0; i < 5; ++i)
    for (std::int64_t j = 0; j < 7; ++j) {
      const auto expected = by_integers(a, b, i, j);
      const auto& got = all[static_cast<std::size_t>(i * 7 + j)];
      CHECK(got.value == std::ldexp(static_cast<double>(expected.sum), -10));
      CHECK(got.magnitude == std::ldexp(static_cast<double>(expected.magnitude), -10));
      const auto one = gemm_at(a, b, i, j);
      CHECK(one.value == got.value);
      CHECK(one.magnitude == got.magnitude);
    }
}

TEST_CASE("gemm.alpha, beta, C and bias") {
  const auto a = any_operand(2, 64, 3), b = any_operand(3, 64, 4);
  const float c[] = {1, -2, 3, 99, -4, 5, -6, 99};  // two rows, 4 apart
  const float bias[] = {10, -20, 30};
  GemmSpec spec;
  spec.alpha = -0.5;
  spec.beta = 2;
  spec.c = c;
  spec.ldc = 4;
  spec.bias = bias;
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 3; ++j) {
      const auto plain = gemm_at(a, b, i, j);
      const auto full = gemm_at(a, b, i, j, spec);
      const double old = static_cast<double>(c[i * 4 + j]), added = static_cast<double>(bias[j]);
      CHECK(full.value == -0.5 * plain.value + 2 * old + added);
      CHECK(full.magnitude == 0.5 * plain.magnitude + 2 * std::fabs(old) + std::fabs(added));
    }
  // C is not read under beta 0, as BLAS has it.
  const float poison[] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};
  spec.beta = 0;
  spec.c = poison;
  CHECK_FALSE(std::isnan(gemm_at(a, b, 1, 2, spec).value));
}

TEST_CASE("gemm.byte 255 makes every result that touches it NaN, also against zeros") {
  auto a = any_operand(3, 96, 5), b = any_operand(4, 96, 6);
  a.scales[1 * 3 + 2] = 255;
  std::fill(b.codes.begin(), b.codes.end(), std::uint8_t{0});
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 4; ++j) {
      const auto product = gemm_at(a, b, i, j);
      CHECK(std::isnan(product.value) == (i == 1));
      if (i != 1) CHECK(product.value == 0);
    }
}

TEST_CASE("gemm.bytes 254 and 0 multiply to their finite product") {
  Quantized a, b;
  a.rows = b.rows = 1;
  a.k = b.k = 32;
  a.codes.assign(16, 0x77);  // all 6
  b.codes.assign(16, 0x77);
  a.scales = {254};
  b.scales = {0};
  CHECK(gemm_at(a, b, 0, 0).value == 32 * 36);
  a.scales = {0};
  CHECK(gemm_at(a, b, 0, 0).value == std::ldexp(32.0 * 36, -254));
  a.scales = b.scales = {254};
  CHECK(gemm_at(a, b, 0, 0).value == std::ldexp(32.0 * 36, 254));
}

TEST_CASE("gemm.operands of different K give NaN, not a product of their common part") {
  CHECK(std::isnan(gemm_at(any_operand(1, 64, 7), any_operand(1, 96, 8), 0, 0).value));
}

TEST_CASE("weight-only.A is taken as it is, and missing elements are zero") {
  Samples random(9);
  const auto b = any_operand(3, 64, 10);
  const auto a = sample(50, [&] { return std::floor(1000 * random.normal()); });
  const float c[] = {7, 8, 9};
  GemmSpec spec;
  spec.beta = 1;
  spec.c = c;
  for (std::int64_t j = 0; j < 3; ++j) {
    double sum = 0, magnitude = 0;
    for (std::int64_t k = 0; k < 50; ++k) {
      const double product = static_cast<double>(a[static_cast<std::size_t>(k)]) * b.value(j, k);
      sum += product;
      magnitude += std::fabs(product);
    }
    const auto got = weight_only_at(a.data(), 50, b, j, 0, spec);
    CHECK(got.value == sum + static_cast<double>(c[j]));
    CHECK(got.magnitude == magnitude + static_cast<double>(c[j]));
  }
  auto spoilt = b;
  spoilt.scales[1] = 255;
  CHECK(std::isnan(weight_only_at(a.data(), 50, spoilt, 0, 0).value));
  CHECK_FALSE(std::isnan(weight_only_at(a.data(), 50, spoilt, 1, 0).value));
}

TEST_CASE("gemm.padding adds nothing: ragged K equals the sum over the true elements") {
  Samples random(11);
  const auto x = sample(2 * 45, [&] { return random.normal(); });
  const auto y = sample(2 * 45, [&] { return random.normal(); });
  for (const auto rounding : {Rounding::rne, Rounding::sr16}) {
    QuantizeSpec spec;
    spec.rounding = rounding;
    const auto a = quantize(x.data(), 2, 45, 45, spec), b = quantize(y.data(), 2, 45, 45, spec);
    for (std::int64_t i = 0; i < 2; ++i)
      for (std::int64_t j = 0; j < 2; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < 45; ++k) sum += a.value(i, k) * b.value(j, k);
        CHECK(gemm_at(a, b, i, j).value == sum);
      }
  }
}

TEST_CASE("gemm.ts34 needs 4/3 for each operand") {
  CHECK(ts34_factor(ScaleRule::ts34) == doctest::Approx(4.0 / 3).epsilon(1e-15));
  for (const auto rule : {ScaleRule::floor, ScaleRule::even, ScaleRule::rceil, ScaleRule::ceil,
                          ScaleRule::quest, ScaleRule::quest_qutlass, ScaleRule::search})
    CHECK(ts34_factor(rule) == 1);
}
