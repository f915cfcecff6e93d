// MXFP4 GEMM for CDNA 4 (gfx950): packed codes and E8M0 scales go to LDS as they are, and the
// matrix cores multiply both with binary32 sums.
//
// A stage is 128 of K: rows of 64 bytes of codes, A's then B's, and behind them scale bytes, four a
// row, or in the tiles of layout aiter, which hold two stages. Whole stages come by loads straight
// into LDS, `stages` deep; the last one of another length, and operands that are not aligned, come
// through registers with zero codes behind their end. Where tiles are fewer than units, `splits`
// blocks share a tile's K (cuda/split_k.h). B is the instruction's first operand, so that
// a lane's four sums lie beside each other in a row of D. D may be quantised here: once all of a
// tile is summed, its rows wait where the stages were (cuda/quantized_rows.h).
#ifndef QT_HIP_GEMM_MFMA_SCALE_H
#define QT_HIP_GEMM_MFMA_SCALE_H

#include "args.h"
#include "cuda/epilogue.h"
#include "cuda/split_k.h"
#include "cuda/tile_walk.h"
#include "hip/codes_16x16.h"
#include "hip/epilogue_quads.h"
#include "hip/primitives.h"
#include "hip/quantized_quads.h"
#include "hip/scales_32x8.h"

namespace qt::hip {

using namespace qt::cuda;

namespace mfma_scale {

constexpr int kChunk = 128;  // elements of K in a stage
constexpr u32 kRow = 64;     // bytes of a row's codes in a stage
constexpr u32 kWaves = 4, kThreads = 64 * kWaves;
constexpr u32 kOne = 127;  // the scale byte of 1

/// How one operand's scales of a stage lie in LDS, `rows` of them.
template <bool tiled, u32 row_count>
struct ScaleStage {
  static constexpr u32 rows_of_copy = tiled ? 32u : 64u;
  static constexpr u32 copies = (row_count + rows_of_copy - 1) / rows_of_copy;
  static constexpr u32 bytes = copies * 256u;
  static_assert(!tiled || row_count % 32u == 0, "a tile of scales has 32 rows");
  /// Byte of a row's block (below 4), `half` being the stage's half of its tiles.
  QT_FN static u32 place(u32 row, u32 block, u32 half) {
    if constexpr (tiled)
      return row / 32u * kScaleTile + place_in_tile(row % 32u, half * 4u + block);
    return row * 4u + block;
  }
};

/// How a tile and its stages lie in LDS.
template <class Config>
struct Stage {
  static constexpr u32 tile_m = Config::tile_m, tile_n = Config::tile_n;
  static constexpr u32 rows = tile_m + tile_n;
  using ScalesOfA = ScaleStage<Config::a_tiled, tile_m>;
  using ScalesOfB = ScaleStage<Config::b_tiled, tile_n>;
  static constexpr u32 a_scales_at = rows * kRow;
  static constexpr u32 b_scales_at = a_scales_at + ScalesOfA::bytes;
  static constexpr u32 bytes = b_scales_at + ScalesOfB::bytes;
  static constexpr u32 code_copies = rows / 16u;  // of a wave's 64 lanes
  static constexpr u32 scale_copies = ScalesOfA::copies + ScalesOfB::copies;
  static constexpr u32 code_turns = (code_copies + kWaves - 1) / kWaves;
  static constexpr u32 scale_turns = (scale_copies + kWaves - 1) / kWaves;
  static constexpr u32 copies = code_turns + scale_turns;  // that each wave starts for a stage

  /// Byte of the scale of row `row` of the tile (A's first).
  QT_FN static u32 scale_place(u32 row, u32 block, u32 half) {
    return row < tile_m ? a_scales_at + ScalesOfA::place(row, block, half)
                        : b_scales_at + ScalesOfB::place(row - tile_m, block, half);
  }
};

/// Where 16-byte piece `piece` of a row's codes lies. Rows 4 apart share banks: pieces change
/// places.
QT_FN u32 code_place(u32 row, u32 piece) { return row * kRow + ((piece ^ (row >> 2)) & 3u) * 16u; }

template <class Config>
using ColumnsOfTile = PairedRows<Config, Config::tile_n / Config::waves_n>;

/// Both operands of a block's tile: where row r of the tile (A's first) is in memory. Rows that do
/// not exist are those of the last one that does: their sums are not stored.
template <class Config>
struct Operands {
  using S = Stage<Config>;
  const qt_tensor& a;
  const qt_tensor& b;
  const u8* a_codes;
  const u8* b_codes;
  const u8* a_scales;
  const u8* b_scales;
  ColumnsOfTile<Config> columns;
  i64 row0, row_end;
  i64 first_block;    // of K: where it begins
  i64 blocks, tiles;  // of a whole row, and tiles of scales along it

