// Quantising behind a prologue: parts of X pass through it into a tile of binary32, which the
// quantiser then reads as if it were X.
#ifndef QT_CPU_PROLOGUE_H
#define QT_CPU_PROLOGUE_H

#include "cpu/quantize_sources.h"
#include "mxfp4/prologue.h"

namespace qt {
namespace cpu {

constexpr i64 kTileSide = 256;  // holds whole segments of every rotation

struct PrologueTile {
  alignas(64) float x[kTileSide][kTileSide];
};

/// The same modes over elements in binary32.
template <class Config>
struct ConstantTileConfig : Config {
  static constexpr DType a_type = DType::f32;
};
template <class Config>
QT_FN auto tile_config(const Config& config) {
  if constexpr (is_constant<Config>) {
    return ConstantTileConfig<Config>{};
  } else {
    Config out = config;
    out.a_type = DType::f32;
    return out;
  }
}

/// X's rows of this batch entry.
struct PrologueSource {
  const void* x;
  const void* weight;
  DType type;
  i64 first, ld;  // of the entry's first element; elements
  i64 m, k;       // of the result
  float epsilon;
};

QT_CPU_NOINLINE float norm_factor_of_row(const PrologueSource& from, i64 row) {
  float lanes[kNormLanes] = {};
  const i64 at = from.first + row * from.ld;
  for (i64 block = 0; block * kBlock < from.k; ++block) {
    float x[kBlock];
    for (i64 j = 0; j < kBlock; ++j)
      x[j] = block * kBlock + j < from.k ? load_element(from.x, at + block * kBlock + j, from.type)
                                         : 0.0f;
    lanes[block % kNormLanes] += square_sum(x);
  }
  for (int half = kNormLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return norm_factor(lanes[0], from.k, from.epsilon);
}

/// `count` results of a row from column `column` on.
QT_CPU_NOINLINE void prologue_row(Prologue prologue, const PrologueSource& from, i64 row,
                                  i64 column, i64 count, float factor, float* to) {
  const i64 at = from.first + row * from.ld;
  if (prologue == Prologue::rmsnorm) {
    for (i64 c = column; c < column + count; ++c)
      *to++ = normed(load_element(from.x, at + c, from.type), factor,
                     load_element(from.weight, c, from.type));
    return;
  }
  const bool split = prologue == Prologue::swiglu_split;
  const i64 gate = split ? at + column : at + 2 * column;
  const i64 value = split ? gate + from.k : gate + 1, step = split ? 1 : 2;
  for (i64 c = 0; c < count; ++c)
    to[c] = swiglu(load_element(from.x, gate + step * c, from.type),
                   load_element(from.x, value + step * c, from.type));
}

/// Rows and columns from (row, column) on, as many as a tile has; zeros stand beyond the result.
QT_FN void fill_tile(Prologue prologue, const PrologueSource& from, i64 row, i64 column, i64 rows,
                     const float* factors, PrologueTile& tile) {
  const i64 count = lesser(kTileSide, from.k - column);
  for (i64 r = 0; r < rows; ++r) {
    i64 c = 0;
    if (row + r < from.m && count > 0) {
      prologue_row(prologue, from, row + r, column, count, factors[r], tile.x[r]);
      c = count;
    }
    for (; c < kTileSide; ++c) tile.x[r][c] = 0.0f;
  }
}

/// Where the block of a row lies, as a destination of its own; panels begin at multiples of 16
/// rows.
QT_FN Destination destination_from(const Destination& to, i64 row, i64 block) {
  Destination out = to;
  i64 codes = row * to.code_pitch + block * (kBlock / 2), scales = row * to.scale_pitch + block;
  if (to.layout == Layout::int8_blocks) {
    codes = (row * to.blocks + block) * kBlock;
    scales = (row * to.blocks + block) * i64(sizeof(Int8Scale));
  } else if (to.layout == Layout::panel16) {
    codes = panel_block(row / kPanelRows, block, to.blocks) * kPanelCodes;
    scales = panel_block(row / kPanelRows, block, to.blocks) * kPanelScales;
  }
  out.codes += codes;
  out.scales += scales;
  return out;
}

/// A tile as the part of a copy from its (row, k) on; `columns`: of the copy of X^T.
QT_FN Copy copy_of_tile(const Copy& whole, const PrologueTile& tile, i64 row, i64 k, bool columns) {
  Copy out = whole;
  out.source = reinterpret_cast<const u8*>(&tile.x[0][0]);
  out.type = DType::f32;
  out.row_step = columns ? 1 : kTileSide;
  out.k_step = columns ? kTileSide : 1;
  out.rows = lesser(whole.rows - row, kTileSide);
  out.k = lesser(whole.k - k, kTileSide);
  out.to = destination_from(whole.to, row, k / kBlock);
  out.row0 = whole.row0 + row;
  out.k0 = whole.k0 + k;
  return out;
}

}  // namespace cpu
}  // namespace qt

#endif
