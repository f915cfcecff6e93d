// QUEST and SEARCH: the fixed tree and each rounding, against a plain rewriting and real numbers.
#include "mxfp4/scale_stats.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "oracle.hpp"

using namespace qt;

namespace {

using Block = std::vector<float>;

Block made_up(std::mt19937& random, int kind) {
  std::normal_distribution<float> normal;
  Block x(32);
  const float unit = std::ldexp(1.0f + float(random() % 1000u) / 1000.0f, int(random() % 40u) - 20);
  for (auto& v : x) {
    v = normal(random) * unit;
    if (kind == 1) v += 3 * unit;
    if (kind == 2 && random() % 16u == 0) v *= 20;
  }
  return x;
}

// The tree by recursion: a sum is the sum of its halves.
float tree(const float* x, int n) { return n == 1 ? *x : tree(x, n / 2) + tree(x + n / 2, n / 2); }

unsigned byte_of(ScaleRule rule, const Block& block) {
  float x[32];
  std::copy(block.begin(), block.end(), x);
  const u32 amax = amax_bits(x);
  if (rule == ScaleRule::quest) return scale_byte<ScaleRule::quest>(x, amax);
  if (rule == ScaleRule::quest_qutlass) return scale_byte<ScaleRule::quest_qutlass>(x, amax);
  return scale_byte<ScaleRule::search>(x, amax);
}

unsigned quest_in_plain_words(const Block& x, float epsilon) {
  const float mean = tree(x.data(), 32) / 32;
  Block squares;
  for (const float v : x) squares.push_back((v - mean) * (v - mean));
  float t = std::sqrt(tree(squares.data(), 32) / 32) * float(2.92247856 / 6);
  t = t + epsilon;
  if (t == 0) return 0;
  return oracle::clamp_byte(std::ilogb(t) + 127);
}

double real_error(const Block& x, unsigned byte) {
  double sum = 0;
  for (const float v : x) {
    const double y = oracle::scaled(v, byte);
    const double q = oracle::kGrid[oracle::nearest(y, false, oracle::Tie::even)];
    sum += std::pow((q - std::fabs(y)) * oracle::scale_of(byte), 2);
  }
  return sum;
}

}  // namespace

TEST_CASE("scale_stats.tree adds adjacent pairs") {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const Block x = made_up(random, 2);
    float s[32];
    std::copy(x.begin(), x.end(), s);
    CHECK(oracle::to_bits(tree_sum(s)) == oracle::to_bits(tree(x.data(), 32)));
  }
}

TEST_CASE("scale_stats.quest equals its rewriting and, away from powers of two, real numbers") {
  std::mt19937 random(2);
  int wrong = 0, far_wrong = 0, far = 0;
  for (int i = 0; i < 6000; ++i) {
    const Block x = made_up(random, i % 3);
    const unsigned byte = byte_of(ScaleRule::quest, x);
    wrong += byte != quest_in_plain_words(x, 0);
    wrong += byte_of(ScaleRule::quest_qutlass, x) != quest_in_plain_words(x, 1e-8f);
    double mean = 0, variance = 0;
    for (const float v : x) mean += v / 32.0;
    for (const float v : x) variance += (v - mean) * (v - mean) / 32.0;
    const double exponent = std::log2(std::sqrt(variance) * 2.92247856 / 6);
    if (std::fabs(exponent - std::round(exponent)) < 1e-5) continue;
    ++far;
    far_wrong += int(byte) != int(std::floor(exponent)) + 127;
  }
  CHECK(wrong == 0);
  CHECK(far_wrong == 0);
  CHECK(far > 5900);
}

