// The oracle's quantiser: rotation, scale rules and roundings as docs/numerics.md states them, in
// exact double arithmetic where the contract is exact and in single float operations where it
// rounds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reference/noise.hpp"

namespace quarterturn::reference {

enum class ScaleRule { floor, even, rceil, ceil, ts34, quest, quest_qutlass, search };
enum class Signs { none, fixed, per_call };
enum class ScaleBlock { b1x32, b32x32 };

struct QuantizeSpec {
  ScaleRule rule = ScaleRule::rceil;
  Rounding rounding = Rounding::rne;
  int rotation = 0;  ///< 0, 16, 32, 64, 128, 256
  Signs signs = Signs::none;
  std::array<std::uint32_t, 8> sign_mask{};
  std::uint64_t sign_seed = 0;
  ScaleBlock block = ScaleBlock::b1x32;
  NoiseKey noise;
  std::int64_t row0 = 0, k0 = 0;
  std::int64_t k_global = 0;  ///< 0: the operand's own K
};

/// An MXFP4 operand in layout `plain`, with K padded by zero blocks.
struct Quantized {
  std::int64_t rows = 0;
  std::int64_t k = 0;                ///< padded
  std::vector<std::uint8_t> codes;   ///< [rows, k/2], low nibble = even element
  std::vector<std::uint8_t> scales;  ///< [rows, k/32]

  std::uint8_t code(std::int64_t row, std::int64_t column) const;
  std::uint8_t scale(std::int64_t row, std::int64_t column) const;
  /// code value times 2^(byte - 127); NaN under byte 255.
  double value(std::int64_t row, std::int64_t column) const;
};

/// All values, row-major [rows, k].
std::vector<double> dequantize(const Quantized& q);

/// Why the contract has no such quantisation; empty where it has.
std::string_view refusal(const QuantizeSpec& spec);

/// Whether the rule may leave values beyond 6 on the grid, which biases stochastic rounding.
bool clips(ScaleRule rule);

/// The length to which K is padded: a multiple of 32 and of the rotation.
std::int64_t padded_length(std::int64_t k, int rotation);

/// Signs and rotation of one segment of `rotation` values (16 or more), in place.
void rotate_segment(std::span<float> segment, const QuantizeSpec& spec);

/// Signs and rotation of a whole row whose length is a multiple of the rotation. A rotation of 0
/// leaves the row, and so flips no signs.
void rotate_row(std::span<float> row, const QuantizeSpec& spec);

/// The scale byte of a finite, non-zero block of 32 rotated values.
std::uint8_t scale_byte(std::span<const float> block, ScaleRule rule);

/// The code of value / scale (a double that holds it exactly), with a draw out of 2^22.
std::uint8_t encode(double scaled, Rounding rounding, std::uint32_t draw);

/// Quantises X [rows, k], row i at x + i * ld, along k. An operand without rows where refusal() has
/// a reason.
Quantized quantize(const float* x, std::int64_t rows, std::int64_t k, std::int64_t ld,
                   const QuantizeSpec& spec);

/// Quantises the transpose of X [t, c]: a [c, t] operand with blocks along t. Sets
/// noise.transposed.
Quantized quantize_columns(const float* x, std::int64_t t, std::int64_t c, std::int64_t ld,
                           QuantizeSpec spec);

}  // namespace quarterturn::reference
