// D = epilogue(alpha * A * B^T + beta * C + bias) on sm_100 and sm_103, whose tensor cores multiply
// MXFP4 tiles from shared memory into tensor memory (tcgen05).
//
// Persistent blocks of six warps. One thread of the first brings tiles of 256 of K, codes and their
// scales in layout scales_128x4, through a ring of `stages` buffers; one thread of the second
// copies scales on to tensor memory and multiplies; the other four take finished sums, in fragments
// of 16 rows, and store. With two sets of sums a tile is stored while the next is multiplied.
// Barriers: `full` a stage counts bytes, `empty` the products that read it; `done` a set of sums
// counts its products, `free` the warps that have read it.
//
// Of a pair of blocks (a cluster of two) each brings its own 128 rows of A and half the tile's
// columns of B, and all scales of B; the even block's tensor core multiplies for both.
//
// Where tiles are fewer than units, `splits` blocks, or pairs, share a tile's K (split_k.h). D may
// be quantised here, by each storing warp as many columns of 16 rows at a time as rotation segments
// want (quantized_rows.h).
//
// Columns of scales are a stage's own: the order of products and later copies to the columns that
// they read is not promised. Only steps of 64 that the operands have are multiplied: what lies in
// shared memory behind them may hold NaN.
#ifndef QT_CUDA_GEMM_SM100_H
#define QT_CUDA_GEMM_SM100_H

#include "cuda/addends.h"
#include "cuda/epilogue_rows.h"
#include "cuda/primitives_sm100.h"
#include "cuda/quantized_fragments.h"
#include "cuda/scales_128x4.h"
#include "cuda/split_k.h"
#include "cuda/tile_walk.h"
#include "cuda/tiles_in_flight.h"

