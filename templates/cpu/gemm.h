// D = alpha * A * B^T + beta * C + bias, from A in int8_blocks and B in panel16.
//
// A block's 32 products are summed exactly in integers; blocks are then added in binary32 in
// ascending K, one accumulator for each element of D. Whatever the tile, the decoding, the
// instruction set and the rows beside it, an element is the result of these same operations: all
// variants agree bit for bit (unless one block alone leaves binary32's range), and a row's bits do
// not depend on M.
// Before D's own rounding, |d - ref| <= (K/32 + 5) * 2^-24 * (|alpha| sum |a b| + |beta c| +
// |bias|).
#ifndef QT_CPU_GEMM_H
#define QT_CPU_GEMM_H

#include "cpu/epilogue.h"
#include "cpu/gemm_parts.h"
#include "cpu/layouts.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/primitives_portable.h"
#include "cpu/row_groups.h"

namespace qt {
namespace cpu {

/// Where decoded weights come from: registers, each time they are used, or a buffer that serves
/// all rows of a part.
enum class Decode { registers, buffer };

/// What an emitted Config states as constants, as ordinary members but for what sizes a tile: one
/// portable kernel for every problem.
struct GemmConfig {
  using Isa = Portable;
  i64 m = 0, n = 0, k = 0;  // 0: given at run time
  int k_unit = 32;
  Grouping grouping = Grouping::none;
  DType d_type = DType::f32, side_type = DType::f32;
  bool accumulate = false;
  bool bias = false;
  Epilogue epilogue = Epilogue::none;
  bool keeps_z = false;
  float descale = 1.0f;
  static constexpr int tile_m = 2, tile_n = 48;
  static constexpr Decode decode = Decode::buffer;
  static constexpr int block_m = 96, part_n = 96, block_k = 512, prefetch = 0;
};

/// Consecutive rows of A from some block of K on.
struct Int8Rows {
  const i8* codes;
  const Int8Scale* scales;
  i64 ld;
  i64 scale_ld;

  QT_CPU_INLINE Int8Rows from(const Int8Rows& a, i64 row, i64 block) {
    return {a.codes + row * a.ld + block * kBlock, a.scales + row * a.scale_ld + block, a.ld,
            a.scale_ld};
  }
};

/// `panels` adjacent panels of B, decoded on the way to the multiplication.
template <class Isa, int panels, int prefetch_blocks>
struct PackedPanels {
  const u8* codes;
  const u8* scales;
  i64 blocks;  // of the whole operand, from one panel to the next

  QT_CPU_INLINE PackedPanels from(const PackedPanels& b, i64 block) {
    return {b.codes + block * kPanelCodes, b.scales + block * kPanelScales, b.blocks};
  }
  void load(int p, i64 block, int pair, typename Isa::Codes& low, typename Isa::Codes& high) const {
    const u8* from = codes + panel_block(p, block, blocks) * kPanelCodes + pair * 64;
    if (prefetch_blocks > 0) prefetch(from + prefetch_blocks * kPanelCodes);
    Isa::decode(from, low, high);
  }
  const u8* bytes(int p, i64 block) const {
    return scales + panel_block(p, block, blocks) * kPanelScales;
  }
  bool wide(i64 block) const {
    bool any = false;
    QT_CPU_UNROLL
    for (int p = 0; p < panels; ++p) any = any || Isa::any_wide(bytes(p, block));
    return any;
  }
  typename Isa::Floats low(int p, i64 block) const { return Isa::panel_scale_low(bytes(p, block)); }
};

/// The same after decoding up to `most` blocks of K.
template <class Isa, int panels, int most>
struct DecodedPanels {
  alignas(64) typename Isa::Codes codes[most][panels][8];
  alignas(64) float scales[most][panels][16];
  const u8* scale_bytes;
  i64 blocks;
  bool some_wide;

