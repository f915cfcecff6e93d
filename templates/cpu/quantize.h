// High precision to MXFP4 in one pass over X [m, k]: rotate, find scales, round and lay out the
// codes, along rows, along columns (the transposed copy), or both.
#ifndef QT_CPU_QUANTIZE_H
#define QT_CPU_QUANTIZE_H

#include "args.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/prologue.h"
#include "cpu/quantize_parts.h"
#include "cpu/quantize_sources.h"
#include "groups.h"

namespace qt {
namespace cpu {

/// What an emitted Config states as constants, as ordinary members: one kernel for every mode.
template <class IsaType>
struct QuantizeConfig {
  using Isa = IsaType;
  i64 m = 0, k = 0;  // 0: given at run time
  DType a_type = DType::bf16;
  Copies copies = Copies::rows;
  Layout d_layout = Layout::plain;
  int rotation = 0;
  Signs signs = Signs::none;
  ScaleRule scale_rule = ScaleRule::rceil;
  ScaleBlock scale_block = ScaleBlock::b1x32;
  Rounding rounding = Rounding::rne;
  Grouping grouping = Grouping::none;
  Prologue prologue = Prologue::none;
  int tile_m = 32, tile_k = 4096;  // X's share of one part
};

/// Whether vectors do this mode; the scalar text does every mode.
template <class Config>
QT_FN bool in_lanes(const Config& config) {
  return config.scale_block == ScaleBlock::b1x32 && is_amax_rule(config.scale_rule) &&
         (config.rounding == Rounding::rne || config.rounding == Rounding::sr16);
}

template <int g, class Config>
QT_FN void quantize_lanes(const Config& config, const Copy& copy, const SignMask& mask,
                          const CopyRange& range) {
  using Isa = typename Config::Isa;
  const SignFlips flips = sign_flips(mask, config.signs == Signs::none ? 0 : g);
  if (copy.k_step == 1 && config.d_layout == Layout::panel16)
    quantize_panels<Isa, g>(config, copy, mask, flips, range);
  else if (copy.k_step == 1)
    quantize_across<Isa, g>(config, copy, mask, flips, range);
  else
    quantize_along<Isa, g>(config, copy, mask, flips, range);
}

template <class Config>
QT_FN void quantize_range(const Config& config, const Copy& copy, const SignMask& mask,
                          const CopyRange& range) {
  if (range.row >= range.row_end || range.block >= range.block_end) return;
  if (config.scale_block == ScaleBlock::b32x32) {
    for (i64 row = range.row; row < range.row_end; row += kBlock)
      for (i64 block = range.block; block < range.block_end; ++block)
        quantize_square(config, copy, row, block);
    return;
  }
  if (in_lanes(config)) {
    switch (config.rotation) {
      case 16:
        return quantize_lanes<16>(config, copy, mask, range);
      case 32:
        return quantize_lanes<32>(config, copy, mask, range);
      case 64:
        return quantize_lanes<64>(config, copy, mask, range);
      case 128:
        return quantize_lanes<128>(config, copy, mask, range);
      case 256:
        return quantize_lanes<256>(config, copy, mask, range);
      default:
        return quantize_lanes<0>(config, copy, mask, range);
    }
  }
  const i64 step = segment_size(config.rotation) / kBlock;
  for (i64 row = range.row; row < range.row_end; ++row)
    for (i64 block = range.block; block < range.block_end; block += step)
      quantize_segment(config, copy, mask, row, block / step);
}

/// The copy along X's rows.
template <class Config>
QT_FN Copy row_copy(const Config& config, const qt_args* args, i64 batch, i64 m, i64 k, i64 unit) {
  return {
      static_cast<const u8*>(args->a.data) + batch * args->a.batch_stride * bytes_of(config.a_type),
      config.a_type,
      args->a.ld,
      1,
      m,
      k,
      destination_of(args->d, config.d_layout, batch, QuantizeParts::up(k, unit) / kBlock),
      noise_of(*args, args->operand, 0),
      args->row0,
      args->k0,
      args->k_global > 0 ? args->k_global : k};
}

/// The copy of X^T. Alone, it is the operand that row0, k0 and k_global speak of; beside the other,
/// it swaps that copy's row0 and k0, and the rows of X are taken to be all there are.
template <class Config>
QT_FN Copy column_copy(const Config& config, const qt_args* args, i64 batch, i64 m, i64 k,
                       i64 unit) {
  const bool alone = config.copies == Copies::columns;
  return {
      static_cast<const u8*>(args->a.data) + batch * args->a.batch_stride * bytes_of(config.a_type),
      config.a_type,
      1,
      args->a.ld,
      k,
      m,
      destination_of(alone ? args->d : args->d2, config.d_layout, batch,
                     QuantizeParts::up(m, unit) / kBlock),
      noise_of(*args, args->operand, 1),
      alone ? args->row0 : args->k0,
      alone ? args->k0 : args->row0,
      alone && args->k_global > 0 ? args->k_global : m};
}

/// A column copy whose k runs over groups of tokens, `length` elements with their padding: what
/// blocks [block, block_end) of rows [row, row_end) hold.
template <class Config>
QT_FN void quantize_groups(const Config& config, const qt_args* args, const Copy& whole, i64 length,
                           const SignMask& mask, const CopyRange& range) {
  const i64 unit = group_unit(config.rotation);
  for (i64 group = 0; group < args->groups; ++group) {
    const GroupRange tokens = group_range(args->group_sizes, group, whole.k);
    const i64 first = group_place(tokens, group, unit).first / kBlock;
    const i64 next = group + 1 < args->groups ? (tokens.end / unit + group + 1) * unit / kBlock
                                              : length / kBlock;
    const i64 begin = range.block > first ? range.block : first;
    const i64 end = lesser(range.block_end, next);
    if (begin >= end) continue;
    Copy copy = part_of(whole, 0, tokens.first, from_block(whole.to, first));
    copy.k = tokens.end - tokens.first;
    copy.k0 = first * kBlock;
    copy.k_global = length;
    quantize_range(config, copy, mask, {range.row, range.row_end, begin - first, end - first});
  }
}

/// Rows [row, row_end) and columns [column, column_end) of X, as far as copies reach, behind a
/// prologue.
template <class Config>
QT_CPU_NOINLINE void quantize_activated(const Config& config, const qt_args* args, i64 batch, i64 m,
                                        i64 k, i64 unit, const SignMask& mask, i64 row, i64 row_end,
                                        i64 column, i64 column_end) {
  const auto as_tile = tile_config(config);
  const bool by_rows = config.copies != Copies::columns;
  const bool by_columns = config.copies != Copies::rows;
  const PrologueSource from = {args->a.data,
                               args->norm_weight,
                               config.a_type,
                               batch * args->a.batch_stride,
                               args->a.ld,
                               m,
                               k,
                               args->epsilon};
  const Copy rows_copy = row_copy(config, args, batch, m, k, unit);
  const Copy columns_copy = column_copy(config, args, batch, m, k, unit);
  const i64 stored_m = stored_rows(config.d_layout, m), stored_k = stored_rows(config.d_layout, k);
  PrologueTile tile;
  float factors[kTileSide] = {};
  for (i64 y = row; y < row_end; y += kTileSide) {
    const i64 rows = lesser(kTileSide, row_end - y);
    if (config.prologue == Prologue::rmsnorm)
      for (i64 r = 0; r < rows && y + r < m; ++r) factors[r] = norm_factor_of_row(from, y + r);
    for (i64 x = column; x < column_end; x += kTileSide) {
      const i64 columns = lesser(kTileSide, column_end - x);
      fill_tile(config.prologue, from, y, x, rows, factors, tile);
      if (by_rows)
        quantize_range(as_tile, copy_of_tile(rows_copy, tile, y, x, false), mask,
                       {0, lesser(rows, stored_m - y), 0,
                        lesser(columns / kBlock, rows_copy.to.blocks - x / kBlock)});
      if (by_columns)
        quantize_range(as_tile, copy_of_tile(columns_copy, tile, x, y, true), mask,
                       {0, lesser(columns, stored_k - x), 0,
                        lesser(rows / kBlock, columns_copy.to.blocks - y / kBlock)});
    }
  }
}

/// Parts: batch entries, in each of them tiles of X, along k first. Where tokens are grouped, tiles
/// run over the column copy's length instead of X's rows.
template <class Config>
QT_FN void quantize(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 k = config.k ? config.k : args->k;
  const i64 unit = segment_size(config.rotation);
  const bool by_rows = config.copies != Copies::columns;
  const bool by_columns = config.copies != Copies::rows;
  const bool by_tokens = config.grouping == Grouping::k_grouped;
  const i64 length = by_tokens ? grouped_length(m, args->groups, group_unit(config.rotation)) : m;
  const QuantizeParts parts =
      QuantizeParts::of(length, k, unit, by_rows, by_columns, config.d_layout == Layout::panel16,
                        config.tile_m, config.tile_k);
  const i64 batch = part / parts.per_entry();
  const i64 tiles_k = QuantizeParts::tiles(parts.k, parts.tile_k);
  const i64 row = part % parts.per_entry() / tiles_k * parts.tile_m;
  const i64 column = part % parts.per_entry() % tiles_k * parts.tile_k;
  const SignMask mask = sign_mask(config, args);
  if (config.prologue != Prologue::none)
    return quantize_activated(config, args, batch, m, k, unit, mask, row,
                              lesser(row + parts.tile_m, parts.m), column,
                              lesser(column + parts.tile_k, parts.k));
  if (by_rows) {
    Copy copy = row_copy(config, args, batch, m, k, unit);
    if (config.grouping == Grouping::m_masked) {
      copy.rows = group_count(args->group_sizes, batch, m);
      copy.row0 += batch * m;
    }
    quantize_range(config, copy, mask,
                   {row, lesser(row + parts.tile_m, stored_rows(config.d_layout, copy.rows)),
                    column / kBlock, lesser((column + parts.tile_k) / kBlock, copy.to.blocks)});
  }
  if (by_columns) {
    Copy copy = column_copy(config, args, batch, m, k, unit);
    if (by_tokens) copy.to.blocks = length / kBlock;
    const CopyRange range = {column, lesser(column + parts.tile_k, stored_rows(config.d_layout, k)),
                             row / kBlock, lesser((row + parts.tile_m) / kBlock, copy.to.blocks)};
    if (by_tokens)
      quantize_groups(config, args, copy, length, mask, range);
    else
      quantize_range(config, copy, mask, range);
  }
}

}  // namespace cpu
}  // namespace qt

#endif
