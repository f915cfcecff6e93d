// MXFP4 codes and scales from one layout to another: plain to what CPU kernels multiply from, and
// panels back to plain. Values do not change; -0 becomes 0 in int8_blocks.
#ifndef QT_CPU_PACK_H
#define QT_CPU_PACK_H

#include "args.h"
#include "cpu/packed_source.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/quantize_parts.h"
#include "groups.h"

namespace qt {
namespace cpu {

/// What an emitted Config states as constants, as ordinary members: one kernel for every mode.
template <class IsaType>
struct PackConfig {
  using Isa = IsaType;
  i64 m = 0, k = 0;  // 0: given at run time
  int k_unit = 32;   // k, or each group of it, is padded to a multiple with zero blocks
  Grouping grouping = Grouping::none;
  Layout a_layout = Layout::plain, d_layout = Layout::panel16;
  int tile_m = 32, tile_k = 4096;  // a part's share
};

template <class Isa>
QT_CPU_NOINLINE void pack_range(const PackedSource& from, const Destination& to,
                                const CopyRange& range) {
  // Lanes are rows where one side has panels, and blocks of a row else.
  const bool down = from.layout == Layout::panel16 || to.layout == Layout::panel16;
  const i64 rows = down ? Isa::lanes : 1, blocks = down ? 1 : Isa::lanes;
  LanePlaces<Isa> places;
  for (i64 row = range.row; row < range.row_end; row += rows)
    for (i64 block = range.block; block < range.block_end; block += blocks) {
      const i64 row_end = lesser(row + rows, range.row_end);
      const i64 block_end = lesser(block + blocks, range.block_end);
      if (row + rows <= lesser(from.rows, range.row_end) && block + blocks <= range.block_end) {
        typename Isa::U byte, words[4];
        load_lanes<Isa>(from, row, block, down, !down, byte, words);
        place_lanes<Isa>(to, row, block, down, !down, places);
        store_lanes<Isa>(to, places, 0, byte, words);
      } else {
        for (i64 i = row; i < row_end; ++i)
          for (i64 j = block; j < block_end; ++j) store_block(to, i, j, load_block(from, i, j));
      }
    }
}

/// Parts: batch entries, in each of them tiles of the operand, along k first.
template <class Config>
QT_FN void pack(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 k = config.k ? config.k : args->k;
  const bool by_tokens = config.grouping == Grouping::k_grouped;
  const QuantizeParts parts = QuantizeParts::of(
      m, by_tokens ? grouped_length(k, args->groups, config.k_unit) : k, config.k_unit, true, false,
      config.d_layout == Layout::panel16, config.tile_m, config.tile_k);
  const i64 batch = part / parts.per_entry();
  const i64 tiles_k = QuantizeParts::tiles(parts.k, parts.tile_k);
  const i64 row = part % parts.per_entry() / tiles_k * parts.tile_m;
  const i64 block = part % parts.per_entry() % tiles_k * parts.tile_k / kBlock;
  const i64 blocks = parts.k / kBlock;
  const bool masked = config.grouping == Grouping::m_masked;
  const i64 rows =
      masked ? stored_rows(config.d_layout, group_count(args->group_sizes, batch, m)) : parts.m;
  pack_range<typename Config::Isa>(packed_source(args->a, config.a_layout, batch, m, blocks),
                                   destination_of(args->d, config.d_layout, batch, blocks),
                                   {row, lesser(row + parts.tile_m, rows), block,
                                    lesser(block + parts.tile_k / kBlock, blocks)});
}

}  // namespace cpu
}  // namespace qt

#endif
