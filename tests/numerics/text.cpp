#include "tests/numerics/text.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "mxfp4/block.h"

namespace quarterturn::numerics {
namespace {

using reference::Quantized;
using reference::QuantizeSpec;

// The two sides number their enums alike, which the tables below rely on.
constexpr int kRuleCount = int(qt::ScaleRule::search) + 1;
constexpr int kRoundingCount = int(qt::Rounding::half_to_zero) + 1;
static_assert(int(reference::ScaleRule::search) == int(qt::ScaleRule::search));
static_assert(int(reference::ScaleRule::ts34) == int(qt::ScaleRule::ts34));
static_assert(int(reference::Rounding::half_to_zero) == int(qt::Rounding::half_to_zero));
static_assert(int(reference::Rounding::sr8) == int(qt::Rounding::sr8));
static_assert(int(reference::Signs::per_call) == int(qt::Signs::per_call));

using BlockFunction = qt::u32 (*)(const float (&)[32], const qt::Noise&, qt::u64, qt::u32 (&)[4]);
using TileFunction = qt::u32 (*)(const float (&)[32][32], const qt::Noise&, qt::u64, qt::u64,
                                 qt::u32 (&)[32][4]);

template <std::size_t i>
constexpr auto rule_at = qt::ScaleRule(i / kRoundingCount);
template <std::size_t i>
constexpr auto rounding_at = qt::Rounding(i % kRoundingCount);

template <std::size_t... i>
constexpr std::array<BlockFunction, sizeof...(i)> block_functions(std::index_sequence<i...>) {
  return {&qt::quantize_block<rule_at<i>, rounding_at<i>>...};
}

template <std::size_t... i>
constexpr std::array<TileFunction, sizeof...(i)> tile_functions(std::index_sequence<i...>) {
  return {&qt::quantize_tile<rule_at<i>, rounding_at<i>>...};
}

constexpr auto kBlockFunctions =
    block_functions(std::make_index_sequence<kRuleCount * kRoundingCount>());
// FLOOR, EVEN, RCEIL and CEIL come first.
constexpr auto kTileFunctions =
    tile_functions(std::make_index_sequence<std::size(kTileRules) * kRoundingCount>());

std::size_t table_index(const QuantizeSpec& spec) {
  return static_cast<std::size_t>(int(spec.rule) * kRoundingCount + int(spec.rounding));
}

qt::Noise noise_of(const QuantizeSpec& spec) {
  return {spec.noise.seed, spec.noise.stream,
          qt::noise_lane(spec.noise.operand, spec.noise.transposed)};
}

qt::SignMask mask_of(const QuantizeSpec& spec) {
  if (spec.signs == reference::Signs::per_call) return qt::sign_mask_from_seed(spec.sign_seed);
  qt::SignMask mask{};
  std::copy(spec.sign_mask.begin(), spec.sign_mask.end(), mask.word);
  return mask;
}

template <int g, qt::Signs signs>
void rotate_segments(std::span<float> row, const qt::SignMask& mask) {
  float segment[g];
  for (std::size_t start = 0; start < row.size(); start += g) {
    std::memcpy(segment, row.data() + start, sizeof segment);
    qt::rotate<g, signs>(segment, mask);
    std::memcpy(row.data() + start, segment, sizeof segment);
  }
}

template <int g>
void rotate_with_signs(std::span<float> row, const QuantizeSpec& spec) {
  const qt::SignMask mask = mask_of(spec);
  switch (spec.signs) {
    case reference::Signs::none:
      return rotate_segments<g, qt::Signs::none>(row, mask);
    case reference::Signs::fixed:
      return rotate_segments<g, qt::Signs::fixed>(row, mask);
    case reference::Signs::per_call:
      return rotate_segments<g, qt::Signs::per_call>(row, mask);
  }
}

void store_codes(const qt::u32 (&packed)[4], std::uint8_t* codes) {
  for (int i = 0; i < 16; ++i) codes[i] = static_cast<std::uint8_t>(packed[i / 4] >> (8 * (i % 4)));
}

}  // namespace

void rotate_by_text(std::span<float> row, const QuantizeSpec& spec) {
  switch (spec.rotation) {
    case 16:
      return rotate_with_signs<16>(row, spec);
    case 32:
      return rotate_with_signs<32>(row, spec);
    case 64:
      return rotate_with_signs<64>(row, spec);
    case 128:
      return rotate_with_signs<128>(row, spec);
    case 256:
      return rotate_with_signs<256>(row, spec);
    default:
      return;
  }
}

Quantized quantize_by_text(const float* x, std::int64_t rows, std::int64_t k, std::int64_t ld,
                           const QuantizeSpec& spec) {
  Quantized out;
  out.rows = rows;
  const std::int64_t unit = qt::segment_size(spec.rotation);
  out.k = (k + unit - 1) / unit * unit;
  out.codes.assign(static_cast<std::size_t>(rows * out.k / 2), 0);
  out.scales.assign(static_cast<std::size_t>(rows * out.k / 32), 0);
  std::vector<float> rotated(static_cast<std::size_t>(rows * out.k), 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::span row(rotated.data() + i * out.k, static_cast<std::size_t>(out.k));
    std::copy(x + i * ld, x + i * ld + k, row.begin());
    rotate_by_text(row, spec);
  }
  const qt::Noise noise = noise_of(spec);
  const std::int64_t k_global = spec.k_global > 0 ? spec.k_global : k;
  const bool tiles = spec.block == reference::ScaleBlock::b32x32;
  const std::int64_t height = tiles ? 32 : 1;
  for (std::int64_t first = 0; first < rows; first += height)
    for (std::int64_t column = 0; column < out.k; column += 32) {
      const qt::u64 position = qt::noise_position(first, column, spec.row0, spec.k0, k_global);
      const qt::u64 pitch =
          qt::noise_position(first + 1, column, spec.row0, spec.k0, k_global) - position;
      const std::int64_t count = std::min(height, rows - first);
      float tile[32][32] = {};
      for (std::int64_t i = 0; i < count; ++i)
        std::memcpy(tile[i], rotated.data() + (first + i) * out.k + column, sizeof tile[i]);
      qt::u32 packed[32][4];
      const qt::u32 byte =
          tiles ? kTileFunctions[table_index(spec)](tile, noise, position, pitch, packed)
                : kBlockFunctions[table_index(spec)](tile[0], noise, position, packed[0]);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = (first + i) * out.k + column;
        out.scales[static_cast<std::size_t>(at / 32)] = static_cast<std::uint8_t>(byte);
        store_codes(packed[i], out.codes.data() + at / 2);
      }
    }
  return out;
}

Block block_by_text(std::span<const float> x, const QuantizeSpec& spec) {
  float values[32];
  std::copy(x.begin(), x.end(), values);
  qt::u32 packed[4];
  Block out;
  out.byte = static_cast<std::uint8_t>(
      kBlockFunctions[table_index(spec)](values, noise_of(spec), 0, packed));
  store_codes(packed, out.codes.data());
  return out;
}

Block block_by_reference(std::span<const float> x, const QuantizeSpec& spec) {
  const Quantized q = reference::quantize(x.data(), 1, 32, 32, spec);
  Block out;
  out.byte = q.scales[0];
  std::copy(q.codes.begin(), q.codes.end(), out.codes.begin());
  return out;
}

}  // namespace quarterturn::numerics
