// One pass from high precision to MXFP4: rotate, find scales, round, pack; row-wise, column-wise
// (the transposed copy), or both, as packed codes and scales or as the operand that a GEMM expands.
//
// A thread owns one block of 32, so the defining text of mxfp4/ needs no lanes but for rotations
// beyond 32. Grid: blocks of all kinds take their work in bands of 256 rows, row-wise work first,
// so that the second reading of a band comes from the L2 cache.
#ifndef QT_CUDA_QUANTIZE_H
#define QT_CUDA_QUANTIZE_H

#include "cuda/prologue.h"
#include "cuda/quantize_store.h"

namespace qt::cuda {

/// Blocks of threads that share the row-wise work of a band of 256 rows: two MX blocks a thread.
QT_FN constexpr u32 row_parts_of_band(i64 k, int rotation, int threads) {
  return u32(ceil_div(256 * (round_up(k, padding_unit(rotation)) / 32), 2 * threads));
}

/// Row-wise, packed output: blocks of rows first_row..last_row, spread over `threads_in_all`.
template <class Config>
QT_FN void quantize_rows(const qt_args& args, i64 batch, u32 first_row, u32 last_row, u32 thread,
                         u32 threads_in_all) {
  constexpr int g = Config::rotation;
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const u32 blocks = u32(round_up(k, padding_unit(g)) / 32);
  const u32 total = (last_row - first_row) * blocks;
  const SignMask mask = signs_of<Config>(args);
  const Noise noise = noise_of(args, args.operand, 0);
  const i64 k_global = args.k_global > 0 ? args.k_global : k;
  const i64 rows = rows_of_entry<Config>(args, batch), row0 = row0_of_entry<Config>(args, batch);
  const RowsOfX<Config> from(args, batch, k);
  const Copy to = copy_of<Config>(args.d, batch, args.m, blocks);

  // A warp goes on while its first lane has work: shuffles need all lanes. Other warps hide the
  // time that its loads take.
  const u32 lane = thread % 32u;
  for (u32 index = thread; index - lane < total; index += threads_in_all) {
    const bool inside = index < total;
    const u32 in_band = inside ? index / blocks : 0u;
    const u32 block = inside ? index - in_band * blocks : 0u;
    const u32 row = first_row + in_band;
    float x[32];
    from.values(x, row, block, inside && row < rows ? k - i64(block) * 32 : 0, 1.0f);
    u32 packed[4];
    const u32 byte = quantize_values<Config>(
        x, block_signs<g>(mask, block), lane, noise,
        noise_position(row, i64(block) * 32, row0, args.k0, k_global), packed);
    if (inside) store_block<Config>(to, row, block, blocks, packed, byte);
  }
}

/// Column-wise, packed output: a tile of 256 elements along 64 rows of `to`, columns of X from
/// first_column on. Threads: 256. Lane = 4 * segment + column pair, so that a rotation along rows
/// runs over lanes and that eight lanes write 128 consecutive bytes.
template <class Config>
QT_FN void quantize_columns(const qt_args& args, const qt_tensor& to, i64 batch, u32 first,
                            u32 first_column, u32 thread) {
  constexpr int g = Config::rotation;
  constexpr int bytes = bytes_of(Config::input);
  constexpr int pitch = 64 * bytes;   // of a row of the tile
  constexpr int chunks = pitch / 16;  // 16-byte pieces of it
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const i64 padded = column_length<Config>(args);
  const u32 tile = shared_base();
  const u8* source = static_cast<const u8*>(args.a.data) + batch * args.a.batch_stride * bytes;
  const bool aligned = is_aligned<Config::input>(source, args.a.ld);

  // Groups begin at multiples of 128.
  const RowsAlong low = rows_along<Config, false>(args, first);
  const RowsAlong high = rows_along<Config, false>(args, i64(first) + 128);

  // Chunk c of row r lies at c ^ (r ^ r / 32) % 8, so that both directions avoid bank conflicts.
  for (u32 i = thread; i < 256u * chunks; i += 256u) {
    const u32 row = i / chunks, chunk = i % chunks;
    const i64 y = row < 128u ? low.first + row : high.first + (row - 128u);
    const i64 x = i64(first_column) + chunk * (16 / bytes);
    const u32 at = tile + row * pitch + (chunk ^ ((row ^ (row >> 5)) & 7u)) * 16u;
    const i64 left = y < (row < 128u ? low.end : high.end) ? k - x : 0;
    const u32 valid = left <= 0 ? 0u : left * bytes >= 16 ? 16u : u32(left) * bytes;
    if (aligned) {
      copy_async_16(at, source + (valid ? (y * args.a.ld + x) * bytes : 0), valid);
    } else {
      QT_UNROLL
      for (int e = 0; e < 16 / bytes; ++e) {
        const i64 from = y * args.a.ld + x + e;
        if constexpr (bytes == 4) {
          store_shared_u32(at + 4u * e,
                           e * 4u < valid ? reinterpret_cast<const u32*>(source)[from] : 0u);
        } else {
          store_shared_u16(at + 2u * e,
                           e * 2u < valid ? reinterpret_cast<const u16*>(source)[from] : 0u);
        }
      }
    }
  }
  copy_async_commit();
  copy_async_wait<0>();
  sync_block();

  const u32 lane = thread % 32u, warp = thread / 32u;
  const u32 segment = lane / 4u;
  const u32 block = first / 32u + segment;
  const SignMask mask = signs_of<Config>(args);
  const Noise noise = noise_of(args, args.operand, 1);
  const ColumnPlace place = column_place<Config>(args);
  const Copy copy = copy_of<Config>(to, batch, k, padded / 32);
  u32 raw[32];
  QT_UNROLL
  for (u32 pass = 0; pass < 2u; ++pass) {
    const u32 column = 8u * warp + 2u * (lane % 4u) + pass;
    if (bytes == 4 || pass == 0) {
      const u32 chunk = column * bytes / 16u, inside = column * bytes % 16u;
      QT_UNROLL
      for (u32 r = 0; r < 32u; ++r)
        raw[r] = load_shared_u32(tile + (segment * 32u + r) * pitch +
                                 (chunk ^ ((r ^ segment) & 7u)) * 16u + inside);
    }
    float x[32];
    QT_UNROLL
    for (int r = 0; r < 32; ++r) {
      if constexpr (bytes == 4) {
        x[r] = float_of(raw[r]);
      } else {
        x[r] = half_of<Config::input>(raw[r], int(pass));
      }
    }
    const float largest = rotate_over_lanes<g, Config::signs != Signs::none>(
        x, block_signs<g>(mask, block), lane, 4u);
    const i64 row = i64(first_column) + column;  // of the transposed copy
    u32 packed[4];
    const u32 byte = quantize_sums<Config::scale_rule, Config::rounding, Config::rotation>(
        x, largest, noise,
        noise_position(row, i64(block) * 32, place.row0, place.k0, place.k_global), packed);
    if (row < k && i64(block) * 32 < padded)
      store_block<Config>(copy, u32(row), block, u32(padded / 32), packed, byte);
  }
}

/// Row-wise, `threads_per_row` threads sharing a row: into an expanded operand, whose packed codes
/// wait in shared memory until the row's reference is known, or behind an RMSNorm, which sums the
/// row's squares first and reads it again.
template <class Config>
QT_FN void quantize_by_teams(const qt_args& args, i64 batch, u32 group, u32 thread) {
  constexpr int g = Config::rotation;
  constexpr bool expanded = is_expanded(Config::output);
  constexpr u32 team = Config::threads_per_row;
  constexpr u32 teams = Config::threads / team;
  constexpr Expanded type = Config::output == Output::e5m2 ? Expanded::e5m2 : Expanded::int8;
  constexpr i64 unit = expanded && g < 128 ? 128 : padding_unit(g);
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const u32 blocks = u32(round_up(k, unit) / 32);
  const StagedRow stage = staged_row(blocks);
  const u32 slot = thread / team, t = thread % team;
  const u32 codes = shared_base() + slot * stage.bytes;
  const u32 bytes = codes + stage.scales_at;
  const u32 ranges = shared_base() + teams * stage.bytes;  // 12 bytes a warp
  const i64 row = i64(group) * teams + slot;
  const i64 row0 = row0_of_entry<Config>(args, batch);
  const bool row_exists = row < rows_of_entry<Config>(args, batch), row_stored = row < args.m;

  const SignMask mask = signs_of<Config>(args);
  const Noise noise = noise_of(args, args.operand, 0);
  const i64 k_global = args.k_global > 0 ? args.k_global : k;
  const RowsOfX<Config> from(args, batch, k);
  const u32 lane = thread % 32u;
  float factor = 1.0f;
  if constexpr (Config::prologue == Prologue::rmsnorm) {
    const u32 squares =
        (expanded ? ranges + Config::threads / 32u * 12u : shared_base()) + slot * blocks * 4u;
    for (u32 block = t; block < blocks; block += team) {
      float x[32];
      from.elements(x, row, block, row_exists ? k - i64(block) * 32 : 0);
      store_shared_f32(squares + block * 4u, square_sum(x));
    }
    sync_block();
    factor = factor_of_row(squares, blocks, k, args.epsilon, lane);
  }
  const Copy to = copy_of<Config>(args.d, batch, args.m, blocks);
  RowRange range = {};
  for (u32 block = t; block - lane < blocks; block += team) {
    float x[32];
    from.values(x, row, block, row_exists ? k - i64(block) * 32 : 0, factor);
    u32 packed[4];
    const u32 byte = quantize_values<Config>(
        x, block_signs<g>(mask, block), lane, noise,
        noise_position(row, i64(block) * 32, row0, args.k0, k_global), packed);
    if (block >= blocks) continue;
    if constexpr (expanded) {
      store_shared_4(codes + staged_place(block), {{packed[0], packed[1], packed[2], packed[3]}});
      store_shared_u8(bytes + block, byte);
      widen(range, byte, packed);
    } else {
      if (row_stored) store_block<Config>(to, u32(row), block, blocks, packed, byte);
    }
  }
  if constexpr (expanded)
    finish_expanded<type, team>(
        static_cast<u8*>(args.d.data) + batch * args.d.batch_stride + row * blocks * 32,
        static_cast<u8*>(args.d.scales) + batch * args.d.scale_batch_stride + row, row_stored,
        codes, bytes, blocks, ranges, range, thread);
}

template <class Config>
QT_FN void quantize(const Config&, const qt_args& args) {
  const u32 thread = thread_index();
  const i64 batch = block_index_z();
  if constexpr (is_expanded(Config::output) || Config::prologue == Prologue::rmsnorm) {
    quantize_by_teams<Config>(args, batch, block_index(), thread);
  } else {
    constexpr bool by_rows = Config::copies != Copies::columns;
    constexpr bool by_columns = Config::copies != Copies::rows;
    const i64 k = Config::k > 0 ? Config::k : args.k;
    const u32 row_parts = by_rows ? row_parts_of_band(k, Config::rotation, Config::threads) : 0u;
    const u32 column_parts = by_columns ? u32(ceil_div(k, 64)) : 0u;
    const u32 band = block_index() / (row_parts + column_parts);
    const u32 part = block_index() % (row_parts + column_parts);
    const u32 first_row = band * 256u;
    if (part < row_parts) {
      if (first_row >= args.m) return;  // the transposed copy is longer
      const u32 last_row = u32(args.m - first_row < 256 ? args.m : first_row + 256);
      quantize_rows<Config>(args, batch, first_row, last_row, part * Config::threads + thread,
                            row_parts * Config::threads);
    } else if constexpr (by_columns) {
      quantize_columns<Config>(args, by_rows ? args.d2 : args.d, batch, first_row,
                               (part - row_parts) * 64u, thread);
    }
  }
}

}  // namespace qt::cuda

#endif
