// Philox against published vectors, and each position's draw against the table of the contract.
#include "reference/noise.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

using namespace quarterturn::reference;

namespace {

// The call that holds a position's bits, spelled out.
Words call(std::uint64_t seed, std::uint64_t number, std::uint32_t stream, std::uint32_t last) {
  return philox4x32(
      {static_cast<std::uint32_t>(number & 0xffffffff), static_cast<std::uint32_t>(number >> 32),
       stream, last},
      {static_cast<std::uint32_t>(seed & 0xffffffff), static_cast<std::uint32_t>(seed >> 32)}, 7);
}

constexpr std::uint64_t kSeed = 0x0123456789abcdef;

}  // namespace

TEST_CASE("philox.vectors that the Random123 library publishes (kat_vectors)") {
  struct Vector {
    Words counter;
    std::array<std::uint32_t, 2> key;
    Words seven, ten;
  };
  const Vector vectors[] = {{{0, 0, 0, 0},
                             {0, 0},
                             {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48},
                             {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                            {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                             {0xffffffff, 0xffffffff},
                             {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662},
                             {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                            {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                             {0xa4093822, 0x299f31d0},
                             {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a},
                             {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const auto& v : vectors) {
    CHECK(philox4x32(v.counter, v.key, 7) == v.seven);
    CHECK(philox4x32(v.counter, v.key, 10) == v.ten);
  }
}

TEST_CASE("draw.sr16 takes two positions from a word, low half first") {
  const NoiseKey key{kSeed, 9, 2, 1};
  const std::uint64_t start = 8 * 0x123456789ull;  // a call number above 32 bits
  const Words words = call(kSeed, 0x123456789ull, 9, 2 + 4);
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::uint32_t half = (words[i / 2] >> (i % 2 == 1 ? 16 : 0)) & 0xffff;
    CHECK(draw(Rounding::sr16, key, start + i) == ((half << 6) | 0x20));
  }
}

TEST_CASE("draw.sr22 takes the top 22 bits of a word") {
  const NoiseKey key{kSeed, 3, 1, 0};
  const std::uint64_t start = 4 * 0x2fffffffdull;
  const Words words = call(kSeed, 0x2fffffffdull, 3, 1);
  for (std::uint32_t i = 0; i < 4; ++i)
    CHECK(draw(Rounding::sr22, key, start + i) == words[i] >> 10);
}

TEST_CASE("draw.sr8 takes four positions from a word, lowest byte first") {
  const NoiseKey key{kSeed, 0xffffffff, 3, 1};
  const Words words = call(kSeed, 5, 0xffffffff, 3 + 4);
  for (std::uint32_t i = 0; i < 16; ++i)
    CHECK(draw(Rounding::sr8, key, 80 + i) == ((words[i / 4] >> (8 * (i % 4))) & 0xff) << 14);
}

TEST_CASE("draw.sr_cvt_rs hands a word to four positions, each of which has a byte") {
  const NoiseKey key{kSeed, 12, 1, 1};
  const std::uint64_t start = 16 * 0x123456789ull;
  const Words words = call(kSeed, 0x123456789ull, 12, 1 + 4);
  // Operands f, e, b, a: the low bytes of the word's halves are f's and e's.
  constexpr int shifts[4] = {0, 16, 8, 24};
  for (std::uint32_t i = 0; i < 16; ++i) {
    CHECK(word_of_instruction(Rounding::sr_cvt_rs, key, start + i) == words[i / 4]);
    CHECK(draw(Rounding::sr_cvt_rs, key, start + i) == ((words[i / 4] >> shifts[i % 4]) & 0xff)
                                                           << 14);
  }
}

TEST_CASE("draw.sr_cvt_scalef32 hands a word to two positions, which share its top 22 bits") {
  const NoiseKey key{kSeed, 13, 0, 0};
  const Words words = call(kSeed, 7, 13, 0);
  for (std::uint32_t i = 0; i < 8; ++i)
    CHECK(draw(Rounding::sr_cvt_scalef32, key, 56 + i) == words[i / 2] >> 10);
}

TEST_CASE("draw.nearest roundings take nothing") {
  for (const auto rounding : {Rounding::rne, Rounding::half_away, Rounding::half_to_zero}) {
    CHECK_FALSE(is_stochastic(rounding));
    CHECK(draw(rounding, {kSeed, 1, 2, 1}, 77) == 0);
  }
}

TEST_CASE("draw.every part of the key matters") {
  std::set<std::vector<std::uint32_t>> seen;
  const auto remember = [&](const NoiseKey& key) {
    std::vector<std::uint32_t> draws;
    for (std::uint64_t p = 0; p < 8; ++p) draws.push_back(draw(Rounding::sr22, key, p));
    return seen.insert(draws).second;
  };
  CHECK(remember({kSeed, 0, 0, 0}));
  CHECK(remember({kSeed + 1, 0, 0, 0}));
  CHECK(remember({kSeed + (1ull << 32), 0, 0, 0}));
  CHECK(remember({kSeed, 1, 0, 0}));
  for (std::uint32_t operand = 1; operand < 4; ++operand) CHECK(remember({kSeed, 0, operand, 0}));
  for (std::uint32_t operand = 0; operand < 4; ++operand) CHECK(remember({kSeed, 0, operand, 1}));
}

TEST_CASE("draw.uniform and without serial correlation") {
  constexpr std::uint64_t kCount = 1 << 20;
  constexpr int kBins = 256;
  for (const auto rounding : {Rounding::sr16, Rounding::sr22, Rounding::sr8}) {
    std::vector<double> bins(kBins, 0.0);
    double sum = 0, lagged = 0, previous = 0;
    for (std::uint64_t p = 0; p < kCount; ++p) {
      const std::uint32_t r = draw(rounding, {kSeed, 1, 0, 0}, p);
      ++bins.at(r >> 14);  // beyond 22 bits there is none
      const double centred = r / 4194304.0 - 0.5;
      sum += centred;
      lagged += centred * previous;
      previous = centred;
    }
    double chi = 0;
    for (const double b : bins) chi += (b - kCount / kBins) * (b - kCount / kBins);
    chi /= kCount / kBins;
    // 255 degrees of freedom: mean 255, deviation 22.6; bounds at five deviations.
    CHECK(chi > 255 - 113);
    CHECK(chi < 255 + 113);
    const double n = static_cast<double>(kCount);
    // sr8 lacks the half step that sr16 adds, so its mean is 1/512 low.
    const double expected = rounding == Rounding::sr8 ? -1.0 / 512 : 0;
    CHECK(std::fabs(sum / n - expected) < 5 * std::sqrt(1.0 / 12 / n));
    CHECK(std::fabs(lagged / n) < 5.0 / 12 / std::sqrt(n));
  }
}
