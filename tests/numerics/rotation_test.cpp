// The rotated values, bit by bit: the fixed order of additions, the one multiplication, the signs.
#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

void compare(Differences& differences, const std::vector<float>& row,
             const reference::QuantizeSpec& spec) {
  std::vector<float> text = row, oracle = row;
  rotate_by_text(text, spec);
  reference::rotate_row(oracle, spec);
  for (std::size_t j = 0; j < row.size(); ++j) {
    const bool both_nan = text[j] != text[j] && oracle[j] != oracle[j];
    differences.count(both_nan || to_bits(text[j]) == to_bits(oracle[j]), [&] {
      return fmt::format("{}: element {} is {:08x} by the text, {:08x} by the reference",
                         describe(spec), j, to_bits(text[j]), to_bits(oracle[j]));
    });
  }
}

}  // namespace

TEST_CASE("rotation.every size, every kind of signs, every kind of data") {
  Random random(1);
  Differences differences;
  for (const int g : kRotations)
    for (const auto signs : kSigns)
      for (int repeat = 0; repeat < 60; ++repeat) {
        reference::QuantizeSpec spec;
        spec.rotation = g;
        spec.signs = signs;
        spec.sign_seed = random();
        for (auto& word : spec.sign_mask) word = static_cast<std::uint32_t>(random());
        compare(differences, mixed_matrix(1, 1024, random), spec);
      }
  differences.check(1000000);
}

TEST_CASE("rotation.ordinary values, where every addition rounds") {
  Random random(2);
  Differences differences;
  for (const int g : kRotations)
    for (const auto signs : kSigns)
      for (int repeat = 0; repeat < 40; ++repeat) {
        reference::QuantizeSpec spec;
        spec.rotation = g;
        spec.signs = signs;
        spec.sign_seed = random();
        for (auto& word : spec.sign_mask) word = static_cast<std::uint32_t>(random());
        std::vector<float> row(1024);
        for (std::size_t start = 0; start < row.size(); start += 32)
          fill_outliers(std::span(row).subspan(start, 32), random);
        compare(differences, row, spec);
      }
  differences.check(700000);
}

TEST_CASE("rotation.each bit of a mask reaches its own element of every segment") {
  Differences differences;
  for (const int g : {16, 64, 256})
    for (std::size_t bit = 0; bit < 256; ++bit) {
      reference::QuantizeSpec spec;
      spec.rotation = g;
      spec.signs = reference::Signs::fixed;
      spec.sign_mask[bit / 32] = 1u << (bit % 32);
      std::vector<float> row(512);
      for (std::size_t j = 0; j < row.size(); ++j) row[j] = static_cast<float>(j * j % 509);
      compare(differences, row, spec);
    }
  differences.check(390000);
}
