// D = alpha * A * B^T + beta * C + bias, with A in high precision as it is and B in panel16.
//
// A block's 32 terms are added in binary32 in ascending K, then the block's scale is applied and
// blocks are added in ascending K: one order whatever the tile, so a row's bits do not depend on M.
// With fused multiply-adds, or with bf16 and f16, whose products with a code are exact, all
// variants agree bit for bit.
// Before D's own rounding, |d - ref| <= (K/32 + 38) * 2^-24 * (|alpha| sum |a b| + |beta c| +
// |bias|).
#ifndef QT_CPU_WEIGHT_ONLY_H
#define QT_CPU_WEIGHT_ONLY_H

#include "cpu/epilogue.h"
#include "cpu/gemm_parts.h"
#include "cpu/layouts.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/primitives_portable.h"
#include "cpu/row_groups.h"

namespace qt {
namespace cpu {

/// The same as GemmConfig, for this kernel.
struct WeightOnlyConfig {
  using Isa = Portable;
  i64 m = 0, n = 0, k = 0;  // 0: given at run time
  int k_unit = 32;
  Grouping grouping = Grouping::none;
  DType a_type = DType::bf16;
  DType d_type = DType::f32, side_type = DType::f32;
  bool accumulate = false;
  bool bias = false;
  Epilogue epilogue = Epilogue::none;
  bool keeps_z = false;
  float descale = 1.0f;
  static constexpr int tile_m = 4, tile_n = 16, block_m = 48, part_n = 96, prefetch = 0;
};

/// sums += terms * scale for rows [rows][step], 16 columns each, of which some scales are extreme.
template <class Isa>
QT_CPU_NOINLINE void add_extreme(const u8* bytes, int rows, int step, const float* terms,
                                 float* sums) {
  float high[kPanelRows], low[kPanelRows];
  for (int c = 0; c < kPanelRows; ++c) {
    const PanelScale scale = weight_scale(bytes[c]);
    high[c] = scale.high;
    low[c] = scale.low;
  }
  for (int r = 0; r < rows; ++r) {
    const auto scaled = Isa::mul(Isa::load(terms + r * step), Isa::load(high));
    float* sum = sums + r * step;
    Isa::store(sum, Isa::fma(scaled, Isa::load(low), Isa::load(sum)));
  }
}

template <class Config>
struct WeightOnlyPart {
  using Isa = typename Config::Isa;
  using Floats = typename Isa::Floats;

  const Config& config;
  const qt_args* args;
  i64 batch, row0, rows;
  i64 n, k, blocks;  // k without padding, blocks with it
  const u8* a;       // the batch entry's first row
  const u8* codes;
  const u8* scales;
  WaitingPanels halves = {};

  /// `length` elements of A from (row, k0) on as binary32, and zeros up to 32.
  const float* a_block(i64 row, i64 k0, i64 length, float (&room)[kBlock]) const {
    const i64 at = row * args->a.ld + k0;
    if (length == kBlock) {
      if (config.a_type == DType::f32) return reinterpret_cast<const float*>(a) + at;
      const u16* from = reinterpret_cast<const u16*>(a) + at;
      for (int i = 0; i < kBlock; i += 16)
        if (config.a_type == DType::bf16)
          Isa::widen_bf16(from + i, room + i);
        else
          Isa::widen_f16(from + i, room + i);
      return room;
    }
    for (i64 i = 0; i < kBlock; ++i)
      room[i] = i < length ? load_element(a, at + i, config.a_type) : 0.0f;
    return room;
  }

  /// All of K for one tile: a block's terms in registers, sums of blocks in memory.
  template <int count, int panels>
  QT_CPU_NOINLINE void tile(const WeightOnlyPart& part, i64 row, i64 panel) {
    alignas(64) float sums[count][panels][kPanelRows] = {};
    for (i64 block = 0; block * kBlock < part.k; ++block) {
      alignas(64) float room[count][kBlock];
      const float* x[count];
      const i64 length = part.k - block * kBlock < kBlock ? part.k - block * kBlock : kBlock;
      QT_CPU_UNROLL
      for (int r = 0; r < count; ++r)
        x[r] = part.a_block(part.row0 + row + r, block * kBlock, length, room[r]);
      alignas(64) float terms[count][panels][kPanelRows];
      part.template block_terms<count, panels>(x, panel, block, terms);
      for (int p = 0; p < panels; ++p) {
        const u8* bytes = part.scales + panel_block(panel + p, block, part.blocks) * kPanelScales;
        if (unlikely(Isa::any_extreme(bytes))) {
          add_extreme<Isa>(bytes, count, panels * kPanelRows, terms[0][p], sums[0][p]);
          continue;
        }
        const Floats scale = Isa::weight_scale_low(bytes);
        QT_CPU_UNROLL
        for (int r = 0; r < count; ++r)
          Isa::store(sums[r][p], Isa::fma(Isa::load(terms[r][p]), scale, Isa::load(sums[r][p])));
      }
    }
    for (int r = 0; r < count; ++r)
      for (int p = 0; p < panels; ++p) part.store(row + r, panel + p, sums[r][p]);
  }