  QT_FN Operands(const qt_args& args, const Product& p, i64 first_row, i64 first_column)
      : a(args.a),
        b(args.b),
        a_codes(static_cast<const u8*>(a.data) + (p.a * a.batch_stride + p.k_first) / 2),
        b_codes(static_cast<const u8*>(b.data) + (p.b * b.batch_stride + p.k_first) / 2),
        a_scales(static_cast<const u8*>(a.scales) + p.a * a.scale_batch_stride),
        b_scales(static_cast<const u8*>(b.scales) + p.b * b.scale_batch_stride),
        columns(first_column, args.n),
        row0(first_row),
        row_end(p.end),
        first_block(p.k_first / 32),
        blocks(round_up(args.k, Config::k_unit) / 32),
        tiles((blocks + 7) / 8) {}

  QT_FN static i64 kept_below(i64 row, i64 end) { return row < end ? row : end - 1; }
  QT_FN i64 a_row(u32 row) const { return kept_below(row0 + row, row_end); }
  QT_FN i64 b_row(u32 row) const { return kept_below(columns(row - S::tile_m), columns.n); }
  QT_FN const u8* codes(u32 row) const {
    if (row < S::tile_m) return a_codes + a_row(row) * (a.ld / 2);
    if constexpr (Config::b_shuffled) return b_codes + place_16x16(b_row(row), 0, blocks);
    return b_codes + b_row(row) * (b.ld / 2);
  }
  /// Bytes from one block of a row of the tile to the next.
  QT_FN static u32 block_step(u32 row) {
    return Config::b_shuffled && row >= S::tile_m ? kPanelBlock : 16u;
  }
  /// The scale of block `block`, from K's beginning, of a row of the tile.
  QT_FN const u8* scale(u32 row, i64 block) const {
    block += first_block;
    if (row < S::tile_m) {
      if constexpr (Config::a_tiled) return a_scales + place_32x8(a_row(row), block, tiles);
      return a_scales + a_row(row) * a.scale_ld + block;
    }
    if constexpr (Config::b_tiled) return b_scales + place_32x8(b_row(row), block, tiles);
    return b_scales + b_row(row) * b.scale_ld + block;
  }
  /// What a lane brings of copy `copy` of a stage's scales: its four bytes of the first stage.
  QT_FN const u8* scale_copy(u32 copy, u32 lane) const {
    if (copy < S::ScalesOfA::copies)
      return scale_words<Config::a_tiled>(a_scales, a.scale_ld, copy, lane, row0, row_end,
                                          [this](u32 row) { return a_row(row); });
    copy -= S::ScalesOfA::copies;
    return scale_words<Config::b_tiled>(b_scales, b.scale_ld, copy, lane, columns.first, columns.n,
                                        [this](u32 row) { return b_row(S::tile_m + row); });
  }
  /// Whether rows of codes start at multiples of 16 bytes, and of scales at multiples of 4.
  QT_FN bool aligned() const {
    const i64 a_step = Config::a_tiled ? 0 : a.scale_ld, b_step = Config::b_tiled ? 0 : b.scale_ld;
    const i64 b_codes_step = Config::b_shuffled ? 0 : b.ld / 2;
    return ((u64(a_codes) | u64(b_codes) | u64(a.ld / 2) | u64(b_codes_step)) & 15u) == 0u &&
           ((u64(a_scales) | u64(b_scales) | u64(a_step) | u64(b_step)) & 3u) == 0u;
  }
  /// Which half of tiles of scales stage `s` reads.
  QT_FN u32 half(i64 s) const { return u32(first_block / 4 + s) % 2u; }

 private:
  /// Rows that do not exist are those of the last tile, or row, that does.
  template <bool tiled, class Row>
  QT_FN const u8* scale_words(const u8* scales, i64 ld, u32 copy, u32 lane, i64 first, i64 end,
                              const Row& row_at) const {
    if constexpr (tiled) {
      const i64 tile = first / 32 + copy, last = (end - 1) / 32;
      return scales + ((tile < last ? tile : last) * tiles + first_block / 8) * kScaleTile +
             lane * 4u;
    } else {
      return scales + row_at(copy * 64u + lane) * ld + first_block;
    }
  }
};

/// What a lane copies of every whole stage.
template <class Config>
struct Copies {
  using S = Stage<Config>;
  const u8* codes[S::code_turns];
  const u8* scales[S::scale_turns];
  u32 odd;  // K begins in the second half of a tile of scales

