// NaN, Inf and zeros: what the contract says outright, and the two sides alike.
#include <algorithm>
#include <limits>

#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename Visit>
void for_all_arithmetic(const Visit& visit) {
  for (const auto rule : kRules)
    for (const auto rounding : kRoundings) {
      reference::QuantizeSpec spec;
      spec.rule = rule;
      spec.rounding = rounding;
      spec.noise.seed = 99;
      visit(spec);
    }
}

bool all_zero(const std::vector<std::uint8_t>& codes) {
  return std::ranges::all_of(codes, [](std::uint8_t code) { return code == 0; });
}

}  // namespace

TEST_CASE("special_values.a NaN or Inf anywhere makes its block byte 255 and codes 0") {
  Random random(9);
  Differences differences;
  for_all_arithmetic([&](const reference::QuantizeSpec& spec) {
    for (const float bad : {kNaN, -kNaN, kInf, -kInf, from_bits(0x7f800001u)})
      for (const std::size_t where : {0, 15, 16, 31}) {
        std::vector<float> row(96);
        for (std::size_t start = 0; start < 96; start += 32)
          fill_outliers(std::span(row).subspan(start, 32), random);
        row[32 + where] = bad;
        const auto q = quantize_by_text(row.data(), 1, 96, 96, spec);
        CHECK(int(q.scales[0]) != 255);
        CHECK(int(q.scales[1]) == 255);
        CHECK(int(q.scales[2]) != 255);
        CHECK(std::all_of(q.codes.begin() + 16, q.codes.begin() + 32,
                          [](std::uint8_t code) { return code == 0; }));
        CHECK(q.value(0, 40) != q.value(0, 40));
        differences.matrix(row.data(), 1, 96, 96, spec);
      }
  });
  differences.check(900);
}

TEST_CASE("special_values.rotation spreads NaN and Inf over its segment and no further") {
  Random random(10);
  Differences differences;
  for (const int g : kRotations)
    for (const float bad : {kNaN, kInf, -kInf})
      for (const std::size_t where : {0, 15, 16, 31, 100, 255}) {
        std::vector<float> row(768);
        for (std::size_t start = 0; start < row.size(); start += 32)
          fill_outliers(std::span(row).subspan(start, 32), random);
        row[256 + where] = bad;
        reference::QuantizeSpec spec;
        spec.rotation = g;
        const auto q = quantize_by_text(row.data(), 1, 768, 768, spec);
        const std::size_t width = std::max<std::size_t>(32, static_cast<std::size_t>(g));
        const std::size_t segment = (256 + where) / width;
        for (std::size_t block = 0; block < q.scales.size(); ++block)
          CHECK((q.scales[block] == 255) == (block * 32 / width == segment));
        differences.matrix(row.data(), 1, 768, 768, spec);
      }
  differences.check(108);
}

TEST_CASE("special_values.finite values whose rotation overflows are judged after it") {
  Differences differences;
  std::vector<float> row(64, 3e38f);
  for (const int g : kRotations) {
    reference::QuantizeSpec spec;
    spec.rotation = g;
    const auto q = quantize_by_text(row.data(), 1, 64, 64, spec);
    CHECK((q.scales[0] == 255) == (g != 0));
    differences.matrix(row.data(), 1, 64, 64, spec);
  }
  differences.check(6);
}

TEST_CASE("special_values.zero blocks of either sign have byte 0 and codes 0") {
  Differences differences;
  std::vector<float> zeros(64, 0.0f);
  for (std::size_t j = 0; j < 64; j += 3) zeros[j] = -0.0f;
  for_all_arithmetic([&](reference::QuantizeSpec spec) {
    for (const int g : kRotations) {
      spec.rotation = g;
      const auto q = quantize_by_text(zeros.data(), 1, 64, 64, spec);
      CHECK(all_zero(q.scales));
      CHECK(all_zero(q.codes));
      differences.matrix(zeros.data(), 1, 64, 64, spec);
    }
  });
  differences.check(288);
}

TEST_CASE("special_values.a rotation that leaves exact zeros makes zero blocks") {
  const std::vector<float> constant(256, 1.25f);  // all of its energy goes to the first element
  Differences differences;
  reference::QuantizeSpec spec;
  spec.rotation = 256;
  const auto q = quantize_by_text(constant.data(), 1, 256, 256, spec);
  CHECK(q.value(0, 0) == 16);  // 1.25 * 256 / 16 = 20, half-way between 16 and 24: the even code
  CHECK(std::all_of(q.scales.begin() + 1, q.scales.end(), [](std::uint8_t b) { return b == 0; }));
  differences.matrix(constant.data(), 1, 256, 256, spec);
  differences.check(1);
}

TEST_CASE("special_values.minus zero beside other values keeps its sign") {
  Differences differences;
  for_all_arithmetic([&](const reference::QuantizeSpec& spec) {
    std::vector<float> row(32, 0.0f);
    row[0] = 1.0f;
    row[1] = -0.0f;
    row[2] = -0x1p-149f;  // below every step
    const auto q = quantize_by_text(row.data(), 1, 32, 32, spec);
    CHECK(int(q.code(0, 1)) == 8);
    CHECK(int(q.code(0, 2)) == 8);
    CHECK(int(q.code(0, 3)) == 0);
    differences.matrix(row.data(), 1, 32, 32, spec);
  });
  differences.check(48);
}
