#include "tuner/operand_codes.hpp"

#include <fmt/format.h>

#include <cstring>

#include "reference/formats.hpp"
#include "templates/cpu/layouts.h"

namespace quarterturn {
namespace {

using qt::cpu::Int8Scale;

constexpr std::int64_t kBlock = 32;

std::uint8_t expected_code(const OracleRow& row, std::int64_t k) {
  const auto byte = row.codes[static_cast<std::size_t>(k / 2)];
  return static_cast<std::uint8_t>(k % 2 == 0 ? byte % 16 : byte / 16);
}

int twice(std::uint8_t code) { return static_cast<int>(2 * reference::e2m1_value(code)); }

// A code as it lies in memory: four bits, or for int8_blocks twice the value.
int stored_code(const PackedView& view, std::int64_t row, std::int64_t k) {
  const std::int64_t blocks = view.k / kBlock;
  switch (view.layout) {
    case Layout::int8_blocks:
      return reinterpret_cast<const signed char*>(view.codes)[row * view.k + k];
    case Layout::panel16: {
      const auto block = qt::cpu::panel_block(row / qt::cpu::kPanelRows, k / kBlock, blocks);
      const int inside = static_cast<int>(k % kBlock),
                c = static_cast<int>(row % qt::cpu::kPanelRows);
      const auto byte = view.codes[block * qt::cpu::kPanelCodes + qt::cpu::panel_byte(c, inside)];
      return byte >> qt::cpu::panel_shift(inside) & 15;
    }
    case Layout::aiter_16x16: {
      const auto byte =
          view.codes[(row / 16 * blocks + k / kBlock) * 256 + row % 16 * 16 + k % kBlock / 2];
      return k % 2 == 0 ? byte & 15 : byte >> 4;
    }
    default: {
      const auto byte = view.codes[row * view.k / 2 + k / 2];
      return k % 2 == 0 ? byte & 15 : byte >> 4;
    }
  }
}

// The scale of a block, and of int8_blocks the whole record, as bytes.
std::vector<unsigned char> stored_scale(const PackedView& view, std::int64_t row,
                                        std::int64_t block) {
  const std::int64_t blocks = view.k / kBlock;
  if (view.layout == Layout::int8_blocks) {
    const auto* at =
        view.scales + (row * blocks + block) * static_cast<std::int64_t>(sizeof(Int8Scale));
    return {at, at + sizeof(Int8Scale)};
  }
  if (view.layout == Layout::panel16) {
    const auto at = qt::cpu::panel_block(row / qt::cpu::kPanelRows, block, blocks);
    return {view.scales[at * qt::cpu::kPanelScales + row % qt::cpu::kPanelRows]};
  }
  if (view.layout == Layout::scales_128x4) {
    const auto tile = row / 128 * ceil_div(blocks, 4) + block / 4;
    return {view.scales[tile * 512 + row % 32 * 16 + row / 32 % 4 * 4 + block % 4]};
  }
  if (view.layout == Layout::aiter || view.layout == Layout::aiter_16x16) {
    const auto tile = row / 32 * ceil_div(blocks, 8) + block / 8;
    return {view.scales[tile * 256 + block % 4 * 64 + row % 16 * 4 + block % 8 / 4 * 2 +
                        row % 32 / 16]};
  }
  return {view.scales[row * blocks + block]};
}

std::vector<unsigned char> expected_scale(const PackedView& view, const OracleRow& row,
                                          std::int64_t block) {
  const auto byte = row.scales[static_cast<std::size_t>(block)];
  if (view.layout != Layout::int8_blocks) return {byte};
  int sum = 0;
  bool all_zero = true;
  for (std::int64_t k = block * kBlock; k < (block + 1) * kBlock; ++k) {
    const int value = twice(expected_code(row, k));
    sum += value;
    all_zero = all_zero && value == 0;
  }
  const Int8Scale record = qt::cpu::int8_scale(byte, sum, all_zero);
  std::vector<unsigned char> out(sizeof record);
  std::memcpy(out.data(), &record, sizeof record);
  return out;
}

}  // namespace

bool is_readable(Layout layout) {
  return layout == Layout::plain || layout == Layout::int8_blocks || layout == Layout::panel16 ||
         layout == Layout::scales_128x4 || layout == Layout::aiter || layout == Layout::aiter_16x16;
}

std::string compare_row(const PackedView& view, std::int64_t row, const OracleRow& expected) {
  for (std::int64_t block = 0; block < view.k / kBlock; ++block)
    if (stored_scale(view, row, block) != expected_scale(view, expected, block))
      return fmt::format("scale of row {}, block {} differs from the reference's byte {}", row,
                         block, expected.scales[static_cast<std::size_t>(block)]);
  for (std::int64_t k = 0; k < view.k; ++k) {
    const auto code = expected_code(expected, k);
    const int wanted = view.layout == Layout::int8_blocks ? twice(code) : code;
    if (const int got = stored_code(view, row, k); got != wanted)
      return fmt::format("code at row {}, k {} is {}, the reference's is {}", row, k, got, wanted);
  }
  return {};
}

std::vector<double> decode_row(const PackedView& view, std::int64_t row) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(view.k));
  for (std::int64_t k = 0; k < view.k; ++k) {
    const int code = stored_code(view, row, k);
    out.push_back(view.layout == Layout::int8_blocks
                      ? 0.5 * code
                      : reference::e2m1_value(static_cast<std::uint8_t>(code)));
  }
  return out;
}

}  // namespace quarterturn
