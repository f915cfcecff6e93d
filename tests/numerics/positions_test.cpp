// Where an element lies decides its noise: shards, tails, far positions, streams and copies.
#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;
using reference::Rounding;

namespace {

constexpr Rounding kStochastic[] = {Rounding::sr16, Rounding::sr22, Rounding::sr8};

std::vector<float> ordinary_matrix(std::int64_t rows, std::int64_t k, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> out(static_cast<std::size_t>(rows * k));
  for (float& v : out) v = static_cast<float>(static_cast<std::int64_t>(random() % 4001) - 2000);
  return out;
}

}  // namespace

TEST_CASE("positions.offsets, global K, streams, operands and copies") {
  Random random(11);
  Differences differences;
  const auto x = ordinary_matrix(5, 96, 1);
  for (const auto rounding : kStochastic)
    for (int repeat = 0; repeat < 400; ++repeat) {
      reference::QuantizeSpec spec;
      spec.rounding = rounding;
      spec.noise = {random(), static_cast<std::uint32_t>(random()),
                    static_cast<std::uint32_t>(random() % 2),
                    static_cast<std::uint32_t>(random() % 2)};
      spec.row0 = static_cast<std::int64_t>(random() % (1u << (repeat % 31)));
      spec.k0 = static_cast<std::int64_t>(random() % (1u << (repeat % 20))) * 32;
      spec.k_global = spec.k0 + 96 + static_cast<std::int64_t>(random() % 1000);
      differences.matrix(x.data(), 5, 96, 96, spec);
    }
  differences.check(1200);
}

TEST_CASE("positions.calls beyond 2^32") {
  Differences differences;
  const auto x = ordinary_matrix(3, 64, 2);
  for (const auto rounding : kStochastic)
    for (const std::int64_t row0 : {std::int64_t{1} << 31, (std::int64_t{1} << 40) - 1}) {
      reference::QuantizeSpec spec;
      spec.rounding = rounding;
      spec.row0 = row0;
      spec.k_global = 1 << 20;
      differences.matrix(x.data(), 3, 64, 64, spec);
      // The high word of the call is used: another row0 with equal low words gives other codes.
      auto other = spec;
      other.row0 = row0 - (std::int64_t{1} << 24);
      CHECK(quantize_by_text(x.data(), 3, 64, 64, spec).codes !=
            quantize_by_text(x.data(), 3, 64, 64, other).codes);
    }
  differences.check(6);
}

TEST_CASE("positions.tails: K that is no multiple of the block or of the rotation") {
  Random random(12);
  Differences differences;
  for (const std::int64_t k : {1, 7, 31, 33, 63, 65, 100, 255, 257, 300})
    for (const int g : kRotations)
      for (const auto rounding : kRoundings) {
        const auto x = mixed_matrix(3, k + 5, random);
        reference::QuantizeSpec spec;
        spec.rotation = g;
        spec.rounding = rounding;
        differences.matrix(x.data(), 3, k, k + 5, spec);
      }
  differences.check(360);
}

TEST_CASE("positions.a shard draws what it draws within the whole") {
  const std::int64_t rows = 8, k = 256;
  const auto x = ordinary_matrix(rows, k, 3);
  for (const auto rounding : kStochastic) {
    reference::QuantizeSpec spec;
    spec.rounding = rounding;
    spec.noise.seed = 5;
    const auto whole = quantize_by_text(x.data(), rows, k, k, spec);
    spec.row0 = 3;
    spec.k0 = 64;
    spec.k_global = k;
    const auto shard = quantize_by_text(x.data() + 3 * k + 64, 4, 128, k, spec);
    int differing = 0;
    for (std::int64_t i = 0; i < 4; ++i)
      for (std::int64_t j = 0; j < 128; ++j)
        differing += shard.code(i, j) != whole.code(i + 3, j + 64);
    CHECK(differing == 0);
  }
}

TEST_CASE("positions.the column-wise copy is the transpose under its own noise") {
  const std::int64_t rows = 70, columns = 40;
  const auto x = ordinary_matrix(rows, columns, 4);
  std::vector<float> transposed(x.size());
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      transposed[static_cast<std::size_t>(j * rows + i)] =
          x[static_cast<std::size_t>(i * columns + j)];
  for (const auto rounding : kRoundings)
    for (const int g : {0, 32, 64}) {
      reference::QuantizeSpec spec;
      spec.rounding = rounding;
      spec.rotation = g;
      const auto oracle = reference::quantize_columns(x.data(), rows, columns, columns, spec);
      auto copy = spec;
      copy.noise.transposed = 1;
      const auto text = quantize_by_text(transposed.data(), columns, rows, rows, copy);
      CHECK(text.scales == oracle.scales);
      CHECK(text.codes == oracle.codes);
      const auto row_wise = quantize_by_text(transposed.data(), columns, rows, rows, spec);
      CHECK((row_wise.codes == text.codes) == !reference::is_stochastic(rounding));
    }
}
