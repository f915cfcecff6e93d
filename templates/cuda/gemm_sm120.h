// D = epilogue(alpha * A * B^T + beta * C + bias) on sm_120 and sm_121, whose tensor cores multiply
// MXFP4 as it is: mma.sync with a scale for each block of 32, binary32 sums.
//
// Codes come by 16-byte copies in the background into rows of 64 bytes, whose 16-byte pieces are
// swapped so that matrix loads meet no bank conflicts; scales by 4-byte copies, which take any row
// from layout scales_128x4: rows of groups begin anywhere, and a SwiGLU's gates and values lie
// apart. One word of scales a lane serves 128 of K for 32 rows or columns of a warp.
//
// Where tiles are fewer than units, `splits` blocks share a tile's K (split_k.h). D may be
// quantised here: once all of a tile is summed, its rows wait where the stages were
// (quantized_rows.h).
#ifndef QT_CUDA_GEMM_SM120_H
#define QT_CUDA_GEMM_SM120_H

#include "args.h"
#include "cuda/addends.h"
#include "cuda/epilogue_rows.h"
#include "cuda/primitives_mxf4.h"
#include "cuda/quantized_fragments.h"
#include "cuda/scales_128x4.h"
#include "cuda/split_k.h"
#include "cuda/tile_walk.h"

namespace qt::cuda {
namespace gemm_sm120 {

constexpr int kChunk = 128;           // elements of K in a stage
constexpr u32 kRow = kChunk / 2;      // bytes of a row's codes in it
constexpr u32 kPieces = kRow / 16;    // that are copied and loaded as they are
constexpr u32 kSecondHalf = 2u << 4;  // from a piece of the first 64 of K to its like in the rest

/// Byte of 16-byte piece `piece` of row `row` of a stage's codes.
QT_FN u32 place(u32 row, u32 piece) { return row * kRow + ((piece ^ (row >> 1 & 3u)) << 4); }

/// How the warps share a tile, and where things lie in a stage.
template <class Config>
struct Shape {
  static constexpr int threads = Config::warps_m * Config::warps_n * 32;
  static constexpr int warp_m = Config::tile_m / Config::warps_m;
  static constexpr int warp_n = Config::tile_n / Config::warps_n;
  static constexpr int tiles_m = warp_m / 16, tiles_n = warp_n / 8;
  static constexpr int words_m = (warp_m + 31) / 32, words_n = warp_n / 32;  // of scales of a lane
  static_assert(tiles_m * 16 == warp_m && words_n * 32 == warp_n, "parts are 16 x 32 or larger");
  static_assert(tiles_m == 1 || tiles_m % 2 == 0, "a word of scales serves two tiles of 16 rows");