namespace qt::cuda {
namespace gemm_sm100 {

constexpr u32 kRows = 128;    // of A and D of a block
constexpr u32 kChunk = 256;   // elements of K in a stage: one swizzle span of codes
constexpr u32 kStep = 64;     // of K of one product
constexpr u32 kScales = 128;  // of K that a tile of scales has
constexpr u32 kWarps = 6, kBringing = 0, kMultiplying = 1, kStoring = 2;
constexpr u32 kThreads = kWarps * 32;

/// Columns of sums that a storing warp finishes at once, of 16 rows.
template <class Config>
QT_FN constexpr int stored_width() {
  return TileColumns<Config>::halves || Config::tile_n < 64 ? Config::tile_n : 64;
}

/// The same, or of those that it quantises at once.
template <class Config>
QT_FN constexpr int finished_width() {
  if constexpr (Config::quantizes) return Config::quantized_width;
  return stored_width<Config>();
}

/// Rows of that many.
template <class Config>
struct Waiting {
  using Rows = QuantizedRows<Config, 16, u32(Config::quantized_width)>;
};
template <class Config>
QT_FN constexpr u32 waiting_bytes() {
  if constexpr (Config::quantizes) return Waiting<Config>::Rows::bytes;
  return 0;
}

/// Where things lie in shared memory.
template <class Config>
struct Shared100 {
  static constexpr u32 tile_n = Config::tile_n;
  static constexpr u32 b_rows = tile_n / Config::blocks;  // that a block brings
  /// Tiles of scales that the tile's columns lie in; those of 64 or 192 may begin amid one.
  static constexpr u32 b_tiles = (tile_n + 127) / 128;
  static constexpr u32 a_bytes = kRows * 128;
  static constexpr u32 b_bytes = b_rows * 128;
  static constexpr u32 a_scale_bytes = 2 * kScaleTile;  // two along K
  static constexpr u32 b_scale_bytes = b_tiles * 2 * kScaleTile;
  static constexpr u32 b_at = a_bytes;
  static constexpr u32 a_scales_at = b_at + b_bytes;
  static constexpr u32 b_scales_at = a_scales_at + a_scale_bytes;
  static constexpr u32 stage_bytes = b_scales_at + b_scale_bytes;
  static constexpr bool staged = Config::output != DType::f32 || Config::epilogue != Epilogue::none;
  static constexpr u32 staging_at = Config::stages * stage_bytes;
  static constexpr u32 waiting_at = staging_at + (staged ? 4 * 2048 : 0);
  static constexpr u32 full_at = waiting_at + 4 * waiting_bytes<Config>();
  static constexpr u32 empty_at = full_at + Config::stages * 8;
  static constexpr u32 done_at = empty_at + Config::stages * 8;
  static constexpr u32 free_at = done_at + Config::sums * 8;
  static constexpr u32 tensor_at = free_at + Config::sums * 8;  // where tensor memory begins
};

/// What is where in tensor memory.
template <class Config>
struct Tensor100 {
  static constexpr u32 tile_columns = 4 + 4 * Shared100<Config>::b_tiles;  // of 128 of K
  static constexpr u32 stage_columns = 2 * tile_columns;
  static constexpr u32 scales_at = Config::sums * Config::tile_n;
  static constexpr u32 used = scales_at + Config::stages * stage_columns;
  static constexpr u32 columns = used <= 128 ? 128 : used <= 256 ? 256 : 512;
  static_assert(used <= 512, "tensor memory has 512 columns");
};

template <class Config>
using Tiles = TileWalk<Config, kRows * Config::blocks>;

template <class Config>
using Parts = KParts<Config::splits>;
/// What storing warps leave of a tile's part.
template <class Config>
using Kept = PartSums<Config::splits, 4, u32(Config::tile_n)>;

/// The number of steps and of chunks in `k` elements.
QT_FN u32 steps_of(i64 k) { return u32(ceil_div(k, kStep)); }
QT_FN u32 chunks_of(i64 k) { return u32(ceil_div(k, kChunk)); }

/// The maps of a call: codes as bytes, scales as 256 bytes by halves of a tile of scales.
struct Maps {
  const qt_tensor_map &a, &b, &a_scales, &b_scales;
};

template <class Config>
QT_FN void bring_tiles(const qt_args& args, const Maps& maps, Tiles<Config> tiles, u32 base,
                       u32 rank) {
  using S = Shared100<Config>;
  constexpr u32 blocks = Config::blocks;
  prefetch_map(&maps.a);
  prefetch_map(&maps.b);
  prefetch_map(&maps.a_scales);
  prefetch_map(&maps.b_scales);
  Ring ring = {0, 1};  // every stage starts empty
  for (u32 item = block_index() / blocks; tiles.find(item / Config::splits);
       item += block_count() / blocks) {
    const Product& p = tiles.product();
    const i32 row = i32(p.first) + i32((tiles.y * blocks + rank) * kRows);
    const TileColumns<Config> columns(tiles.x, args.n);
    const i32 first_byte = i32(p.k_first / 2), first_half = i32(p.k_first / kScales * 2);
    const Parts<Config> parts = {chunks_of(p.k)};
    const u32 part = item % Config::splits;
    for (u32 kb = parts.begin(part); kb < parts.end(part); ++kb) {
      const u32 full = base + S::full_at + 8u * ring.stage;
      const u32 at = base + ring.stage * S::stage_bytes;
      const i32 x = first_byte + i32(kb * (kChunk / 2)), half = first_half + i32(kb * 4u);
      barrier_wait(base + S::empty_at + 8u * ring.stage, ring.parity);
      if (rank == 0) barrier_arrive_expect(full, blocks * S::stage_bytes);
      copy_tile_for<blocks>(at, &maps.a, full, x, row, i32(p.a));
      copy_tile_4d_for<blocks>(at + S::a_scales_at, &maps.a_scales, full, 0, half, row / 128,
                               i32(p.a));
      if constexpr (TileColumns<Config>::halves) {
        // Gates and values are 128 rows of B each, which begin where tiles of scales do.
        QT_UNROLL
        for (u32 part = 0; part < 2; ++part) {
          const i32 y = i32(columns.of(part * kRows));
          if (blocks == 1 || rank == part)
            copy_tile_for<blocks>(at + S::b_at + (blocks == 1 ? part : 0) * kRows * 128u, &maps.b,
                                  full, x, y, i32(p.b));
          copy_tile_4d_for<blocks>(at + S::b_scales_at + part * u32(2 * kScaleTile), &maps.b_scales,
                                   full, 0, half, y / 128, i32(p.b));
        }
      } else {
        copy_tile_for<blocks>(at + S::b_at, &maps.b, full, x,
                              i32(columns.first) + i32(rank * S::b_rows), i32(p.b));
        copy_tile_4d_for<blocks>(at + S::b_scales_at, &maps.b_scales, full, 0, half,
                                 i32(columns.first / 128), i32(p.b));
      }
      ring.advance(Config::stages);
    }
  }
}

/// One stage's scales on to tensor memory, then its products.
template <class Config>
QT_FN void multiply_stage(u32 at, u32 scales, u32 sums, u32 shift, u32 steps, u32 keep) {
  using S = Shared100<Config>;
  using T = Tensor100<Config>;
  constexpr u32 blocks = Config::blocks;
  const auto a_scales = [&](u32 tile) { return scales + tile * T::tile_columns; };
  const auto b_scales = [&](u32 tile) { return a_scales(tile) + 4u; };
  QT_UNROLL
  for (u32 tile = 0; tile < 2; ++tile) {
    if (2 * tile >= steps) continue;
    const u32 bytes = tile * u32(kScaleTile);
    copy_scales<blocks>(a_scales(tile), scale_tile(at + S::a_scales_at + bytes));
    QT_UNROLL
    for (u32 i = 0; i < S::b_tiles; ++i)
      copy_scales<blocks>(b_scales(tile) + 4u * i,
                          scale_tile(at + S::b_scales_at + i * u32(2 * kScaleTile) + bytes));
  }
  const u64 a = mxf4_tile(at), b = mxf4_tile(at + S::b_at);
  QT_UNROLL
  for (u32 step = 0; step < kChunk / kStep; ++step) {
    if (step >= steps) continue;
    const u32 shape = step % 2 == 0 ? mxf4_shape<blocks, Config::tile_n, 0>()
                                    : mxf4_shape<blocks, Config::tile_n, 1>();
    mma_mxf4_tiles<blocks>(sums, a + 2 * step, b + 2 * step, shape, a_scales(step / 2),
                           b_scales(step / 2) + shift, keep | step);
  }
}

/// By one thread, of a pair that of the even block.
template <class Config>
QT_FN void multiply_tiles(const qt_args& args, Tiles<Config> tiles, u32 base, u32 tensor) {
  using S = Shared100<Config>;
  using T = Tensor100<Config>;
  constexpr u32 blocks = Config::blocks;
  Ring ring = {0, 0};
  Ring sums = {0, 1};  // every set starts free
  for (u32 item = block_index() / blocks; tiles.find(item / Config::splits);
       item += block_count() / blocks) {
    const u32 steps = steps_of(tiles.product().k);
    const Parts<Config> parts = {chunks_of(tiles.product().k)};
    const u32 part = item % Config::splits, first = parts.begin(part);
    if (parts.is_idle(part)) continue;
    const TileColumns<Config> columns(tiles.x, args.n);
    // Columns of scales from where tiles of them begin to where the tile does.
    const u32 shift = TileColumns<Config>::halves ? 0u : u32(columns.first % 128) / 32u;
    barrier_wait(base + S::free_at + 8u * sums.stage, sums.parity);
    tensor_fence_after();
    for (u32 kb = first; kb < parts.end(part); ++kb) {
      barrier_wait(base + S::full_at + 8u * ring.stage, ring.parity);
      tensor_fence_after();
      multiply_stage<Config>(base + ring.stage * S::stage_bytes,
                             tensor + T::scales_at + ring.stage * T::stage_columns,
                             tensor + sums.stage * u32(Config::tile_n), shift,
                             steps - kb * (kChunk / kStep), kb - first);
      commit_products<blocks>(base + S::empty_at + 8u * ring.stage);
      ring.advance(Config::stages);
    }
    commit_products<blocks>(base + S::done_at + 8u * sums.stage);
    sums.advance(Config::sums);
  }
}

/// `width` columns of 16 rows of sums from tensor memory.
template <int width>
QT_FN void load_sums(u32 (&words)[width / 32][16], u32 sums) {
  QT_UNROLL
  for (int i = 0; i < width / 32; ++i) load_tensor_16x32(words[i], sums + 32u * u32(i));
  QT_UNROLL
  for (int i = 0; i < width / 32; ++i) wait_for_tensor_loads(words[i]);
}

/// The same of part `part` of a tile's K to where its finisher looks for them, from quad `quad` on.
template <class Config, int width>
QT_FN void keep_part(const Kept<Config>& kept, u32 part, u32 quad, u32 sums) {
  u32 words[width / 32][16];
  load_sums<width>(words, sums);
  QT_UNROLL
  for (int i = 0; i < width / 32; ++i) {
    QT_UNROLL
    for (int q = 0; q < 4; ++q)
      kept.store(
          part, quad + u32(4 * i + q),
          {{words[i][4 * q], words[i][4 * q + 1], words[i][4 * q + 2], words[i][4 * q + 3]}});
  }
}

/// What the blocks of parts 0..last kept, added to the last one's sums.
template <class Config, int width>
QT_FN void add_parts(const Kept<Config>& kept, const Parts<Config>& parts, u32 last, u32 quad,
                     u32 (&words)[width / 32][16]) {
#pragma unroll 1
  for (u32 part = 0; part < last; ++part) {
    if (parts.is_idle(part)) continue;
    QT_UNROLL
    for (int i = 0; i < width / 32; ++i) {
      QT_UNROLL
      for (int q = 0; q < 4; ++q) {
        const Words4 v = kept.load(part, quad + u32(4 * i + q));
        QT_UNROLL
        for (int e = 0; e < 4; ++e)
          words[i][4 * q + e] = bits_of(float_of(words[i][4 * q + e]) + float_of(v.word[e]));
      }
    }
  }
}

/// `width` columns of 16 rows of finished sums to where `rows` has them go.
template <class Config, int width, class Rows>
QT_FN void store_part(const Rows& rows, const Product& p, i64 row,
                      const u32 (&words)[width / 32][16], float factor) {
  constexpr bool halves = TileColumns<Config>::halves;
  const i64 n = rows.d.n;
  const auto z = [&](int j, float(&v)[4]) {
    QT_UNROLL
    for (int e = 0; e < 4; ++e) {
      const u32 c = u32(8 * j + e % 2) + rows.lane % 4u * 2u;
      const bool value = halves && c >= u32(width / 2);
      const i64 output = rows.first + (value ? c - u32(width / 2) : c);
      const i64 column = !halves ? output : output >= n / 2 ? n : output + (value ? n / 2 : 0);
      // A product of no elements has left its sums as they were.
      const float sum = p.k > 0 ? float_of(words[j / 4][j % 4 * 4 + e]) : 0.0f;
      v[e] = with_addends<Config>(rows.args, p, rows.d, row + rows.lane / 4u + e / 2 * 8, column,
                                  mul(factor, sum));
    }
  };
  if constexpr (Config::quantizes) {
    keep_rows<Config, width / 8>(rows, z);
  } else {
    finish_rows<Config, width / 8>(rows, row, z);
  }
}

/// Finished sums of 16 rows of a tile, which begin at `row` of D, from tile column `c` on: as many
/// as finished at once. load(words, c): sums from column c on.
template <class Config, class Load>
QT_FN void finish_columns(const qt_args& args, const Product& p, const Destination& d,
                          const TileColumns<Config>& columns, i64 row, int c, u32 base,
                          float factor, const Load& load) {
  using S = Shared100<Config>;
  constexpr int width = stored_width<Config>();
  const u32 warp = warp_index() - kStoring, lane = lane_index();
  const u32 staged = base + S::staging_at + warp * 2048u;
  if constexpr (Config::quantizes) {
    using Rows = typename Waiting<Config>::Rows;
    constexpr int parts = Config::quantized_width / width;
    static_assert(parts * width == Config::quantized_width, "whole parts are quantised at once");
    const Rows kept(base + S::waiting_at + warp * Rows::bytes, columns.first + c, d.n);
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
      u32 words[width / 32][16];
      load(words, c + part * width);
      const RowsToQuantize<Config, Rows> rows = {
          args, d, columns.first + c + part * width, staged, lane, kept, 0, row};
      store_part<Config, width>(rows, p, row, words, factor);
    }
    sync_warp();
    kept.template quantize<32>(
        args, d.batch, [&](u32 r) { return row + r; }, lane);
    sync_warp();
  } else {
    u32 words[width / 32][16];
    load(words, c);
    const auto fits = [](i64) { return true; };
    const auto column_fits = [](u32) { return true; };
    const RowsOfZ<Config, decltype(fits), decltype(column_fits)> rows = {
        args, d, columns.first + c, staged, lane, false, fits, column_fits};
    store_part<Config, width>(rows, p, row, words, factor);
  }
}

/// By four warps, each with the 32 rows of a quarter of tensor memory.
template <class Config>
QT_FN void store_tiles(const qt_args& args, Tiles<Config> tiles, u32 base, u32 tensor, u32 rank) {
  using S = Shared100<Config>;
  constexpr u32 blocks = Config::blocks;
  constexpr int width = stored_width<Config>();
  const u32 quarter = warp_index() % 4u;
  const float factor = mul(args.alpha, Config::descale);
  Ring sums = {0, 0};
  for (u32 item = block_index() / blocks; tiles.find(item / Config::splits);
       item += block_count() / blocks) {
    const Product p = tiles.product();
    const Parts<Config> parts = {chunks_of(p.k)};
    const u32 part = item % Config::splits;
    if (parts.is_idle(part)) continue;
    const Kept<Config> kept(args, item / Config::splits * blocks + rank, warp_index() - kStoring,
                            lane_index());
    const bool finishes = part + 1 == Config::splits;
    const TileColumns<Config> columns(tiles.x, args.n);
    const Destination d = {p.d, p.end, args.n};
    const i64 row0 = p.first + i64(tiles.y * blocks + rank) * kRows + 32 * quarter;
    const u32 at = tensor + (quarter * 32u << 16) + sums.stage * u32(Config::tile_n);
    barrier_wait(base + S::done_at + 8u * sums.stage, sums.parity);
    tensor_fence_after();
    if constexpr (Config::splits > 1)
      for (u32 other = 0; finishes && other < part; ++other)
        if (!parts.is_idle(other)) kept.take(other);
    for (u32 half = 0; half < 2u; ++half) {
      const u32 rows_at = at + (half * 16u << 16);
      const auto quad_of = [&](int c) { return (half * u32(Config::tile_n) + u32(c)) / 8u; };
      if constexpr (Config::splits > 1)
        if (!finishes) {
          for (int c = 0; c < Config::tile_n; c += width)
            keep_part<Config, width>(kept, part, quad_of(c), rows_at + u32(c));
          continue;
        }
      const auto load = [&](u32(&words)[width / 32][16], int c) {
        load_sums<width>(words, rows_at + u32(c));
        if constexpr (Config::splits > 1)
          add_parts<Config, width>(kept, parts, part, quad_of(c), words);
      };
      for (int c = 0; c < Config::tile_n; c += finished_width<Config>())
        finish_columns<Config>(args, p, d, columns, row0 + 16 * half, c, base, factor, load);
    }
    tensor_fence_before();
    sync_warp();
    if (lane_index() == 0) {
      if constexpr (blocks == 1) {
        barrier_arrive(base + S::free_at + 8u * sums.stage);
      } else {
        barrier_arrive_remote(base + S::free_at + 8u * sums.stage, 0);
      }
    }
    if constexpr (Config::splits > 1)
      if (!finishes) kept.raise(part);
    sums.advance(Config::sums);
  }
}

}  // namespace gemm_sm100