  template <class Packed>
  void decode(const Packed& b, i64 count) {
    scale_bytes = b.scales;
    blocks = b.blocks;
    some_wide = false;
    for (i64 block = 0; block < count; ++block) {
      some_wide = some_wide || b.wide(block);
      for (int p = 0; p < panels; ++p) {
        for (int pair = 0; pair < 4; ++pair)
          b.load(p, block, pair, codes[block][p][2 * pair], codes[block][p][2 * pair + 1]);
        Isa::store(scales[block][p], b.low(p, block));
      }
    }
  }
  void load(int p, i64 block, int pair, typename Isa::Codes& low, typename Isa::Codes& high) const {
    low = codes[block][p][2 * pair];
    high = codes[block][p][2 * pair + 1];
  }
  const u8* bytes(int p, i64 block) const {
    return scale_bytes + panel_block(p, block, blocks) * kPanelScales;
  }
  bool wide(i64 block) const {
    if (!some_wide) return false;
    bool any = false;
    for (int p = 0; p < panels; ++p) any = any || Isa::any_wide(bytes(p, block));
    return any;
  }
  typename Isa::Floats low(int p, i64 block) const { return Isa::load(scales[block][p]); }
};

/// sums[r][p] += row r of A times panel p of B, over one block of K without wide scales.
template <class Isa, int rows, int panels, class Panels>
QT_CPU_INLINE void add_block(const Int8Rows& a, const Panels& b, i64 block,
                             typename Isa::Floats (&sums)[rows][panels]) {
  const i8* codes = a.codes + block * kBlock;
  const Int8Scale* scales = a.scales + block;
  typename Isa::Dots dots[rows][panels];
  QT_CPU_UNROLL
  for (int r = 0; r < rows; ++r) {
    QT_CPU_UNROLL
    for (int p = 0; p < panels; ++p) dots[r][p] = Isa::dot_begin(scales[r * a.scale_ld].correction);
  }
  QT_CPU_UNROLL
  for (int pair = 0; pair < 4; ++pair) {
    typename Isa::Codes low[panels], high[panels];
    QT_CPU_UNROLL
    for (int p = 0; p < panels; ++p) b.load(p, block, pair, low[p], high[p]);
    QT_CPU_UNROLL
    for (int r = 0; r < rows; ++r) {
      const auto quad = Isa::quad(codes + r * a.ld + pair * 8);
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) dots[r][p] = Isa::dot4(dots[r][p], low[p], quad);
    }
    QT_CPU_UNROLL
    for (int r = 0; r < rows; ++r) {
      const auto quad = Isa::quad(codes + r * a.ld + pair * 8 + 4);
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) dots[r][p] = Isa::dot4(dots[r][p], high[p], quad);
    }
  }
  QT_CPU_UNROLL
  for (int p = 0; p < panels; ++p) {
    const auto factor = b.low(p, block);
    QT_CPU_UNROLL
    for (int r = 0; r < rows; ++r) {
      const Int8Scale& scale = scales[r * a.scale_ld];
      // Exact: see layouts.h.
      const auto scaled = Isa::mul(Isa::dot_end(dots[r][p], scale.correction), scale.scale);
      sums[r][p] = Isa::fma(scaled, factor, sums[r][p]);
    }
  }
}

/// The same with scale bytes of kWideByte or more, one row and panel at a time, sums in memory.
template <class Isa, class Panels>
QT_CPU_NOINLINE void add_wide_block(const Int8Rows& a, const Panels& b, i64 block, int rows,
                                    int panels, float* sums) {
  for (int p = 0; p < panels; ++p) {
    float high[kPanelRows], low[kPanelRows];
    for (int c = 0; c < kPanelRows; ++c) {
      const PanelScale scale = panel_scale(b.bytes(p, block)[c]);
      high[c] = scale.high;
      low[c] = scale.low;
    }
    for (int r = 0; r < rows; ++r) {
      const i8* codes = a.codes + r * a.ld + block * kBlock;
      const Int8Scale& scale = a.scales[r * a.scale_ld + block];
      auto dots = Isa::dot_begin(scale.correction);
      for (int pair = 0; pair < 4; ++pair) {
        typename Isa::Codes lower, upper;
        b.load(p, block, pair, lower, upper);
        dots = Isa::dot4(dots, lower, Isa::quad(codes + pair * 8));
        dots = Isa::dot4(dots, upper, Isa::quad(codes + pair * 8 + 4));
      }
      const auto scaled = Isa::mul(Isa::dot_end(dots, scale.correction), scale.scale);
      float* sum = sums + (r * panels + p) * kPanelRows;
      Isa::store(sum, Isa::fma(Isa::mul(scaled, Isa::load(high)), Isa::load(low), Isa::load(sum)));
    }
  }
}

