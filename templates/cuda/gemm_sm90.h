// D = epilogue(alpha * A * B^T + beta * C + bias) on Hopper, from two expanded operands: E5M2 with
// sums promoted to binary32 every `promote` * 128 of K, int8 with exact integer sums (expand.h), or
// bf16 with binary32 sums (bf16.h).
//
// Persistent blocks of three warp groups: one thread of the first brings tiles of 128 bytes of K
// through a ring of `stages` buffers; the other two multiply half the tile's rows each, apply
// references and store. A barrier `full` a stage counts bytes, `empty` counts the warps that have
// finished with it.
//
// Hopper's FP8 sums keep 13 fraction bits and cut toward zero, so a long common-sign sum shrinks by
// percents; promoted every 256 or 512 of K, by at most about 2.5e-6. `pieces` 2 multiplies the two
// halves of the tile's columns one after the other through one set of partial sums, so that 256
// columns fit the registers.
//
// Where tiles are fewer than units, `splits` blocks share a tile's K (split_k.h).
//
// Rows that do not fit their window (reference 255) are left alone, those of A as rows of D and
// those of B as columns: the exact kernel that follows (stand_in.h) computes them. bf16 has no
// window, and may quantise D here, each warp as many columns of 16 rows at a time as rotation
// segments want (quantized_rows.h).
#ifndef QT_CUDA_GEMM_SM90_H
#define QT_CUDA_GEMM_SM90_H

#include "cuda/epilogue_rows.h"
#include "cuda/expand.h"
#include "cuda/primitives_wgmma.h"
#include "cuda/quantized_fragments.h"
#include "cuda/split_k.h"
#include "cuda/tile_walk.h"
#include "cuda/tiles_in_flight.h"