  static constexpr u32 b_at = Config::tile_m * kRow;
  static constexpr u32 a_scales_at = b_at + Config::tile_n * kRow;
  static constexpr u32 b_scales_at = a_scales_at + Config::tile_m * 4;
  static constexpr u32 stage_bytes = b_scales_at + Config::tile_n * 4;
};

/// One operand of this block's tile: its matrix, from the product's first element of K on.
struct Operand {
  const u8* codes;
  const u8* scales;
  i64 row_bytes;
  i64 tiles;  // of scales along K
  i64 end;    // of the rows
  i64 k;
};

template <class Config>
QT_FN Operand operand(const qt_tensor& t, const Product& p, u32 entry, i64 end, i64 length) {
  const u8* codes = static_cast<const u8*>(t.data) + (entry * t.batch_stride + p.k_first) / 2;
  const u8* scales = static_cast<const u8*>(t.scales) + entry * t.scale_batch_stride +
                     p.k_first / kChunk * kScaleTile;
  return {codes, scales, length / 2, ceil_div(length, kChunk), end, round_up(p.k, 32)};
}

/// Codes of tile rows 0..rows, which are rows `row_of`(0), ... of the operand; what it does not
/// have becomes 0.
template <int rows, int threads, class RowOf>
QT_FN void fetch_codes(const Operand& from, const RowOf& row_of, i64 k0, u32 to) {
  for (u32 i = thread_index(); i < u32(rows) * kPieces; i += u32(threads)) {
    const u32 row = i / kPieces, piece = i % kPieces;
    const i64 source = row_of(row), k = k0 + 32 * piece;
    const bool inside = source < from.end && k < from.k;
    copy_async_16(to + place(row, piece),
                  from.codes + (inside ? source * from.row_bytes + k / 2 : 0), inside ? 16u : 0u);
  }
}

/// The scales of a chunk, a word a row. Neighbouring threads read neighbouring words of a tile.
template <int rows, int threads, class RowOf>
QT_FN void fetch_scales(const Operand& from, const RowOf& row_of, i64 k0, u32 to) {
  constexpr u32 places = (u32(rows) + 127u) / 128u * 128u;
  for (u32 i = thread_index(); i < places; i += u32(threads)) {
    const u32 row = i / 128u * 128u + i % 4u * 32u + i % 128u / 4u;
    if (row >= u32(rows)) continue;
    const i64 source = row_of(row);
    const bool inside = source < from.end;
    copy_async_4(to + row * 4u,
                 from.scales + (inside ? place_128x4(source, k0 / 32, from.tiles) : 0),
                 inside ? 4u : 0u);
  }
}

/// A tile's rows are neighbours.
struct RowsInOrder {
  i64 first;
  QT_FN i64 operator()(u32 row) const { return first + row; }
};

/// Rows of B that a tile multiplies, and the columns of z that they make: neighbours, or for a
/// split SwiGLU in each warp's part first gates and then their values.
template <class Config>
struct RowsOfB {
  static constexpr bool halves = Config::epilogue == Epilogue::swiglu_split;
  static constexpr u32 warp_n = u32(Shape<Config>::warp_n), half = warp_n / 2u;
  i64 first, n;  // of the tile: its first column of z, or first output
  QT_FN RowsOfB(u32 x, i64 all) : first(i64(x) * Config::tile_n / (halves ? 2 : 1)), n(all) {}

