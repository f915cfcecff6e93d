// The quantiser as a whole: blocks, special values, padding, positions, copies and square scales.
#include "reference/quantize.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/formats.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

std::vector<float> normals(std::int64_t count, std::uint64_t seed) {
  Samples random(seed);
  return sample(static_cast<std::size_t>(count), [&] { return random.normal(); });
}

QuantizeSpec stochastic(std::uint64_t seed) {
  QuantizeSpec spec;
  spec.rounding = Rounding::sr16;
  spec.noise.seed = seed;
  return spec;
}

bool same(const Quantized& a, const Quantized& b) {
  return a.rows == b.rows && a.k == b.k && a.codes == b.codes && a.scales == b.scales;
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("quantize.a block worked out by hand") {
  // Largest magnitude 11: rceil gives 2 (11 / 2 = 5.5), so these are twice their grid values.
  std::vector<float> x(32, 0.0f);
  const float given[] = {11, -1, 0.4f, -0.6f, 2.5f, 5, -7, -0.0f};
  const std::uint8_t codes[] = {7, 8 + 1, 0, 8 + 1, 2, 4, 8 + 6, 8};
  for (std::size_t i = 0; i < 8; ++i) x[i] = given[i];
  const auto q = quantize(x.data(), 1, 32, 32, {});
  CHECK(q.scale(0, 5) == 128);
  for (int i = 0; i < 8; ++i) CHECK(q.code(0, i) == codes[i]);
  for (int i = 8; i < 32; ++i) CHECK(q.code(0, i) == 0);
  CHECK(q.codes[0] == 0x97);  // element 0 is the low nibble
  CHECK(q.value(0, 0) == 12);
  CHECK(q.value(0, 6) == -8);
  CHECK(dequantize(q)[6] == -8);
}

TEST_CASE("quantize.ts34 encodes three quarters under the floor scale") {
  std::vector<float> x(32, 0.0f);
  x[0] = 7;     // floor scale 1; 5.25 rounds to 6
  x[1] = -4;    // -3 is exact
  x[2] = 1.5f;  // 1.125 rounds to 1
  QuantizeSpec spec;
  spec.rule = ScaleRule::ts34;
  const auto q = quantize(x.data(), 1, 32, 32, spec);
  CHECK(q.scale(0, 0) == 127);
  CHECK(q.value(0, 0) == 6);
  CHECK(q.value(0, 1) == -3);
  CHECK(q.value(0, 2) == 1);
}

TEST_CASE("quantize.zero blocks are byte 0 and codes 0 under every rule, even of negative zeros") {
  const std::vector<float> x(64, -0.0f);
  for (int rule = 0; rule < 8; ++rule)
    for (const int g : {0, 16, 64}) {
      auto spec = stochastic(5);
      spec.rule = static_cast<ScaleRule>(rule);
      spec.rotation = g;
      const auto q = quantize(x.data(), 1, 64, 64, spec);
      CHECK(q.scales == std::vector<std::uint8_t>(2, 0));
      CHECK(q.codes == std::vector<std::uint8_t>(32, 0));
    }
}

TEST_CASE("quantize.NaN and Inf spoil their rotated block alone") {
  for (const float bad : {kNaN, -kNaN, kInf, -kInf})
    for (int rule = 0; rule < 8; ++rule)
      for (const int g : {0, 16, 32, 64}) {
        auto x = normals(256, 6);
        x[70] = bad;  // block 2; segment 1 of 64
        QuantizeSpec spec;
        spec.rule = static_cast<ScaleRule>(rule);
        spec.rotation = g;
        const auto q = quantize(x.data(), 1, 256, 256, spec);
        for (std::int64_t block = 0; block < 8; ++block) {
          const bool spoilt = block == 2 || (g == 64 && block == 3);
          CHECK((q.scale(0, block * 32) == 255) == spoilt);
          CHECK(std::isnan(q.value(0, block * 32 + 31)) == spoilt);
          if (spoilt)
            for (int i = 0; i < 32; ++i) CHECK(q.code(0, block * 32 + i) == 0);
        }
      }
}

TEST_CASE("quantize.finite values whose rotation overflows count as Inf") {
  const std::vector<float> x(32, std::numeric_limits<float>::max());
  QuantizeSpec spec;
  CHECK(quantize(x.data(), 1, 32, 32, spec).scales[0] == 253);
  spec.rotation = 32;
  CHECK(quantize(x.data(), 1, 32, 32, spec).scales[0] == 255);
}

TEST_CASE("quantize.subnormals are encoded under byte 0 and not flushed") {
  std::vector<float> x(32, 0.0f);
  x[0] = 0x1p-127f;
  x[1] = -0x1p-128f;
  x[2] = 0x1p-149f;
  const auto q = quantize(x.data(), 1, 32, 32, {});
  CHECK(q.scales[0] == 0);
  CHECK(q.value(0, 0) == 0x1p-127);
  CHECK(q.value(0, 1) == -0x1p-128);
  CHECK(q.value(0, 2) == 0);
}

TEST_CASE("quantize.K is padded with zero blocks to 32 and to the rotation") {
  CHECK(padded_length(0, 0) == 0);
  CHECK(padded_length(1, 0) == 32);
  CHECK(padded_length(33, 16) == 64);
  CHECK(padded_length(33, 128) == 128);
  CHECK(padded_length(256, 256) == 256);
  for (const int g : {0, 16, 32, 64, 128, 256})
    for (const std::int64_t k : {0, 1, 31, 32, 33, 100, 250}) {
      const auto x = normals(3 * k, 7);
      auto spec = stochastic(8);
      spec.rotation = g;
      const std::int64_t padded = padded_length(k, g);
      std::vector<float> wide(static_cast<std::size_t>(3 * padded), 0.0f);
      for (std::int64_t i = 0; i < 3; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          wide[static_cast<std::size_t>(i * padded + j)] = x[static_cast<std::size_t>(i * k + j)];
      const auto q = quantize(x.data(), 3, k, k, spec);
      // Positions count by the true K rounded up to 32.
      spec.k_global = k;
      CHECK(same(q, quantize(wide.data(), 3, padded, padded, spec)));
    }
}

TEST_CASE("quantize.rows may lie further apart than K") {
  const auto x = normals(4 * 100, 9);
  std::vector<float> packed;
  for (std::size_t i = 0; i < 4; ++i)
    packed.insert(packed.end(), x.begin() + static_cast<std::ptrdiff_t>(i * 100),
                  x.begin() + static_cast<std::ptrdiff_t>(i * 100 + 64));
  CHECK(same(quantize(x.data(), 4, 64, 100, {}), quantize(packed.data(), 4, 64, 64, {})));
}

TEST_CASE("quantize.stochastic bits are those of the whole tensor, whichever part is quantised") {
  constexpr std::int64_t kRows = 10, kK = 256;
  const auto x = normals(kRows * kK, 10);
  auto spec = stochastic(11);
  spec.rotation = 64;
  const auto whole = quantize(x.data(), kRows, kK, kK, spec);
  for (const std::int64_t row0 : {0, 3, 9})
    for (const std::int64_t k0 : {0, 64, 192}) {
      spec.row0 = row0;
      spec.k0 = k0;
      spec.k_global = kK;
      const auto part = quantize(x.data() + row0 * kK + k0, kRows - row0, kK - k0, kK, spec);
      for (std::int64_t i = 0; i < part.rows; ++i)
        for (std::int64_t j = 0; j < part.k; ++j) {
          REQUIRE(part.code(i, j) == whole.code(row0 + i, k0 + j));
          REQUIRE(part.scale(i, j) == whole.scale(row0 + i, k0 + j));
        }
    }
}

TEST_CASE("quantize.positions beyond 32 bits draw other noise") {
  const auto x = normals(32, 12);
  auto spec = stochastic(13);
  const auto first = quantize(x.data(), 1, 32, 32, spec);
  spec.row0 = std::int64_t{1} << 32;
  CHECK_FALSE(same(first, quantize(x.data(), 1, 32, 32, spec)));
}

TEST_CASE("quantize.the transposed copy is the transpose, with noise of its own") {
  constexpr std::int64_t kTokens = 70, kColumns = 40;
  const auto x = normals(kTokens * kColumns, 14);
  std::vector<float> transposed(x.size());
  for (std::size_t i = 0; i < kTokens; ++i)
    for (std::size_t j = 0; j < kColumns; ++j) transposed[j * kTokens + i] = x[i * kColumns + j];
  for (const int g : {0, 32, 128}) {
    QuantizeSpec spec;
    spec.rotation = g;
    const auto q = quantize_columns(x.data(), kTokens, kColumns, kColumns, spec);
    CHECK(q.rows == kColumns);
    CHECK(q.k == padded_length(kTokens, g));
    CHECK(same(q, quantize(transposed.data(), kColumns, kTokens, kTokens, spec)));

    auto noisy = stochastic(15);
    noisy.rotation = g;
    const auto copy = quantize_columns(x.data(), kTokens, kColumns, kColumns, noisy);
    CHECK_FALSE(same(copy, quantize(transposed.data(), kColumns, kTokens, kTokens, noisy)));
    noisy.noise.transposed = 1;
    CHECK(same(copy, quantize(transposed.data(), kColumns, kTokens, kTokens, noisy)));
  }
}

TEST_CASE("quantize.square scales are shared with the transpose, and so are codes") {
  constexpr std::int64_t kRows = 50, kK = 96;  // 50: the last tile has 18 rows
  auto x = normals(kRows * kK, 16);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= static_cast<float>(1 + i % 7);
  x[40 * kK + 80] = kNaN;
  for (const auto rule : {ScaleRule::floor, ScaleRule::even, ScaleRule::rceil, ScaleRule::ceil}) {
    QuantizeSpec spec;
    spec.rule = rule;
    spec.block = ScaleBlock::b32x32;
    const auto q = quantize(x.data(), kRows, kK, kK, spec);
    const auto t = quantize_columns(x.data(), kRows, kK, kK, spec);
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < kK; ++j) {
        REQUIRE(q.scale(i, j) == q.scale(i / 32 * 32, j));
        REQUIRE(q.scale(i, j) == t.scale(j, i));
        REQUIRE(q.code(i, j) == t.code(j, i));
      }
    CHECK(q.scale(49, 95) == 255);
    CHECK(q.scale(31, 95) != 255);
    // The tile's byte is that of its largest element.
    float amax = 0;
    for (std::size_t i = 32; i < 50; ++i)
      for (std::size_t j = 0; j < 32; ++j) amax = std::max(amax, std::fabs(x[i * kK + j]));
    std::vector<float> largest(32, 0.0f);
    largest[0] = amax;
    CHECK(q.scale(32, 0) == scale_byte(largest, rule));
  }
}

TEST_CASE("quantize.what the contract does not have is refused with a reason") {
  QuantizeSpec spec;
  CHECK(refusal(spec).empty());
  spec.rotation = 48;
  CHECK_FALSE(refusal(spec).empty());
  spec.rotation = 0;
  spec.block = ScaleBlock::b32x32;
  CHECK(refusal(spec).empty());
  for (const auto rule :
       {ScaleRule::ts34, ScaleRule::quest, ScaleRule::quest_qutlass, ScaleRule::search}) {
    spec.rule = rule;
    CHECK_FALSE(refusal(spec).empty());
  }
  spec.rule = ScaleRule::rceil;
  spec.rotation = 32;
  CHECK_FALSE(refusal(spec).empty());
  const auto x = normals(1024, 17);
  CHECK(quantize(x.data(), 32, 32, 32, spec).rows == 0);
}