namespace qt::cuda {

/// 32 bytes of K of both operands.
template <Expanded type, class Sum, int n>
QT_FN void multiply(Sum (&d)[n], u64 a, u64 b, u32 keep) {
  if constexpr (type == Expanded::e5m2) wgmma_e5m2(d, a, b, keep);
  if constexpr (type == Expanded::int8) wgmma_s8(d, a, b, keep);
  if constexpr (type == Expanded::bf16) wgmma_bf16(d, a, b, keep);
}

/// 16 rows of the columns of z that a warp quantises at once.
template <class Config>
struct Waiting90 {
  using Rows = QuantizedRows<Config, 16, u32(Config::quantized_width)>;
};
template <class Config>
QT_FN constexpr u32 waiting_bytes_90() {
  if constexpr (Config::quantizes) return Waiting90<Config>::Rows::bytes;
  return 0;
}

/// Where things lie in shared memory.
template <class Config>
struct Shared90 {
  static constexpr u32 a_bytes = Config::tile_m * 128;
  static constexpr u32 b_bytes = Config::tile_n * 128;
  static constexpr u32 b_at = Config::stages * a_bytes;
  static constexpr u32 staging_at = b_at + Config::stages * b_bytes;
  static constexpr bool staged = Config::output != DType::f32 || Config::epilogue != Epilogue::none;
  static constexpr u32 staging_bytes = staged ? 8 * 2048 : 0;
  static constexpr u32 waiting_at = staging_at + staging_bytes;
  // Factor and bias, each group its own.
  static constexpr u32 columns_at = waiting_at + 8 * waiting_bytes_90<Config>();
  static constexpr u32 columns_bytes = 2 * 2 * Config::tile_n * 4;
  static constexpr u32 full_at = columns_at + columns_bytes;
  static constexpr u32 empty_at = full_at + Config::stages * 8;
  static constexpr u32 bytes = empty_at + Config::stages * 8;
};

/// The tiles of one call; a cluster's blocks have tiles below each other.
template <class Config>
using Tiles = TileWalk<Config, u32(Config::tile_m) * Config::cluster>;

/// Elements of K in 128 bytes.
template <class Config>
QT_FN constexpr u32 chunk_of() {
  return Config::element == Expanded::bf16 ? 64u : 128u;
}

/// How K is shared out: sums are promoted at the same places as without.
template <class Config>
QT_FN auto k_parts(const Product& p) {
  return KParts<Config::splits, (Config::promote > 0 ? Config::promote : 1u)>{
      u32(ceil_div(p.k, chunk_of<Config>()))};
}

/// Marks a column of an unfit row of B among the columns' factors: no product's NaN looks like it.
constexpr u32 kUnfitFactor = 0xffffffffu;

template <class Config>
QT_FN void bring_tiles(const qt_args& args, const qt_tensor_map& a_map, const qt_tensor_map& b_map,
                       Tiles<Config> tiles, u32 base, u32 rank) {
  using S = Shared90<Config>;
  prefetch_map(&a_map);
  prefetch_map(&b_map);
  Ring ring = {0, 1};  // every stage starts empty
  for (u32 item = block_index() / Config::cluster; tiles.find(item / Config::splits);
       item += block_count() / Config::cluster) {
    const Product& p = tiles.product();
    const i32 row = i32(p.first) + i32((tiles.y * Config::cluster + rank) * Config::tile_m);
    const TileColumns<Config> columns(tiles.x, Config::n > 0 ? Config::n : args.n);
    const auto parts = k_parts<Config>(p);
    const u32 first = u32(p.k_first / chunk_of<Config>());
    const u32 end = first + parts.end(item % Config::splits);
    for (u32 kb = first + parts.begin(item % Config::splits); kb < end; ++kb) {
      const u32 full = base + S::full_at + 8u * ring.stage;
      const u32 a = base + ring.stage * S::a_bytes;
      const u32 b = base + S::b_at + ring.stage * S::b_bytes;
      barrier_wait(base + S::empty_at + 8u * ring.stage, ring.parity);
      barrier_arrive_expect(full, S::a_bytes + S::b_bytes);
      copy_tile(a, &a_map, full, i32(kb * 128u), row, i32(p.a));
      constexpr u32 half = Config::tile_n / 2;
      if constexpr (Config::cluster == 2) {
        // Each block brings half of B's tile for both.
        copy_tile_multicast(b + rank * half * 128u, &b_map, full, i32(kb * 128u),
                            i32(columns.of(rank * half)), i32(p.b), 3u);
      } else if constexpr (TileColumns<Config>::halves) {
        copy_tile(b, &b_map, full, i32(kb * 128u), i32(columns.of(0)), i32(p.b));
        copy_tile(b + half * 128u, &b_map, full, i32(kb * 128u), i32(columns.of(half)), i32(p.b));
      } else {
        copy_tile(b, &b_map, full, i32(kb * 128u), i32(columns.first), i32(p.b));
      }
      ring.advance(Config::stages);
    }
  }
  if constexpr (Config::cluster > 1) {
    // The other block may still read what it got from here, and arrive here: stay until it has.
    for (u32 i = 0; i < Config::stages; ++i) {
      barrier_wait(base + S::empty_at + 8u * ring.stage, ring.parity);
      ring.advance(Config::stages);
    }
  }
}

/// This warp has read a stage.
template <class Config>
QT_FN void release(u32 empty, u32 lane) {
  if constexpr (Config::cluster == 1) {
    if (lane == 0) barrier_arrive(empty);
  } else {
    if (lane < Config::cluster) barrier_arrive_remote(empty, lane);
  }
}

/// One tile's sums over all of K, for this group's rows. sums[i][..]: rows 64 i on.
template <class Config, class Sum, int high, int width>
QT_FN void multiply_tile(Sum (&sums)[high][width], u32 k_blocks, u32 base, u32 group, u32 lane,
                         Ring& ring) {
  using S = Shared90<Config>;
  const auto full = [&](const Ring& r) { return base + S::full_at + 8u * r.stage; };
  const auto empty = [&](u32 stage) { return base + S::empty_at + 8u * stage; };
  const auto a_tile = [&](u32 stage) {
    return wgmma_tile(base + stage * S::a_bytes + group * (S::a_bytes / 2));
  };
  const auto b_tile = [&](u32 stage) { return wgmma_tile(base + S::b_at + stage * S::b_bytes); };
  QT_UNROLL
  for (int i = 0; i < high; ++i) {
    QT_UNROLL
    for (int j = 0; j < width; ++j) sums[i][j] = Sum(0);
  }

  if constexpr (Config::promote == 0) {
    u32 before = 0;
    for (u32 kb = 0; kb < k_blocks; ++kb) {
      barrier_wait(full(ring), ring.parity);
      QT_UNROLL
      for (int i = 0; i < high; ++i) pin(sums[i]);
      wgmma_fence();
      const u64 a = a_tile(ring.stage), b = b_tile(ring.stage);
      QT_UNROLL
      for (u32 k = 0; k < 4u; ++k) {
        QT_UNROLL
        for (u32 i = 0; i < u32(high); ++i)
          multiply<Config::element>(sums[i], a + i * 512u + k * 2u, b + k * 2u, 1u);
      }
      wgmma_commit();
      if (kb > 0) {
        wgmma_wait<1>();
        release<Config>(empty(before), lane);
      }
      before = ring.stage;
      ring.advance(Config::stages);
    }
    wgmma_wait<0>();
    QT_UNROLL
    for (int i = 0; i < high; ++i) pin(sums[i]);
    if (k_blocks > 0) release<Config>(empty(before), lane);
  } else if constexpr (Config::pieces == 1) {
    Sum part[high][width];
    for (u32 kb = 0; kb < k_blocks; kb += Config::promote) {
      const u32 count = min_u32(k_blocks - kb, Config::promote);
      u32 before = 0;
      for (u32 p = 0; p < count; ++p) {
        barrier_wait(full(ring), ring.parity);
        QT_UNROLL
        for (int i = 0; i < high; ++i) pin(part[i]);
        wgmma_fence();
        const u64 a = a_tile(ring.stage), b = b_tile(ring.stage);
        QT_UNROLL
        for (u32 k = 0; k < 4u; ++k) {
          QT_UNROLL
          for (u32 i = 0; i < u32(high); ++i)
            multiply<Config::element>(part[i], a + i * 512u + k * 2u, b + k * 2u, p | k);
        }
        wgmma_commit();
        if (p > 0) {
          wgmma_wait<1>();
          release<Config>(empty(before), lane);
        }
        before = ring.stage;
        ring.advance(Config::stages);
      }
      wgmma_wait<0>();
      QT_UNROLL
      for (int i = 0; i < high; ++i) pin(part[i]);
      release<Config>(empty(before), lane);
      QT_UNROLL
      for (int i = 0; i < high; ++i) {
        QT_UNROLL
        for (int j = 0; j < width; ++j) sums[i][j] = sums[i][j] + part[i][j];
      }
    }
  } else {
    static_assert(Config::promote == 0 || Config::pieces == 1 || Config::stages >= Config::promote,
                  "all stages between two promotions are held at once");
    Sum part[width / 2];
    for (u32 kb = 0; kb < k_blocks; kb += Config::promote) {
      const u32 count = min_u32(k_blocks - kb, Config::promote);
      const Ring start = ring;
      QT_UNROLL
      for (u32 piece = 0; piece < 2u; ++piece) {
        ring = start;
        for (u32 p = 0; p < count; ++p) {
          if (piece == 0) barrier_wait(full(ring), ring.parity);
          pin(part);
          wgmma_fence();
          const u64 a = a_tile(ring.stage);
          const u64 b = b_tile(ring.stage) + piece * (Config::tile_n / 2u * 8u);
          QT_UNROLL
          for (u32 k = 0; k < 4u; ++k)
            multiply<Config::element>(part, a + k * 2u, b + k * 2u, p | k);
          wgmma_commit();
          ring.advance(Config::stages);
        }
        wgmma_wait<0>();
        pin(part);
        if (piece == 1) {
          Ring done = start;
          for (u32 p = 0; p < count; ++p) {
            release<Config>(empty(done.stage), lane);
            done.advance(Config::stages);
          }
        }
        QT_UNROLL
        for (int j = 0; j < width / 2; ++j)
          sums[0][int(piece) * (width / 2) + j] = sums[0][int(piece) * (width / 2) + j] + part[j];
      }
    }
  }
}

template <class Config>
QT_FN void multiply_and_store(const qt_args& args, Tiles<Config> tiles, u32 base, u32 rank) {
  using S = Shared90<Config>;
  using Sum = typename SumOf<Config::element>::Type;
  constexpr int high = Config::tile_m / 128;
  constexpr int width = Config::tile_n / 2;
  const u32 group = thread_index() / 128u - 1u;
  const u32 thread = thread_index() % 128u, lane = thread % 32u, warp = thread / 32u;
  const u32 quad_row = lane / 4u, quad_column = lane % 4u * 2u;
  const i64 n = Config::n > 0 ? Config::n : args.n;
  const u32 factors = base + S::columns_at + group * (S::columns_bytes / 2);
  const u32 biases = factors + Config::tile_n * 4;
  const u32 staged = base + S::staging_at + (group * 4u + warp) * 2048u;
  const float factor = mul(args.alpha, Config::descale);
  Ring ring = {0, 0};
  for (u32 item = block_index() / Config::cluster; tiles.find(item / Config::splits);
       item += block_count() / Config::cluster) {
    const Product p = tiles.product();
    const auto parts = k_parts<Config>(p);
    const u32 part = item % Config::splits;
    if (parts.is_idle(part)) continue;
    const i64 row0 = p.first + i64(tiles.y * Config::cluster + rank) * Config::tile_m +
                     group * (Config::tile_m / 2);
    const i64 m = p.end;
    const TileColumns<Config> columns(tiles.x, n);
    const Destination d = {p.d, m, n};

    // References travel while the tile is multiplied.
    const u8* a_references = references_of<Config::grouping>(args.a, p, p.a);
    const u8* b_references = references_of<Config::grouping>(args.b, p, p.b);
    u32 row_reference[high][2];
    QT_UNROLL
    for (int i = 0; i < high; ++i) {
      QT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const i64 row = row0 + 64 * i + 16 * warp + quad_row + 8 * half;
        row_reference[i][half] =
            row < m ? reference_at<Config::element>(a_references, row) : kZeroRow;
      }
    }
    constexpr int column_steps = (Config::tile_n + 127) / 128;
    u32 column_reference[column_steps];
    float column_bias[column_steps];
    QT_UNROLL
    for (int i = 0; i < column_steps; ++i) {
      const u32 in_tile = thread + 128u * u32(i);
      const i64 column = columns.of(in_tile);
      const bool inside = in_tile < u32(Config::tile_n) && column < columns.end(in_tile);
      column_reference[i] = inside ? reference_at<Config::element>(b_references, column) : kZeroRow;
      column_bias[i] = 0.0f;
      if constexpr (Config::bias)
        if (inside)
          column_bias[i] =
              element<Config::side>(args.bias, bias_place<Config::grouping>(p, n) + column);
    }

    Sum sums[high][width];
    multiply_tile<Config>(sums, parts.count(part), base, group, lane, ring);
    if constexpr (Config::splits > 1) {
      const PartSums<Config::splits, 8, u32(high * width)> kept(
          args, item / Config::splits * Config::cluster + rank, group * 4u + warp, lane);
      if (part + 1 < Config::splits) {
        leave_sums(kept, part, sums);
        continue;
      }
      join_sums(kept, parts, part, sums);
    }

    bool unfit = false;
    QT_UNROLL
    for (int i = 0; i < high; ++i)
      unfit = unfit || row_reference[i][0] == kUnfit || row_reference[i][1] == kUnfit;
    QT_UNROLL
    for (int i = 0; i < column_steps; ++i) unfit = unfit || column_reference[i] == kUnfit;
    // The first barrier also ends the last tile's reading of the column slices.
    unfit = sync_named_any(1u + group, 128u, unfit);
    QT_UNROLL
    for (int i = 0; i < column_steps; ++i) {
      const u32 at = (thread + 128u * i) * 4u;
      if (thread + 128u * i < u32(Config::tile_n)) {
        const float by = mul(factor, reference_value<Config::element>(column_reference[i]));
        store_shared_u32(factors + at, column_reference[i] == kUnfit ? kUnfitFactor : bits_of(by));
        if constexpr (Config::bias) store_shared_f32(biases + at, column_bias[i]);
      }
    }
    sync_named(1u + group, 128u);

    // Values 4j..4j+3 of 64 rows' sums, as z.
    const auto results = [&](int i, int j, float(&v)[4]) {
      const u32 at = u32(8 * j) * 4u + quad_column * 4u;
      const Words2 by = load_shared_2(factors + at);
      QT_UNROLL
      for (int e = 0; e < 4; ++e)
        v[e] = mul(mul(float(sums[i][4 * j + e]),
                       reference_value<Config::element>(row_reference[i][e / 2])),
                   float_of(by.word[e % 2]));
      Words2 bias = {};
      if constexpr (Config::bias) bias = load_shared_2(biases + at);
      // In front of an activation, C joins where rows are read in order.
      if constexpr (Config::accumulate && Config::epilogue == Epilogue::none) {
        QT_UNROLL
        for (int e = 0; e < 4; ++e) {
          const i64 r = row0 + 64 * i + 16 * warp + quad_row + e / 2 * 8;
          const i64 c = columns.first + 8 * j + quad_column + e % 2;
          if (r < m && c < n)
            v[e] = v[e] + addend<Config>(args, d, r, c, float_of(bias.word[e % 2]));
        }
      } else if constexpr (Config::bias) {
        QT_UNROLL
        for (int e = 0; e < 4; ++e) v[e] = v[e] + float_of(bias.word[e % 2]);
      }
    };
    if constexpr (Config::quantizes) {
      static_assert(!has_references(Config::element), "rows out of a window are not quantised");
      using Rows = typename Waiting90<Config>::Rows;
      constexpr int at_once = Config::quantized_width;
      const u32 place = base + S::waiting_at + (group * 4u + warp) * Rows::bytes;
      QT_UNROLL
      for (int i = 0; i < high; ++i) {
        QT_UNROLL
        for (int c = 0; c < Config::tile_n / at_once; ++c) {
          const i64 row = row0 + 64 * i + 16 * warp, first = columns.first + c * at_once;
          const Rows kept(place, first, n);
          const RowsToQuantize<Config, Rows> rows = {args, d, first, staged, lane, kept, 0, row};
          keep_rows<Config, at_once / 8>(
              rows, [&](int j, float(&v)[4]) { results(i, c * (at_once / 8) + j, v); });
          sync_warp();
          kept.template quantize<32>(
              args, d.batch, [&](u32 r) { return row + r; }, lane);
          sync_warp();
        }
      }
    } else {
      const auto fits = [&](i64 r) {
        return reference_at<Config::element>(a_references, r) != kUnfit;
      };
      const auto column_fits = [&](u32 c) {
        return load_shared_u32(factors + c * 4u) != kUnfitFactor;
      };
      const RowsOfZ<Config, decltype(fits), decltype(column_fits)> rows = {
          args, d, columns.first, staged, lane, unfit, fits, column_fits};
      QT_UNROLL
      for (int i = 0; i < high; ++i)
        finish_rows<Config, width / 4>(rows, row0 + 64 * i + 16 * warp,
                                       [&](int j, float(&v)[4]) { results(i, j, v); });
    }
  }
}