  template <int count, int panels>
  void block_terms(const float* const (&x)[count], i64 panel, i64 block,
                   float (&out)[count][panels][kPanelRows]) const {
    Floats terms[count][panels];
    QT_CPU_UNROLL
    for (int r = 0; r < count; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) terms[r][p] = Isa::zero();
    }
    for (int eight = 0; eight < 4; ++eight) {
      Floats w[panels][8];
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) {
        const u8* from = codes + panel_block(panel + p, block, blocks) * kPanelCodes + eight * 64;
        if (Config::prefetch > 0) prefetch(from + Config::prefetch * kPanelCodes);
        Isa::weights(from, w[p]);
      }
      QT_CPU_UNROLL
      for (int i = 0; i < 8; ++i) {
        QT_CPU_UNROLL
        for (int r = 0; r < count; ++r) {
          const Floats all = Isa::broadcast(x[r][eight * 8 + i]);
          QT_CPU_UNROLL
          for (int p = 0; p < panels; ++p) terms[r][p] = Isa::fma(all, w[p][i], terms[r][p]);
        }
      }
    }
    QT_CPU_UNROLL
    for (int r = 0; r < count; ++r) {
      QT_CPU_UNROLL
      for (int p = 0; p < panels; ++p) Isa::store(out[r][p], terms[r][p]);
    }
  }

  void store(i64 row, i64 panel, const float* sums) const {
    store_sums(config, args, batch, row0, row, panel, n, halves, sums);
  }

  template <int most, int panels>
  void some_rows(i64 count, i64 row, i64 panel) const {
    if constexpr (most > 1)
      if (count < most) return some_rows<most - 1, panels>(count, row, panel);
    tile<most, panels>(*this, row, panel);
  }

  template <int panels>
  void some_panels(i64 count, i64 panel) const {
    if constexpr (panels > 1)
      if (count < panels) return some_panels<panels - 1>(count, panel);
    constexpr i64 tile_m = Config::tile_m;
    for (i64 row = 0; row < rows; row += tile_m)
      some_rows<Config::tile_m, panels>(rows - row < tile_m ? rows - row : tile_m, row, panel);
  }
};

template <class Config>
QT_CPU_NOINLINE void weight_only_part(const Config& config, const qt_args* args, const PartOfD& d,
                                      i64 n, i64 k, i64 entry) {
  const i64 element = config.a_type == DType::f32 ? 4 : 2;
  WeightOnlyPart<Config> work = {
      config,
      args,
      d.batch,
      d.row,
      d.rows,
      n,
      k,
      (k + config.k_unit - 1) / config.k_unit * config.k_unit / kBlock,
      static_cast<const u8*>(args->a.data) + d.batch * args->a.batch_stride * element,
      static_cast<const u8*>(args->b.data) + entry * args->b.batch_stride / 2,
      static_cast<const u8*>(args->b.scales) + entry * args->b.scale_batch_stride};
  for_panels<Config::tile_n / kPanelRows, Config::block_m>(config, work, n, d.panel, d.panel_end);
}

template <class Config>
QT_FN void weight_only(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 n = config.n ? config.n : args->n;
  const i64 k = config.k ? config.k : args->k;
  const i64 columns = part_columns(config, n);
  const PartOfD d =
      part_of_d(GemmParts::of(m, columns, Config::block_m, Config::part_n), m, columns, part);
  for_row_groups(config, args, d, m, n, [&](const qt_args* own, const PartOfD& rows, i64 group) {
    weight_only_part(config, own, rows, n, k, group);
  });
}

}  // namespace cpu
}  // namespace qt

#endif