TEST_CASE("scale_stats.quest at the deviation where its byte steps") {
  CHECK(kQuestStep == oracle::to_bits(float(2.92247856 / 6)));
  CHECK(kQutlassEpsilon == oracle::to_bits(1e-8f));
  int wrong = 0, below = 0, above = 0;
  const std::uint32_t edge = oracle::to_bits(float(6 / 2.92247856));
  for (std::uint32_t bits = edge - 50; bits <= edge + 50; ++bits) {
    Block x(32, oracle::from_bits(bits));  // the deviation of +-s is s, but for roundings
    for (size_t j = 0; j < 32; j += 2) x[j] = -x[j];
    const unsigned byte = byte_of(ScaleRule::quest, x);
    wrong += byte != quest_in_plain_words(x, 0);
    below += byte == 126u;
    above += byte == 127u;
  }
  CHECK(wrong == 0);
  CHECK(below > 40);
  CHECK(above > 40);
}

TEST_CASE("scale_stats.quest at its ends") {
  const Block constant(32, 5.0f);  // no deviation at all
  CHECK(byte_of(ScaleRule::quest, constant) == 0u);
  CHECK(byte_of(ScaleRule::quest_qutlass, constant) == unsigned(std::ilogb(1e-8f) + 127));
  CHECK(byte_of(ScaleRule::quest, Block(32, 0.0f)) == 0u);
  CHECK(byte_of(ScaleRule::quest_qutlass, Block(32, -0.0f)) == 0u);  // zero blocks have no epsilon
  Block huge(32, 3e38f);
  CHECK(byte_of(ScaleRule::quest, huge) == 254u);  // the sum overflows
  for (size_t j = 0; j < 32; j += 2) huge[j] = -3e38f;
  CHECK(byte_of(ScaleRule::quest, huge) == 254u);  // the squares overflow
  Block tiny(32, 1e-40f);
  tiny[7] = -1e-40f;
  CHECK(byte_of(ScaleRule::quest, tiny) == 0u);  // the squares underflow
  Block broken(32, 1.0f);
  broken[9] = NAN;
  CHECK(byte_of(ScaleRule::quest, broken) == 255u);
  CHECK(byte_of(ScaleRule::quest_qutlass, broken) == 255u);
  CHECK(byte_of(ScaleRule::search, broken) == 255u);
}

TEST_CASE("scale_stats.search finds the least error of its three candidates") {
  std::mt19937 random(3);
  int wrong = 0, chosen[3] = {};
  for (int i = 0; i < 6000; ++i) {
    const Block x = made_up(random, i % 3);
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::fabs(v));
    const unsigned middle = oracle::amax_byte(ScaleRule::rceil, amax);
    const unsigned byte = byte_of(ScaleRule::search, x);
    REQUIRE((byte + 1 >= middle && byte <= middle + 1));
    ++chosen[byte + 1 - middle];
    // Real numbers may rank two errors differently only where binary32 cannot tell them apart.
    for (unsigned other = middle - 1; other <= middle + 1; ++other)
      wrong += real_error(x, byte) > real_error(x, other) * (1 + 1e-5);
  }
  CHECK(wrong == 0);
  CHECK(chosen[0] > 0);
  CHECK(chosen[1] > 0);
  CHECK(chosen[2] > 0);
}

TEST_CASE("scale_stats.search takes the larger byte at equal error") {
  Block x(32, 0.0f);
  x[0] = 4.0f;  // on the grid of X = 1 and of X = 2
  CHECK(oracle::amax_byte(ScaleRule::rceil, 4.0f) == 127u);
  CHECK(byte_of(ScaleRule::search, x) == 128u);
  x[1] = 0.5f;  // X = 2 leaves 0.5 half-way
  CHECK(byte_of(ScaleRule::search, x) == 127u);
}

TEST_CASE("scale_stats.search is right where the bytes end") {
  Block x(32, 0.0f);
  x[3] = 0x1p-149f;
  CHECK(byte_of(ScaleRule::search, x) == 1u);  // both give code 0 and the same error: the larger
  x[4] = 0x1p-126f;                            // code 4 at byte 0
  x[5] = 0x1p-128f;
  CHECK(byte_of(ScaleRule::search, x) == 0u);
  CHECK(byte_of(ScaleRule::search, Block(32, 3.402823466e38f)) <= 254u);
}