template <class Config>
QT_FN void gemm_sm90(const Config&, const qt_args& args, const qt_tensor_map& a_map,
                     const qt_tensor_map& b_map) {
  using S = Shared90<Config>;
  const u32 base = shared_base();
  const u32 rank = Config::cluster > 1 ? cluster_rank() : 0u;
  if (thread_index() == 0) {
    for (u32 i = 0; i < Config::stages; ++i) {
      barrier_init(base + S::full_at + 8u * i, 1u);
      barrier_init(base + S::empty_at + 8u * i, 8u * Config::cluster);
    }
    barrier_init_fence();
  }
  if constexpr (Config::cluster > 1) {
    sync_cluster();
  } else {
    sync_block();
  }
  const Tiles<Config> tiles(args, Config::m > 0 ? Config::m : args.m,
                            Config::n > 0 ? Config::n : args.n, Config::k > 0 ? Config::k : args.k,
                            Config::tile_n);
  static_assert(registers_fit(1, 24, 2, 240), "registers are handed over within the block");
  if (warp_index() < 4u) {
    give_registers<24>();
    if (thread_index() == 0) bring_tiles<Config>(args, a_map, b_map, tiles, base, rank);
  } else {
    take_registers<240>();
    multiply_and_store<Config>(args, tiles, base, rank);
  }
}

}  // namespace qt::cuda

#endif
