// templates/mxfp4 behind the reference's types, so that one call of each can be compared.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "reference/quantize.hpp"

namespace quarterturn::numerics {

inline constexpr int kRotations[] = {0, 16, 32, 64, 128, 256};
inline constexpr reference::Signs kSigns[] = {reference::Signs::none, reference::Signs::fixed,
                                              reference::Signs::per_call};
inline constexpr reference::ScaleRule kRules[] = {
    reference::ScaleRule::floor,         reference::ScaleRule::even,  reference::ScaleRule::rceil,
    reference::ScaleRule::ceil,          reference::ScaleRule::ts34,  reference::ScaleRule::quest,
    reference::ScaleRule::quest_qutlass, reference::ScaleRule::search};
inline constexpr reference::ScaleRule kTileRules[] = {
    reference::ScaleRule::floor, reference::ScaleRule::even, reference::ScaleRule::rceil,
    reference::ScaleRule::ceil};
inline constexpr reference::Rounding kRoundings[] = {
    reference::Rounding::rne, reference::Rounding::sr16,      reference::Rounding::sr22,
    reference::Rounding::sr8, reference::Rounding::half_away, reference::Rounding::half_to_zero};

/// What reference::quantize() gives, computed by the text: rotate() of each segment, then
/// quantize_block() of each block or quantize_tile() of each 32x32 tile.
reference::Quantized quantize_by_text(const float* x, std::int64_t rows, std::int64_t k,
                                      std::int64_t ld, const reference::QuantizeSpec& spec);

/// One block of 32 values: its byte and its codes, two to a byte.
struct Block {
  std::uint8_t byte = 0;
  std::array<std::uint8_t, 16> codes{};

  friend bool operator==(const Block&, const Block&) = default;
};

Block block_by_text(std::span<const float> x, const reference::QuantizeSpec& spec);
Block block_by_reference(std::span<const float> x, const reference::QuantizeSpec& spec);

/// Signs and rotation of a row in place, by the text.
void rotate_by_text(std::span<float> row, const reference::QuantizeSpec& spec);

}  // namespace quarterturn::numerics