  /// Where the part of a warp begins.
  QT_FN i64 first_of(u32 warp) const { return first + warp * (halves ? half : warp_n); }
  /// The column of z that column `c` of a warp's part makes; n if there is none.
  QT_FN i64 column(u32 warp, u32 c) const {
    if constexpr (!halves) return first_of(warp) + c;
    const i64 output = first_of(warp) + (c < half ? c : c - half);
    if (output >= n / 2) return n;
    return c < half ? output : n / 2 + output;
  }
  QT_FN i64 operator()(u32 row) const { return column(row / warp_n, row % warp_n); }
};

/// 16 rows by a warp's columns, 64 of K. `byte`: of the words of scales; `pair`: which 16 rows of
/// 32 these are.
template <u32 byte, u32 pair, int tiles_n>
QT_FN void multiply_rows(float (&sums)[tiles_n][4], const Words4& a, const Words4 (&b)[tiles_n / 2],
                         u32 a_scales, const u32 (&b_scales)[tiles_n / 4]) {
  QT_UNROLL
  for (int j = 0; j < tiles_n / 4; ++j) {
    const Words4 &left = b[2 * j], &right = b[2 * j + 1];
    const u32 s = b_scales[j];
    mma_mxf4<byte, pair, 0>(sums[4 * j], a, left.word[0], left.word[1], a_scales, s);
    mma_mxf4<byte, pair, 1>(sums[4 * j + 1], a, left.word[2], left.word[3], a_scales, s);
    mma_mxf4<byte, pair, 2>(sums[4 * j + 2], a, right.word[0], right.word[1], a_scales, s);
    mma_mxf4<byte, pair, 3>(sums[4 * j + 3], a, right.word[2], right.word[3], a_scales, s);
  }
}

/// 64 of K: the first (`half` 0) or the second half of a chunk. `a_at` and `b_at`: the warp's rows.
template <class Config, u32 half>
QT_FN void multiply_half(float (&sums)[Shape<Config>::tiles_m][Shape<Config>::tiles_n][4], u32 a_at,
                         u32 b_at, const u32 (&a_scales)[Shape<Config>::words_m],
                         const u32 (&b_scales)[Shape<Config>::words_n]) {
  using S = Shape<Config>;
  const u32 lane = lane_index();
  // Matrices of 8 rows by 32 of K: of A rows 0-7, 8-15, and both again 32 further along K; of B
  // columns 0-7, those 32 further, and both again of columns 8-15.
  const u32 a_place = place(lane % 16u, lane / 16u) ^ (half * kSecondHalf);
  const u32 b_place = place(lane % 8u + lane / 16u * 8u, lane / 8u % 2u) ^ (half * kSecondHalf);
  Words4 a[S::tiles_m], b[S::tiles_n / 2];
  QT_UNROLL
  for (int i = 0; i < S::tiles_m; ++i) a[i] = load_matrix_4(a_at + u32(i) * 16u * kRow + a_place);
  QT_UNROLL
  for (int j = 0; j < S::tiles_n / 2; ++j)
    b[j] = load_matrix_4(b_at + u32(j) * 16u * kRow + b_place);
  QT_UNROLL
  for (int i = 0; i < S::tiles_m; i += 2) {
    multiply_rows<2 * half, 0>(sums[i], a[i], b, a_scales[i / 2], b_scales);
    if constexpr (S::tiles_m > 1)
      multiply_rows<2 * half, 1>(sums[i + 1], a[i + 1], b, a_scales[i / 2], b_scales);
  }
}

/// A tile's rows quantised, in passes that take as many of every warp's; z(i, j, v): group j of 8
/// columns of the warp's i'th 16 rows.
template <class Config, class Z>
QT_FN void quantize_tile(const qt_args& args, const Destination& d, const RowsOfB<Config>& columns,
                         i64 row0, u32 warp, const Z& z) {
  using S = Shape<Config>;
  constexpr int tiles = S::tiles_m / Config::passes;
  constexpr u32 part = u32(tiles) * 16u;  // rows of a warp in a pass
  using Kept = QuantizedRows<Config, u32(Config::warps_m) * part, u32(Config::tile_n)>;
  const u32 base = shared_base();
  const u32 warp_row = warp / Config::warps_n, warp_column = warp % Config::warps_n;
  constexpr u32 staged_bytes =
      Config::epilogue == Epilogue::none ? 0u : u32(S::threads) / 32u * 2048u;
  const Kept kept(base + staged_bytes, columns.first, d.n);
  QT_UNROLL
  for (int pass = 0; pass < Config::passes; ++pass) {
    QT_UNROLL
    for (int i = 0; i < tiles; ++i) {
      const RowsToQuantize<Config, Kept> rows = {
          args,
          d,
          columns.first_of(warp_column),
          base + warp * 2048u,
          lane_index(),
          kept,
          warp_row * part + u32(i) * 16u,
          row0 + warp_row * u32(S::warp_m) + (pass * tiles + i) * 16};
      keep_rows<Config, S::tiles_n>(rows, [&](int j, float(&v)[4]) { z(pass * tiles + i, j, v); });
    }
    sync_block();
    constexpr u32 along = Config::passes == 1 ? u32(Config::tile_m) : part;
    kept.template quantize_copies<u32(S::threads), along>(
        args, d.batch,
        [&](u32 row) { return row0 + row / part * u32(S::warp_m) + u32(pass) * part + row % part; },
        thread_index());
    if (pass + 1 < Config::passes) sync_block();
  }
}

}  // namespace gemm_sm120

/// One block computes one tile_m x tile_n tile, or one part of its K; grid: as
/// TileWalk::find_of_block wants it.
template <class Config>
QT_FN void gemm_sm120_tile(const Config&, const qt_args& args) {
  using namespace gemm_sm120;
  using S = Shape<Config>;
  TileWalk<Config, u32(Config::tile_m)> tiles(args, args.m, args.n, args.k, Config::tile_n);
  if (!tiles.find_of_block(Config::splits)) return;
  const Product p = tiles.product();
  const KParts<Config::splits> parts = {u32(ceil_div(p.k, kChunk))};
  const u32 part = block_index() % Config::splits;
  if (parts.is_idle(part)) return;
  const i64 row0 = p.first + i64(tiles.y) * Config::tile_m;
  const i64 length = packed_length<Config>(args, args.k);
  const Operand a = operand<Config>(args.a, p, p.a, p.end, length);
  const Operand b = operand<Config>(args.b, p, p.b, args.n, length);
  const RowsInOrder rows_of_a = {row0};
  const RowsOfB<Config> columns(tiles.x, args.n);
  const u32 base = shared_base();

  const i64 first_stage = parts.begin(part), stages = parts.end(part);
  const auto stage_at = [&](i64 s) { return base + u32(s % Config::stages) * S::stage_bytes; };
  const auto fetch = [&](i64 s) {
    if (s < stages) {
      const u32 to = stage_at(s);
      const i64 k0 = s * kChunk;
      fetch_codes<Config::tile_m, S::threads>(a, rows_of_a, k0, to);
      fetch_codes<Config::tile_n, S::threads>(b, columns, k0, to + S::b_at);
      fetch_scales<Config::tile_m, S::threads>(a, rows_of_a, k0, to + S::a_scales_at);
      fetch_scales<Config::tile_n, S::threads>(b, columns, k0, to + S::b_scales_at);
    }
    copy_async_commit();
  };
  QT_UNROLL
  for (int s = 0; s < Config::stages - 1; ++s) fetch(first_stage + s);

  const u32 warp = warp_index(), lane = lane_index();
  const u32 warp_row = warp / Config::warps_n, warp_column = warp % Config::warps_n;
  const u32 first_row = warp_row * u32(S::warp_m), first_column = warp_column * u32(S::warp_n);
  const u32 g = lane / 4u, t = lane % 4u;
  // A lane's words of scales: rows g and g + 8 of one of two tiles, and column g of one of four.
  const u32 a_scale =
      (first_row + (S::tiles_m > 1 ? t / 2u * 16u : 0u) + t % 2u * 8u + g) * 4u + S::a_scales_at;
  const u32 b_scale = (first_column + t * 8u + g) * 4u + S::b_scales_at;

  float sums[S::tiles_m][S::tiles_n][4] = {};
  for (i64 s = first_stage; s < stages; ++s) {
    copy_async_wait<Config::stages - 2>();
    sync_block();
    fetch(s + Config::stages - 1);
    const u32 at = stage_at(s);
    // Scales behind the operand's last block mean nothing.
    const i64 left = a.k - s * kChunk;
    const u32 keep = left >= kChunk ? ~0u : (1u << u32(left / 4)) - 1u;
    u32 a_scales[S::words_m], b_scales[S::words_n];
    QT_UNROLL
    for (int i = 0; i < S::words_m; ++i)
      a_scales[i] = load_shared_u32(at + a_scale + u32(i) * 128u) & keep;
    QT_UNROLL
    for (int j = 0; j < S::words_n; ++j)
      b_scales[j] = load_shared_u32(at + b_scale + u32(j) * 128u) & keep;
    const u32 a_at = at + first_row * kRow, b_at = at + S::b_at + first_column * kRow;
    multiply_half<Config, 0>(sums, a_at, b_at, a_scales, b_scales);
    multiply_half<Config, 1>(sums, a_at, b_at, a_scales, b_scales);
  }

  // Rows on their way to memory take the place of the stages.
  copy_async_wait<0>();
  sync_block();
  if constexpr (Config::splits > 1) {
    constexpr u32 words = u32(S::tiles_m * S::tiles_n * 4);
    const PartSums<Config::splits, u32(S::threads) / 32u, words> kept(
        args, tiles.number_of_block(Config::splits), warp, lane);
    if (part + 1 < Config::splits) {
      leave_sums(kept, part, sums);
      return;
    }
    join_sums(kept, parts, part, sums);
  }
  const float factor = mul(args.alpha, Config::descale);
  const Destination d = {p.d, p.end, args.n};
  // Of 16 rows, group j of 8 columns.
  const auto z = [&](int i, int j, float(&v)[4]) {
    const i64 row = row0 + first_row + 16 * i;
    QT_UNROLL
    for (int e = 0; e < 4; ++e) {
      const i64 column = columns.column(warp_column, u32(8 * j + e % 2) + 2u * t);
      v[e] =
          with_addends<Config>(args, p, d, row + g + e / 2 * 8, column, mul(factor, sums[i][j][e]));
    }
  };
  if constexpr (Config::quantizes) {
    quantize_tile<Config>(args, d, columns, row0, warp, z);
  } else {
    const auto fits = [](i64) { return true; };
    const auto column_fits = [](u32) { return true; };
    const RowsOfZ<Config, decltype(fits), decltype(column_fits)> rows = {
        args, d,          columns.first_of(warp_column), base + warp * 2048u, lane, false,
        fits, column_fits};
    QT_UNROLL
    for (int i = 0; i < S::tiles_m; ++i)
      finish_rows<Config, S::tiles_n>(rows, row0 + first_row + 16 * i,
                                      [&](int j, float(&v)[4]) { z(i, j, v); });
  }
}

}  // namespace qt::cuda

#endif
