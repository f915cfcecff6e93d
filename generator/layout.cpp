#include "generator/layout.hpp"

#include "generator/problem.hpp"

namespace quarterturn {

std::int64_t bits_per_element(Layout layout) {
  switch (layout) {
    case Layout::e5m2:
    case Layout::int8_rows:
    case Layout::int8_blocks:
      return 8;
    case Layout::bf16:
      return 16;
    case Layout::chosen:
    case Layout::plain:
    case Layout::scales_128x4:
    case Layout::aiter:
    case Layout::aiter_16x16:
    case Layout::panel16:
    case Layout::permuted:
      return 4;
  }
  return 4;
}

std::int64_t packed_stride(Layout layout, std::int64_t k) {
  switch (layout) {
    case Layout::plain:
    case Layout::scales_128x4:
    case Layout::aiter:
      return k / 2;
    case Layout::e5m2:
    case Layout::int8_rows:
      return round_up(k, 128);
    case Layout::int8_blocks:
      return k;
    case Layout::panel16:
      return k / 32 * 256;
    case Layout::permuted:
      return k / 2;
    case Layout::aiter_16x16:
      return k * 8;
    case Layout::bf16:
      return k * 2;
    case Layout::chosen:
      return 0;
  }
  return 0;
}

OperandBytes operand_bytes(Layout layout, std::int64_t rows, std::int64_t k, std::int64_t padding) {
  const std::int64_t padded = round_up(k, padding > 32 ? padding : 32);
  const std::int64_t blocks = padded / 32;
  switch (layout) {
    case Layout::plain:
      return {rows * padded / 2, rows * blocks};
    case Layout::scales_128x4:
      return {rows * padded / 2, round_up(rows, 128) * round_up(blocks, 4)};
    case Layout::aiter:
      return {rows * padded / 2, round_up(rows, 32) * round_up(blocks, 8)};
    case Layout::aiter_16x16:
      return {round_up(rows, 16) * padded / 2, round_up(rows, 32) * round_up(blocks, 8)};
    case Layout::e5m2:
    case Layout::int8_rows:
      return {rows * packed_stride(layout, padded), rows};
    case Layout::int8_blocks:
      return {rows * padded, rows * blocks * 8};
    case Layout::panel16:
      return {ceil_div(rows, 16) * blocks * 256, ceil_div(rows, 16) * blocks * 16};
    case Layout::permuted: {
      // Two references a row behind the scales.
      const std::int64_t stripes = round_up(rows, 64), k128 = round_up(padded, 128);
      return {stripes * k128 / 2, stripes * k128 / 32 + 2 * stripes};
    }
    case Layout::bf16:
      return {rows * packed_stride(layout, padded), 0};
    case Layout::chosen:
      return {};
  }
  return {};
}

}  // namespace quarterturn