template <class Config>
QT_FN void gemm_sm100_tiles(const Config&, const qt_args& args, const qt_tensor_map& a_map,
                            const qt_tensor_map& b_map, const qt_tensor_map& a_scale_map,
                            const qt_tensor_map& b_scale_map) {
  using namespace gemm_sm100;
  using S = Shared100<Config>;
  using T = Tensor100<Config>;
  constexpr u32 blocks = Config::blocks;
  const u32 base = shared_base();
  const u32 rank = blocks > 1 ? cluster_rank() : 0u;
  const u32 warp = warp_index();
  if (warp == kBringing) allocate_tensor_memory<blocks>(base + S::tensor_at, T::columns);
  if (thread_index() == 0) {
    for (u32 i = 0; i < Config::stages; ++i) {
      barrier_init(base + S::full_at + 8u * i, 1u);
      barrier_init(base + S::empty_at + 8u * i, 1u);
    }
    for (u32 i = 0; i < Config::sums; ++i) {
      barrier_init(base + S::done_at + 8u * i, 1u);
      barrier_init(base + S::free_at + 8u * i, 4u * blocks);
    }
    barrier_init_fence();
  }
  sync_warp();
  tensor_fence_before();
  if constexpr (blocks > 1) {
    sync_cluster();
  } else {
    sync_block();
  }
  tensor_fence_after();
  const u32 tensor = load_shared_u32(base + S::tensor_at);
  const Tiles<Config> tiles(args, args.m, args.n, args.k, Config::tile_n);
  if (warp == kBringing) {
    if (lane_index() == 0)
      bring_tiles<Config>(args, {a_map, b_map, a_scale_map, b_scale_map}, tiles, base, rank);
  } else if (warp == kMultiplying) {
    if (lane_index() == 0 && rank == 0) multiply_tiles<Config>(args, tiles, base, tensor);
  } else {
    store_tiles<Config>(args, tiles, base, tensor, rank);
  }
  // A pair's blocks read each other's memory, and arrive there, to the end.
  sync_warp();
  tensor_fence_before();
  if constexpr (blocks > 1) {
    sync_cluster();
  } else {
    sync_block();
  }
  tensor_fence_after();
  if (warp == kBringing) free_tensor_memory<blocks>(tensor, T::columns);
}

}  // namespace qt::cuda

#endif
