// Weight-only GEMM for CDNA 4 (gfx950): A in bf16 or f16 as it is, B in MXFP4, binary32 sums.
//
// One 16x16x32 instruction takes one MX block of K. Its codes are decoded to A's type without their
// scale, which holds all eight magnitudes; the block's sums are multiplied by the scale in
// binary32, so that every scale byte is right, 0 and 254 included, and 255 gives NaN. B is the
// instruction's first operand, so that a lane's four sums lie beside each other in a row of D.
//
// A stage is 128 of K: A's rows of 256 bytes, B's of 64, and scale bytes, four a row or in the
// tiles of layout aiter. Whole stages come by loads straight into LDS; the last one of another
// length, and operands that are not aligned, come through registers with zeros behind their end.
#ifndef QT_HIP_WEIGHT_ONLY_H
#define QT_HIP_WEIGHT_ONLY_H

#include "hip/gemm_mfma_scale.h"

namespace qt::hip {

namespace weight_only_parts {

using mfma_scale::code_place;
using mfma_scale::kChunk;
using mfma_scale::kOne;
using mfma_scale::kRow;
using mfma_scale::kThreads;
using mfma_scale::kWaves;
using mfma_scale::load_piece;
using mfma_scale::ScaleStage;

constexpr u32 kWideRow = 2 * kChunk;  // bytes of a row of A in a stage

/// How a tile and its stages lie in LDS.
template <class Config>
struct Stage {
  static constexpr u32 tile_m = Config::tile_m, tile_n = Config::tile_n;
  using Scales = ScaleStage<Config::b_tiled, tile_n>;
  static constexpr u32 codes_at = tile_m * kWideRow;
  static constexpr u32 scales_at = codes_at + tile_n * kRow;
  static constexpr u32 bytes = scales_at + Scales::bytes;
  static constexpr u32 wide_copies = tile_m / 4u, code_copies = tile_n / 16u;
  static constexpr u32 wide_turns = (wide_copies + kWaves - 1) / kWaves;
  static constexpr u32 code_turns = (code_copies + kWaves - 1) / kWaves;
  static constexpr u32 scale_turns = (Scales::copies + kWaves - 1) / kWaves;
  static constexpr u32 copies = wide_turns + code_turns + scale_turns;  // of a wave
};

/// Where 16-byte piece `piece` (below 16) of a row of A lies: rows share no banks.
QT_FN u32 wide_place(u32 row, u32 piece) { return row * kWideRow + ((piece ^ row) & 15u) * 16u; }

template <class Config>
using ColumnsOfTile = PairedRows<Config, Config::tile_n / Config::waves_n>;

/// Both operands of a block's tile. Rows that do not exist are those of the last one that does.
template <class Config>
struct Operands {
  using S = Stage<Config>;
  const u16* a;
  const u8* codes_of_b;
  const u8* scales_of_b;
  i64 a_ld, b_ld, scale_ld, row0, row_end, blocks, tiles;
  ColumnsOfTile<Config> columns;

  QT_FN Operands(const qt_args& args, const Product& p, i64 first_row, i64 first_column)
      : a(static_cast<const u16*>(args.a.data) + p.a * args.a.batch_stride),
        codes_of_b(static_cast<const u8*>(args.b.data) + p.b * args.b.batch_stride / 2),
        scales_of_b(static_cast<const u8*>(args.b.scales) + p.b * args.b.scale_batch_stride),
        a_ld(args.a.ld),
        b_ld(args.b.ld),
        scale_ld(args.b.scale_ld),
        row0(first_row),
        row_end(p.end),
        blocks(round_up(args.k, Config::k_unit) / 32),
        tiles((blocks + 7) / 8),
        columns(first_column, args.n) {}

  QT_FN static i64 kept_below(i64 row, i64 end) { return row < end ? row : end - 1; }
  QT_FN const u16* wide(u32 row) const { return a + kept_below(row0 + row, row_end) * a_ld; }
  QT_FN i64 b_row(u32 row) const { return kept_below(columns(row), columns.n); }
  /// A row's first block; its next ones lie kBlockStep bytes on.
  static constexpr u32 kBlockStep = Config::b_shuffled ? kPanelBlock : 16u;
  QT_FN const u8* codes(u32 row) const {
    if constexpr (Config::b_shuffled) return codes_of_b + place_16x16(b_row(row), 0, blocks);
    return codes_of_b + b_row(row) * (b_ld / 2);
  }
  QT_FN const u8* scale(u32 row, i64 block) const {
    if constexpr (Config::b_tiled) return scales_of_b + place_32x8(b_row(row), block, tiles);
    return scales_of_b + b_row(row) * scale_ld + block;
  }
  /// What a lane brings of copy `copy` of a stage's scales: its four bytes of the first stage.
  QT_FN const u8* scale_copy(u32 copy, u32 lane) const {
    if constexpr (Config::b_tiled) {
      const i64 tile = columns.first / 32 + copy, last = (columns.n - 1) / 32;
      return scales_of_b + (tile < last ? tile : last) * tiles * i64(kScaleTile) + lane * 4u;
    } else {
      return scales_of_b + b_row(min_u32(copy * 64u + lane, S::tile_n - 1u)) * scale_ld;
    }
  }
  QT_FN bool a_aligned() const { return ((u64(a) | u64(a_ld) * 2u) & 15u) == 0u; }
  QT_FN bool codes_aligned() const {
    return ((u64(codes_of_b) | (Config::b_shuffled ? 0u : u64(b_ld / 2))) & 15u) == 0u;
  }
  QT_FN bool scales_aligned() const {
    return ((u64(scales_of_b) | (Config::b_tiled ? 0u : u64(scale_ld))) & 3u) == 0u;
  }
};

/// What a lane copies of every whole stage.
template <class Config>
struct Copies {
  using S = Stage<Config>;
  const u8* wide[S::wide_turns];
  const u8* codes[S::code_turns];
  const u8* scales[S::scale_turns];