/// Over `blocks` blocks. Wide ones, which hardly ever occur, are outside the loop that must keep
/// its sums in registers.
template <class Isa, int rows, int panels, class Panels>
QT_CPU_INLINE void multiply_add(const Int8Rows& a, const Panels& b, i64 blocks,
                                typename Isa::Floats (&sums)[rows][panels]) {
  for (i64 block = 0; block < blocks; ++block) {
    for (; block < blocks && !unlikely(b.wide(block)); ++block)
      add_block<Isa, rows, panels>(a, b, block, sums);
    if (block == blocks) return;
    alignas(64) float kept[rows][panels][16];
    QT_CPU_UNROLL
    for (int r = 0; r < rows; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) Isa::store(kept[r][p], sums[r][p]);
    }
    add_wide_block<Isa>(a, b, block, rows, panels, &kept[0][0][0]);
    QT_CPU_UNROLL
    for (int r = 0; r < rows; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) sums[r][p] = Isa::load(kept[r][p]);
    }
  }
}

/// One part's work: rows [row0, row0 + rows) of one batch entry, and a range of panels.
template <class Config>
struct GemmPart {
  using Isa = typename Config::Isa;
  static constexpr int tile_m = Config::tile_m;

  const Config& config;
  const qt_args* args;
  i64 batch, row0, rows;
  i64 n, blocks;
  Int8Rows a;  // from row0 on
  const u8* codes;
  const u8* scales;
  i64 panel_blocks;  // of the whole operand, from one panel of B to the next
  WaitingPanels halves = {};

  template <int panels>
  PackedPanels<Isa, panels, Config::prefetch> packed(i64 panel) const {
    return {codes + panel_block(panel, 0, panel_blocks) * kPanelCodes,
            scales + panel_block(panel, 0, panel_blocks) * kPanelScales, panel_blocks};
  }

  void store(i64 row, i64 panel, const float* sums) const {
    store_sums(config, args, batch, row0, row, panel, n, halves, sums);
  }

  /// All of K for one tile, decoding as it goes.
  template <int count, int panels>
  QT_CPU_NOINLINE void tile_from_registers(const GemmPart& part, i64 row, i64 panel) {
    typename Isa::Floats sums[count][panels];
    QT_CPU_UNROLL
    for (int r = 0; r < count; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) sums[r][p] = Isa::zero();
    }
    multiply_add<Isa, count, panels>(Int8Rows::from(part.a, row, 0),
                                     part.template packed<panels>(panel), part.blocks, sums);
    alignas(64) float out[count][panels][16];
    QT_CPU_UNROLL
    for (int r = 0; r < count; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) Isa::store(out[r][p], sums[r][p]);
    }
    for (int r = 0; r < count; ++r)
      for (int p = 0; p < panels; ++p) part.store(row + r, panel + p, out[r][p]);
  }

  /// One stretch of K for one tile, whose sums wait in memory between stretches.
  template <int count, int panels, class Panels>
  QT_CPU_NOINLINE void tile_from_buffer(const Int8Rows& a, const Panels& b, i64 blocks,
                                        float (*waiting)[panels][16]) {
    typename Isa::Floats sums[count][panels];
    QT_CPU_UNROLL
    for (int r = 0; r < count; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) sums[r][p] = Isa::load(waiting[r][p]);
    }
    multiply_add<Isa, count, panels>(a, b, blocks, sums);
    QT_CPU_UNROLL
    for (int r = 0; r < count; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) Isa::store(waiting[r][p], sums[r][p]);
    }
  }

  template <int most, int panels>
  void rows_from_registers(i64 count, i64 row, i64 panel) const {
    if constexpr (most > 1)
      if (count < most) return rows_from_registers<most - 1, panels>(count, row, panel);
    tile_from_registers<most, panels>(*this, row, panel);
  }

  template <int most, int panels, class Panels>
  void rows_from_buffer(i64 count, const Int8Rows& rows_of_a, const Panels& b, i64 length,
                        float (*waiting)[panels][16]) const {
    if constexpr (most > 1)
      if (count < most)
        return rows_from_buffer<most - 1, panels>(count, rows_of_a, b, length, waiting);
    tile_from_buffer<most, panels>(rows_of_a, b, length, waiting);
  }

  template <int panels>
  void panels_by_registers(i64 panel) const {
    for (i64 row = 0; row < rows; row += tile_m)
      rows_from_registers<tile_m, panels>(rows - row < tile_m ? rows - row : tile_m, row, panel);
  }

  template <int panels>
  void panels_by_buffer(i64 panel) const {
    constexpr int stretch = Config::block_k / kBlock;
    alignas(64) float waiting[Config::block_m][panels][16];
    for (i64 row = 0; row < rows; ++row)
      for (int p = 0; p < panels; ++p) Isa::store(waiting[row][p], Isa::zero());
    DecodedPanels<Isa, panels, stretch> decoded;
    for (i64 block = 0; block < blocks; block += stretch) {
      const i64 length = blocks - block < stretch ? blocks - block : stretch;
      decoded.decode(
          PackedPanels<Isa, panels, Config::prefetch>::from(packed<panels>(panel), block), length);
      for (i64 row = 0; row < rows; row += tile_m)
        rows_from_buffer<tile_m, panels>(rows - row < tile_m ? rows - row : tile_m,
                                         Int8Rows::from(a, row, block), decoded, length,
                                         waiting + row);
    }
    for (i64 row = 0; row < rows; ++row)
      for (int p = 0; p < panels; ++p) store(row, panel + p, waiting[row][p]);
  }

  template <int panels>
  void some_panels(i64 count, i64 panel) const {
    if constexpr (panels > 1)
      if (count < panels) return some_panels<panels - 1>(count, panel);
    if constexpr (Config::decode == Decode::registers)
      panels_by_registers<panels>(panel);
    else
      panels_by_buffer<panels>(panel);
  }
};

