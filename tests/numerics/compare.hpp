// Counts differences between the two sides and keeps the first, so that a failure names its input.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "tests/numerics/inputs.hpp"
#include "tests/numerics/text.hpp"

namespace quarterturn::numerics {

inline std::string describe(const reference::QuantizeSpec& spec) {
  return fmt::format("rule {} rounding {} g {} signs {} block {}", int(spec.rule),
                     int(spec.rounding), spec.rotation, int(spec.signs), int(spec.block));
}

class Differences {
 public:
  template <typename Describe>
  void count(bool equal, const Describe& describe_input) {
    ++compared_;
    if (equal) return;
    if (differing_++ == 0) first_ = describe_input();
  }

  /// Bytes and codes of a block, by both sides.
  void block(std::span<const float> x, const reference::QuantizeSpec& spec) {
    const Block text = block_by_text(x, spec);
    const Block oracle = block_by_reference(x, spec);
    count(text == oracle, [&] {
      std::string values;
      for (const float v : x) values += fmt::format(" {:08x}", to_bits(v));
      return fmt::format("{}: byte {} of the text, {} of the reference, for{}", describe(spec),
                         text.byte, oracle.byte, values);
    });
  }

  /// A whole matrix, by both sides.
  void matrix(const float* x, std::int64_t rows, std::int64_t k, std::int64_t ld,
              const reference::QuantizeSpec& spec) {
    const auto text = quantize_by_text(x, rows, k, ld, spec);
    const auto oracle = reference::quantize(x, rows, k, ld, spec);
    count(text.k == oracle.k && text.scales == oracle.scales && text.codes == oracle.codes,
          [&] { return describe(spec) + first_place(text, oracle); });
  }

  /// Fails the running test where any pair differed, or fewer than `least` were compared.
  void check(std::int64_t least) const {
    INFO(differing_ << " of " << compared_ << " differ; first: " << first_);
    CHECK(differing_ == 0);
    CHECK(compared_ >= least);
  }

 private:
  static std::string first_place(const reference::Quantized& text,
                                 const reference::Quantized& oracle) {
    if (text.k != oracle.k) return fmt::format(": padded K {} and {}", text.k, oracle.k);
    for (std::int64_t i = 0; i < text.rows; ++i)
      for (std::int64_t j = 0; j < text.k; ++j)
        if (text.scale(i, j) != oracle.scale(i, j) || text.code(i, j) != oracle.code(i, j))
          return fmt::format(": at ({}, {}) the text has byte {} code {}, the reference {} and {}",
                             i, j, text.scale(i, j), text.code(i, j), oracle.scale(i, j),
                             oracle.code(i, j));
    return "";
  }

  std::int64_t compared_ = 0, differing_ = 0;
  std::string first_;
};

}  // namespace quarterturn::numerics