  /// Waves take copies in turn; those of the last turn that are left over repeat the last copy.
  QT_FN static u32 copy_of(u32 turn, u32 all) {
    return min_u32(turn * kWaves + wave_index(), all - 1u);
  }
  QT_FN explicit Copies(const Operands<Config>& from) {
    const u32 lane = wave_lane();
    QT_UNROLL
    for (u32 i = 0; i < S::wide_turns; ++i) {
      const u32 row = copy_of(i, S::wide_copies) * 4u + lane / 16u;
      wide[i] = reinterpret_cast<const u8*>(from.wide(row)) + ((lane ^ row) & 15u) * 16u;
    }
    QT_UNROLL
    for (u32 i = 0; i < S::code_turns; ++i) {
      const u32 row = copy_of(i, S::code_copies) * 16u + lane / 4u;
      codes[i] = from.codes(row) + ((lane ^ (row >> 2)) & 3u) * Operands<Config>::kBlockStep;
    }
    QT_UNROLL
    for (u32 i = 0; i < S::scale_turns; ++i)
      scales[i] = from.scale_copy(copy_of(i, S::Scales::copies), lane);
  }
  /// Starts stage `s` on its way to `to`.
  QT_FN void start(i64 s, u32 to) const {
    QT_UNROLL
    for (u32 i = 0; i < S::wide_turns; ++i)
      copy_to_lds_16(to + copy_of(i, S::wide_copies) * 1024u, wide[i] + s * i64(kWideRow));
    QT_UNROLL
    for (u32 i = 0; i < S::code_turns; ++i)
      copy_to_lds_16(to + S::codes_at + copy_of(i, S::code_copies) * 1024u,
                     codes[i] + s * i64(4u * Operands<Config>::kBlockStep));
    QT_UNROLL
    for (u32 i = 0; i < S::scale_turns; ++i)
      copy_to_lds_4(to + S::scales_at + copy_of(i, S::Scales::copies) * 256u,
                    scales[i] + (Config::b_tiled ? s / 2 * i64(kScaleTile) : s * (kChunk / 32)));
  }
};

/// Eight elements of A, of which `left` exist.
QT_FN Words4 load_wide(const u16* from, i64 left, bool aligned) {
  if (aligned && left >= 8) return load_words(reinterpret_cast<const Words4*>(from));
  Words4 v = {};
  QT_UNROLL
  for (int i = 0; i < 8; ++i)
    if (i < left) v.word[i / 2] |= u32(from[i]) << (16 * (i % 2));
  return v;
}

/// Stage `s` by registers, zeros from element k of A and from block k_end / 32 of B on.
template <class Config>
QT_FN void bring_by_registers(const Operands<Config>& from, i64 s, i64 k, i64 k_end, u32 to) {
  using S = Stage<Config>;
  const bool wide = from.a_aligned(), aligned = from.codes_aligned();
  for (u32 at = thread_index(); at < S::tile_m * 16u; at += kThreads) {
    const u32 row = at / 16u, piece = at % 16u;
    const i64 first = s * kChunk + i64(piece) * 8;
    store_shared_4(to + wide_place(row, piece),
                   first < k ? load_wide(from.wide(row) + first, k - first, wide) : Words4{});
  }
  for (u32 at = thread_index(); at < S::tile_n * 4u; at += kThreads) {
    const u32 row = at / 4u, piece = at % 4u;
    const i64 block = s * 4 + i64(piece);
    const bool inside = block * 32 < k_end;
    store_shared_4(
        to + S::codes_at + code_place(row, piece),
        inside ? load_piece(from.codes(row) + block * i64(Operands<Config>::kBlockStep), aligned)
               : Words4{});
    store_shared_u8(to + S::scales_at + S::Scales::place(row, piece, u32(s) % 2u),
                    inside ? u32(*from.scale(row, block)) : kOne);
  }
}

/// The instruction's tile, and where its quads of columns begin.
struct Tile {
  static constexpr u32 size = 16;
  QT_FN static u32 first_of(u32, u32 lane) { return 4u * (lane / 16u); }
};

/// Eight codes to A's type, without their scale.
template <DType type>
QT_FN Words4 decode(u32 codes) {
  if constexpr (type == DType::bf16)
    return {{fp4_pair_to_bf16<0>(codes), fp4_pair_to_bf16<1>(codes), fp4_pair_to_bf16<2>(codes),
             fp4_pair_to_bf16<3>(codes)}};
  else
    return {{fp4_pair_to_f16<0>(codes), fp4_pair_to_f16<1>(codes), fp4_pair_to_f16<2>(codes),
             fp4_pair_to_f16<3>(codes)}};
}

template <DType type>
QT_FN void multiply(float (&d)[4], const Words4& a, const Words4& b) {
  if constexpr (type == DType::bf16)
    mfma_bf16_16x16x32(d, a, b);
  else
    mfma_f16_16x16x32(d, a, b);
}

}  // namespace weight_only_parts

/// One block of four waves computes one tile_m x tile_n tile, or one part of its K; grid: as
/// TileWalk::find_of_block wants it.
template <class Config>
QT_FN void weight_only(const Config&, const qt_args& args) {
  using namespace weight_only_parts;
  using S = Stage<Config>;
  constexpr u32 wave_m = Config::tile_m / Config::waves_m,
                wave_n = Config::tile_n / Config::waves_n;
  constexpr int tiles_m = wave_m / Tile::size, tiles_n = wave_n / Tile::size;
  static_assert(Config::waves_m * Config::waves_n == kWaves, "four waves share a tile");
  static_assert(tiles_m * Tile::size == wave_m && tiles_n * Tile::size == wave_n,
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
  const bool aligned = from.a_aligned() && from.codes_aligned() && from.scales_aligned();
  const i64 whole = aligned ? p.k / kChunk : 0;
  const i64 by_copies = whole < stages ? whole : stages;
  const auto place_of_stage = [](i64 s) QT_INLINE {
    return shared_base() + u32(s % Config::stages) * S::bytes;
  };
  const auto bring = [&](i64 s) QT_INLINE {
    if (s < by_copies)
      copies.start(s, place_of_stage(s));
    else if (s < stages)
      bring_by_registers<Config>(from, s, p.k, k_end, place_of_stage(s));
  };

  QT_UNROLL
  for (int s = 0; s < Config::stages - 1; ++s) bring(first_stage + s);

  const u32 wave = wave_index(), lane = wave_lane();
  const u32 first_m = wave / Config::waves_n * wave_m, first_n = wave % Config::waves_n * wave_n;
  const u32 in_tile = lane % 16u, group = lane / 16u;
  float sums[tiles_n][tiles_m][4] = {};
  for (i64 s = first_stage; s < stages; ++s) {
    // Later stages may be on their way where all their copies are.
    if (s + Config::stages - 2 < by_copies)
      wait_copies<(Config::stages - 2) * int(S::copies)>();
    else
      wait_copies<0>();
    sync_lds();
    bring(s + Config::stages - 1);

    const u32 stage = place_of_stage(s), half = u32(s) % 2u;
    QT_UNROLL
    for (u32 block = 0; block < 4u; ++block) {
      Words4 a[tiles_m];
      QT_UNROLL
      for (int i = 0; i < tiles_m; ++i)
        a[i] = load_shared_4(
            stage + wide_place(first_m + u32(i) * Tile::size + in_tile, block * 4u + group));
      QT_UNROLL
      for (int j = 0; j < tiles_n; ++j) {
        const u32 row = first_n + u32(j) * Tile::size;
        const Words4 b = decode<Config::input>(
            load_shared_u32(stage + S::codes_at + code_place(row + in_tile, block) + group * 4u));
        float scale[4];
        QT_UNROLL
        for (u32 e = 0; e < 4u; ++e)
          scale[e] = e8m0_value(load_shared_u8(
              stage + S::scales_at + S::Scales::place(row + group * 4u + e, block, half)));
        QT_UNROLL
        for (int i = 0; i < tiles_m; ++i) {
          float part[4] = {};
          multiply<Config::input>(part, b, a[i]);
          QT_UNROLL
          for (int e = 0; e < 4; ++e) sums[j][i][e] = fma_rn(part[e], scale[e], sums[j][i][e]);
        }
      }
    }
  }
  if constexpr (Config::splits > 1) {
    const PartSums<Config::splits, 2 * kWaves, u32(tiles_n * tiles_m) * 4u> kept(
        args, tiles.number_of_block(Config::splits), warp_index(), lane_index());
    if (part + 1 < Config::splits) {
      leave_sums(kept, part, sums);
      return;
    }
    join_sums(kept, parts, part, sums);
  }
  store_wave<Config, Tile>(args, p, from.columns, column0, first_n, row0 + first_m + in_tile, lane,
                           sums);
}

}  // namespace qt::hip

#endif