/// Where a part's weights begin: which of B's matrices, and which of its `all` blocks of K.
struct PlaceInB {
  i64 entry, block, all;
};

/// Multiplies part `d` of D; `a` starts at its first row and block.
template <class Config>
QT_CPU_NOINLINE void multiply_part(const Config& config, const qt_args* args, const PartOfD& d,
                                   i64 n, i64 blocks, const Int8Rows& a, const PlaceInB& b) {
  GemmPart<Config> work = {config,
                           args,
                           d.batch,
                           d.row,
                           d.rows,
                           n,
                           blocks,
                           a,
                           static_cast<const u8*>(args->b.data) +
                               b.entry * args->b.batch_stride / 2 + b.block * kPanelCodes,
                           static_cast<const u8*>(args->b.scales) +
                               b.entry * args->b.scale_batch_stride + b.block * kPanelScales,
                           b.all};
  for_panels<Config::tile_n / kPanelRows, Config::block_m>(config, work, n, d.panel, d.panel_end);
}

template <class Config>
QT_FN void gemm(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 n = config.n ? config.n : args->n;
  const i64 k = config.k ? config.k : args->k;
  const i64 columns = part_columns(config, n);
  const PartOfD d =
      part_of_d(GemmParts::of(m, columns, Config::block_m, Config::part_n), m, columns, part);
  const bool by_tokens = config.grouping == Grouping::k_grouped;
  const i64 padded = by_tokens ? grouped_length(k, args->groups, config.k_unit)
                               : (k + config.k_unit - 1) / config.k_unit * config.k_unit;
  const i64 blocks = padded / kBlock;
  const i64 entry = by_tokens ? 0 : d.batch;  // of A
  const Int8Rows a = {
      static_cast<const i8*>(args->a.data) + entry * args->a.batch_stride,
      static_cast<const Int8Scale*>(args->a.scales) + entry * args->a.scale_batch_stride, padded,
      blocks};
  if (by_tokens) {
    const GroupPlace place =
        group_place(group_range(args->group_sizes, d.batch, k), d.batch, config.k_unit);
    const i64 first = place.first / kBlock;
    return multiply_part(config, args, d, n, place.length / kBlock, Int8Rows::from(a, d.row, first),
                         {0, first, blocks});
  }
  for_row_groups(config, args, d, m, n, [&](const qt_args* own, const PartOfD& rows, i64 group) {
    multiply_part(config, own, rows, n, blocks, Int8Rows::from(a, rows.row, 0), {group, 0, blocks});
  });
}

}  // namespace cpu
}  // namespace qt

#endif
