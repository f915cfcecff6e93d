// The transposed copy, and both copies from one reading of X: tiles of 128 rows and 64 columns come
// to shared memory while the last one is quantised, row-wise from its rows and column-wise from its
// columns.
//
// 256 threads; each has one block of 32 of each copy in a tile. A rotation may span the tile's four
// blocks down and its two blocks across, so that g is at most 128 for columns alone and 64 for
// both.
#ifndef QT_CUDA_QUANTIZE_TILES_H
#define QT_CUDA_QUANTIZE_TILES_H

#include "cuda/quantize_store.h"

namespace qt::cuda {

namespace tiles {

constexpr u32 kRows = 128, kColumns = 64, kThreads = 256;
constexpr u32 kGroup = 8;  // tiles walked down before the next one across: a sector of scale bytes

/// Where 16-byte piece `piece` of row `row` of a tile lies, so that neither direction has bank
/// conflicts.
template <class Config>
QT_FN u32 place(u32 row, u32 piece) {
  constexpr u32 pitch = kColumns * bytes_of(Config::input);
  return row * pitch + (piece ^ ((row ^ (row >> 5)) & 7u)) * 16u;
}

template <class Config>
QT_FN void bring(const qt_args& args, const u8* source, bool aligned, i64 k, i64 first_row,
                 i64 first_column, u32 to) {
  constexpr i64 bytes = bytes_of(Config::input);
  constexpr u32 pieces = kColumns * u32(bytes) / 16u;  // of a row
  QT_UNROLL
  for (u32 i = 0; i < kRows * pieces / kThreads; ++i) {
    const u32 index = thread_index() + i * kThreads;
    const u32 row = index / pieces, piece = index % pieces;
    const i64 y = first_row + row, x = first_column + piece * (16 / bytes);
    const i64 left = y < args.m ? (k - x) * bytes : 0;
    const u32 valid = left <= 0 ? 0u : left >= 16 ? 16u : u32(left);
    const u8* from = source + (valid != 0 ? (y * args.a.ld + x) * bytes : 0);
    const u32 at = to + place<Config>(row, piece);
    if (aligned) {
      copy_async_16(at, from, valid);
    } else {
      QT_UNROLL
      for (u32 e = 0; e < 16u; e += u32(bytes)) {
        if constexpr (bytes == 4) {
          store_shared_u32(at + e, e < valid ? reinterpret_cast<const u32*>(from)[e / 4u] : 0u);
        } else {
          store_shared_u16(at + e, e < valid ? reinterpret_cast<const u16*>(from)[e / 2u] : 0u);
        }
      }
    }
  }
}

}  // namespace tiles

/// Blocks take tiles in turn, groups of 8 down first.
template <class Config>
QT_FN void quantize_tiles(const Config&, const qt_args& args) {
  using namespace tiles;
  constexpr int g = Config::rotation;
  constexpr bool has_signs = Config::signs != Signs::none;
  constexpr bool by_rows = Config::copies == Copies::both;
  constexpr u32 bytes = bytes_of(Config::input);
  constexpr u32 tile_bytes = kRows * kColumns * bytes;
  const i64 batch = block_index_z();
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const u8* source = static_cast<const u8*>(args.a.data) + batch * args.a.batch_stride * bytes;
  const bool aligned = is_aligned<Config::input>(source, args.a.ld);
  const u32 down = u32(ceil_div(args.m, kRows)), across = u32(ceil_div(k, kColumns));
  const u32 total = down * across;
  const auto first_row = [&](u32 tile) {
    const u32 group = tile / (kGroup * across), rest = tile % (kGroup * across);
    return i64(group * kGroup + rest % min_u32(down - group * kGroup, kGroup)) * kRows;
  };
  const auto first_column = [&](u32 tile) {
    const u32 group = tile / (kGroup * across), rest = tile % (kGroup * across);
    return i64(rest / min_u32(down - group * kGroup, kGroup)) * kColumns;
  };

  const u32 thread = thread_index(), lane = thread % 32u;
  const u32 row = thread / 2u, half = thread % 2u;        // of the row-wise block
  const u32 column = thread / 4u, segment = thread % 4u;  // of the column-wise one
  const SignMask mask = signs_of<Config>(args);
  const i64 padded_k = round_up(k, padding_unit(g)), padded_m = round_up(args.m, padding_unit(g));
  const ColumnPlace down_place = column_place<Config>(args);
  const qt_tensor& transposed = by_rows ? args.d2 : args.d;

  u32 tile = block_index();
  u32 now = shared_base(), next = now + tile_bytes;
  if (tile < total)
    bring<Config>(args, source, aligned, k, first_row(tile), first_column(tile), now);
  copy_async_commit();
  for (; tile < total; tile += block_count()) {
    const u32 after = tile + block_count();
    if (after < total)
      bring<Config>(args, source, aligned, k, first_row(after), first_column(after), next);
    copy_async_commit();
    copy_async_wait<1>();
    sync_block();
    const i64 y = first_row(tile), x = first_column(tile);

    if constexpr (by_rows) {
      float v[32];
      QT_UNROLL
      for (u32 i = 0; i < 2u * bytes; ++i) {
        const Words4 four = load_shared_4(now + place<Config>(row, half * 2u * bytes + i));
        QT_UNROLL
        for (u32 e = 0; e < 16u / bytes; ++e) {
          if constexpr (bytes == 4) {
            v[i * 4u + e] = float_of(four.word[e]);
          } else {
            v[i * 8u + e] = half_of<Config::input>(four.word[e / 2u], int(e % 2u));
          }
        }
      }
      const u32 block = u32(x / 32) + half;
      rotate_over_lanes<g, has_signs>(v, block_signs<g>(mask, block), lane, 1u);
      const Noise noise = {args.noise_seed, args.stream, noise_lane(args.operand, 0)};
      u32 packed[4];
      const u32 byte = quantize_sums<Config::scale_rule, Config::rounding, g>(
          v, noise,
          noise_position(y + row, i64(block) * 32, args.row0, args.k0,
                         args.k_global > 0 ? args.k_global : k),
          packed);
      if (y + row < args.m && i64(block) * 32 < padded_k)
        store_block<Config>(args.d, batch, y + row, block, padded_k / 32, packed, byte);
    }

    {
      const u32 at = column * bytes % 16u, piece = column * bytes / 16u;
      float v[32];
      QT_UNROLL
      for (u32 r = 0; r < 32u; ++r) {
        const u32 from = now + place<Config>(segment * 32u + r, piece) + at;
        if constexpr (bytes == 4) {
          v[r] = load_shared_f32(from);
        } else {
          v[r] = half_of<Config::input>(load_shared_u16(from), 0);
        }
      }
      const u32 block = u32(y / 32) + segment;
      rotate_over_lanes<g, has_signs>(v, block_signs<g>(mask, block), lane, 1u);
      const Noise noise = {args.noise_seed, args.stream, noise_lane(args.operand, 1)};
      u32 packed[4];
      const u32 byte = quantize_sums<Config::scale_rule, Config::rounding, g>(
          v, noise,
          noise_position(x + column, i64(block) * 32, down_place.row0, down_place.k0,
                         down_place.k_global),
          packed);
      if (x + column < k && i64(block) * 32 < padded_m)
        store_block<Config>(transposed, batch, x + column, block, padded_m / 32, packed, byte);
    }
    sync_block();
    const u32 swap = now;
    now = next;
    next = swap;
  }
  copy_async_wait<0>();
}

}  // namespace qt::cuda

#endif