  /// Waves take copies in turn; those of the last turn that are left over repeat the last copy.
  QT_FN static u32 copy_of(u32 turn, u32 all) {
    return min_u32(turn * kWaves + wave_index(), all - 1u);
  }
  QT_FN explicit Copies(const Operands<Config>& from) {
    const u32 lane = wave_lane();
    QT_UNROLL
    for (u32 i = 0; i < S::code_turns; ++i) {
      const u32 row = copy_of(i, S::code_copies) * 16u + lane / 4u;
      codes[i] = from.codes(row) + ((lane ^ (row >> 2)) & 3u) * from.block_step(row);
    }
    odd = from.half(0);
    QT_UNROLL
    for (u32 i = 0; i < S::scale_turns; ++i)
      scales[i] = from.scale_copy(copy_of(i, S::scale_copies), lane);
  }
  /// Starts stage `s` on its way to `to`.
  QT_FN void start(i64 s, u32 to) const {
    QT_UNROLL
    for (u32 i = 0; i < S::code_turns; ++i)
      copy_to_lds_16(
          to + copy_of(i, S::code_copies) * 1024u,
          codes[i] + s * i64(4u * Operands<Config>::block_step(copy_of(i, S::code_copies) * 16u)));
    QT_UNROLL
    for (u32 i = 0; i < S::scale_turns; ++i) {
      const u32 copy = copy_of(i, S::scale_copies);
      const bool tiled = copy < S::ScalesOfA::copies ? Config::a_tiled : Config::b_tiled;
      copy_to_lds_4(to + S::a_scales_at + copy * 256u,
                    scales[i] + (tiled ? (s + odd) / 2 * kScaleTile : s * (kChunk / 32)));
    }
  }
};

QT_FN Words4 load_piece(const u8* from, bool aligned) {
  if (aligned) return load_words(reinterpret_cast<const Words4*>(from));
  Words4 v = {};
  QT_UNROLL
  for (u32 i = 0; i < 16u; ++i) v.word[i / 4u] |= u32(from[i]) << (8u * (i % 4u));
  return v;
}

/// Stage `s` by registers, codes of zero from element k_end on.
template <class Config>
QT_FN void bring_by_registers(const Operands<Config>& from, i64 s, i64 k_end, u32 to) {
  using S = Stage<Config>;
  const bool aligned = from.aligned();
  for (u32 at = thread_index(); at < S::rows * 4u; at += kThreads) {
    const u32 row = at / 4u, piece = at % 4u;
    const i64 block = s * 4 + i64(piece);
    const bool inside = block * 32 < k_end;
    store_shared_4(
        to + code_place(row, piece),
        inside ? load_piece(from.codes(row) + block * from.block_step(row), aligned) : Words4{});
    store_shared_u8(to + S::scale_place(row, piece, from.half(s)),
                    inside ? u32(*from.scale(row, block)) : kOne);
  }
}

/// One instruction's tile: rows and columns of D, elements of K, and the sums of a lane.
template <int shape>
struct Tile {
  static constexpr u32 size = 16, steps = 1, sums = 4;  // steps: of a stage
  QT_FN static void multiply(float (&d)[sums], const Words4& a, u32 a_scale, const Words4& b,
                             u32 b_scale) {
    mfma_scale_16x16x128(d, a, a_scale, b, b_scale);
  }
  /// Row of the first operand that a lane's sums from 4 * quad on start at.
  QT_FN static u32 first_of(u32, u32 lane) { return 4u * (lane / 16u); }
};
template <>
struct Tile<32> {
  static constexpr u32 size = 32, steps = 2, sums = 16;
  QT_FN static void multiply(float (&d)[sums], const Words4& a, u32 a_scale, const Words4& b,
                             u32 b_scale) {
    mfma_scale_32x32x64(d, a, a_scale, b, b_scale);
  }
  QT_FN static u32 first_of(u32 quad, u32 lane) { return 8u * quad + 4u * (lane / 32u); }
};

/// A lane's block of a tile row, and its scale.
struct Fragment {
  Words4 codes;
  u32 scale;
};
template <class Config>
QT_FN Fragment fragment_of_a(u32 stage, u32 row, u32 block, u32 half) {
  using S = Stage<Config>;
  return {load_shared_4(stage + code_place(row, block)),
          load_shared_u8(stage + S::a_scales_at + S::ScalesOfA::place(row, block, half))};
}
template <class Config>
QT_FN Fragment fragment_of_b(u32 stage, u32 row, u32 block, u32 half) {
  using S = Stage<Config>;
  return {load_shared_4(stage + code_place(S::tile_m + row, block)),
          load_shared_u8(stage + S::b_scales_at + S::ScalesOfB::place(row, block, half))};
}

}  // namespace mfma_scale

/// One block of four waves computes one tile_m x tile_n tile, or one part of its K; grid: as
/// TileWalk::find_of_block wants it.
template <class Config>
QT_FN void gemm_mfma_scale(const Config&, const qt_args& args) {
  using namespace mfma_scale;
  using S = Stage<Config>;
  using T = Tile<Config::shape>;
  constexpr u32 wave_m = Config::tile_m / Config::waves_m,
                wave_n = Config::tile_n / Config::waves_n;
  constexpr int tiles_m = wave_m / T::size, tiles_n = wave_n / T::size;
  static_assert(Config::waves_m * Config::waves_n == kWaves, "four waves share a tile");
  static_assert(tiles_m * T::size == wave_m && tiles_n * T::size == wave_n,
                "a wave's part is made of the instruction's tiles");
  static_assert(!is_gated(Config::epilogue) || tiles_n % 2 == 0, "a wave has gates and values");
  static_assert((Config::stages - 1) * S::copies < 64, "copies in flight are counted to 63");

  TileWalk<Config, u32(Config::tile_m)> tiles(args, args.m, args.n, args.k, Config::tile_n);
  if (!tiles.find_of_block(Config::splits)) return;
  const Product p = tiles.product();
  const i64 row0 = p.first + i64(tiles.y) * Config::tile_m;
  const i64 column0 = i64(tiles.x) * Config::tile_n;
  const i64 k_end = (p.k + 31) / 32 * 32;
  const KParts<Config::splits> parts = {u32((k_end + kChunk - 1) / kChunk)};
  const u32 part = block_index() % Config::splits;
  if (parts.is_idle(part)) return;
  const i64 first_stage = parts.begin(part), stages = parts.end(part);

  const Operands<Config> from(args, p, row0, column0);
  const Copies<Config> copies(from);
  const i64 whole = from.aligned() ? k_end / kChunk : 0;
  const i64 by_copies = whole < stages ? whole : stages;
  const auto place_of_stage = [](i64 s) QT_INLINE {
    return shared_base() + u32(s % Config::stages) * S::bytes;
  };
  const auto bring = [&](i64 s) QT_INLINE {
    if (s < by_copies)
      copies.start(s, place_of_stage(s));
    else if (s < stages)
      bring_by_registers<Config>(from, s, k_end, place_of_stage(s));
  };

  QT_UNROLL
  for (int s = 0; s < Config::stages - 1; ++s) bring(first_stage + s);

  const u32 wave = wave_index(), lane = wave_lane();
  const u32 first_m = wave / Config::waves_n * wave_m, first_n = wave % Config::waves_n * wave_n;
  const u32 in_tile = lane % T::size, k_block = lane / T::size;
  float sums[tiles_n][tiles_m][T::sums] = {};
  for (i64 s = first_stage; s < stages; ++s) {
    // Later stages may be on their way where all their copies are.
    if (s + Config::stages - 2 < by_copies)
      wait_copies<(Config::stages - 2) * int(S::copies)>();
    else
      wait_copies<0>();
    sync_lds();
    bring(s + Config::stages - 1);

    const u32 stage = place_of_stage(s), half = from.half(s);
    QT_UNROLL
    for (u32 step = 0; step < T::steps; ++step) {
      const u32 block = step * (4u / T::steps) + k_block;
      Fragment b[tiles_n];
      QT_UNROLL
      for (int j = 0; j < tiles_n; ++j)
        b[j] = fragment_of_b<Config>(stage, first_n + u32(j) * T::size + in_tile, block, half);
      QT_UNROLL
      for (int i = 0; i < tiles_m; ++i) {
        const Fragment a =
            fragment_of_a<Config>(stage, first_m + u32(i) * T::size + in_tile, block, half);
        QT_UNROLL
        for (int j = 0; j < tiles_n; ++j)
          T::multiply(sums[j][i], b[j].codes, b[j].scale, a.codes, a.scale);
      }
    }
  }

  if constexpr (Config::splits > 1) {
    const PartSums<Config::splits, 2 * kWaves, u32(tiles_n * tiles_m) * T::sums> kept(
        args, tiles.number_of_block(Config::splits), warp_index(), lane_index());
    if (part + 1 < Config::splits) {
      leave_sums(kept, part, sums);
      return;
    }
    join_sums(kept, parts, part, sums);
  }

  if constexpr (Config::quantizes) {
    quantize_passes<Config, T, 0, kThreads>(args, p, from.columns, row0, column0,
                                            wave / Config::waves_n, first_n, lane, sums);
  } else {
    store_wave<Config, T>(args, p, from.columns, column0, first_n, row0 + first_m + in_tile, lane,
                          sums);
  }
}

}  // namespace qt::hip

#endif
