// Exact MXFP4 GEMM for every NVIDIA GPU from sm_80 on: codes decoded in registers to bf16 that
// already holds the block's scale, mma.sync with binary32 sums. A is MXFP4, or bf16 as it is
// (weight-only).
//
// E2M1 times a power of two has one mantissa bit, so bf16 holds it exactly; decoding to an eighth
// of the value keeps every scale byte from 0 to 254 inside bf16's range, and the epilogue gives the
// factor back. Within a block of 32, each lane takes 8 neighbouring elements instead of the pairs
// that the instruction prescribes: a permutation of K, the same for both operands.
#ifndef QT_CUDA_GEMM_MMA_H
#define QT_CUDA_GEMM_MMA_H

#include "args.h"
#include "cuda/bf16.h"
#include "cuda/epilogue.h"
#include "cuda/tile_walk.h"
#include "mxfp4/types.h"

namespace qt::cuda {

enum class GemmType { none, bf16, f16, f32, mxfp4 };  // the order of the generator's DType

namespace gemm_mma {

constexpr int kChunk = 128;           // elements of K in a stage
constexpr int kBlocks = kChunk / 32;  // scale blocks in a stage
constexpr u32 kPackedRow = 64 + 16;   // bytes of a row in a stage: codes, then scales as bf16 pairs
constexpr u32 kWideRow =
    2 * kChunk + 16;  // the same of an operand in bf16; padded against bank conflicts
constexpr int kThreads = 256;

template <class Config>
QT_FN constexpr u32 a_row() {
  return Config::a_type == GemmType::bf16 ? kWideRow : kPackedRow;
}
template <class Config>
QT_FN constexpr u32 stage_bytes() {
  return Config::tile_m * a_row<Config>() + Config::tile_n * kPackedRow;
}

/// One packed operand of this block's tile: where its rows come from and go to.
struct Packed {
  const u8* codes;
  const u8* scales;
  i64 row_bytes, scale_ld;
  i64 rows;  // from the tile's first row to the operand's end
  i64 k;
  bool aligned;
};

/// `k` elements from k_first on of rows first..rows of matrix `entry`.
QT_FN Packed packed(const qt_tensor& t, i64 first, i64 rows, i64 k_first, i64 k, i64 entry) {
  Packed p;
  const u8* codes =
      static_cast<const u8*>(t.data) + (entry * t.batch_stride + first * t.ld + k_first) / 2;
  p.codes = codes;
  p.scales = static_cast<const u8*>(t.scales) + entry * t.scale_batch_stride + first * t.scale_ld +
             k_first / 32;
  p.row_bytes = t.ld / 2;
  p.scale_ld = t.scale_ld;
  p.rows = rows - first;
  p.k = k;
  p.aligned = ((u64(codes) | u64(p.row_bytes)) & 15u) == 0u;
  return p;
}

/// A tile's rows are neighbours.
struct RowsInOrder {
  QT_FN i64 operator()(u32 row) const { return row; }
};

/// Rows `at`(0), `at`(1), ... of an operand.
template <int rows, class At>
QT_FN void fetch_codes(const Packed& from, const At& at_row, i64 k0, u32 to) {
  for (int piece = int(thread_index()); piece < rows * 4; piece += kThreads) {
    const int row = piece / 4;
    const i64 k = k0 + 32 * (piece % 4);
    const i64 source_row = at_row(u32(row));
    const bool inside = source_row < from.rows && k < from.k;
    const u32 at = to + u32(row) * kPackedRow + u32(piece % 4) * 16u;
    const u8* source = from.codes + (inside ? source_row * from.row_bytes + k / 2 : 0);
    if (from.aligned) {
      copy_async_16(at, source, inside ? 16u : 0u);
    } else {
      for (u32 i = 0; i < 16; ++i) store_shared_u8(at + i, inside ? source[i] : 0u);
    }
  }
}

/// Scales of a stage, read one stage ahead into registers: a thread serves rows thread, thread +
/// 256, ...
template <int rows>
struct Scales {
  static constexpr int kRows = (rows + kThreads - 1) / kThreads;
  u32 pair[kRows][kBlocks];

  template <class At>
  QT_FN void read(const Packed& from, const At& at_row, i64 k0) {
    QT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int row = int(thread_index()) + r * kThreads;
      const i64 source_row = at_row(u32(row));
      QT_UNROLL
      for (int block = 0; block < kBlocks; ++block) {
        const i64 k = k0 + 32 * block;
        const bool inside = row < rows && source_row < from.rows && k < from.k;
        pair[r][block] = inside ? bf16_scale(from.scales[source_row * from.scale_ld + k / 32]) : 0u;
      }
    }
  }
  QT_FN void write(u32 to) const {
    QT_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int row = int(thread_index()) + r * kThreads;
      if (row < rows)
        store_shared_4(to + u32(row) * kPackedRow + 64u,
                       Words4{{pair[r][0], pair[r][1], pair[r][2], pair[r][3]}});
    }
  }
};

template <int rows>
QT_FN void fetch_wide(const qt_tensor& t, i64 first, i64 all_rows, i64 k0, i64 k_end, i64 batch,
                      u32 to) {
  const u16* base = static_cast<const u16*>(t.data) + batch * t.batch_stride + first * t.ld;
  const bool aligned = ((u64(base) | u64(t.ld * 2)) & 15u) == 0u;
  for (int piece = int(thread_index()); piece < rows * kChunk / 8; piece += kThreads) {
    const int row = piece / (kChunk / 8);
    const i64 k = k0 + 8 * (piece % (kChunk / 8));
    const i64 left = first + row < all_rows ? k_end - k : 0;
    const u32 count = left <= 0 ? 0u : left >= 8 ? 8u : u32(left);
    const u32 at = to + u32(row) * kWideRow + u32(piece % (kChunk / 8)) * 16u;
    const u16* source = base + (count ? row * t.ld + k : 0);
    if (aligned) {
      copy_async_16(at, source, 2u * count);
    } else {
      for (u32 i = 0; i < 8; ++i) store_shared_u16(at + 2 * i, i < count ? u32(source[i]) : 0u);
    }
  }
}

template <class Config>
using RowsOfB = PairedRows<Config, Config::tile_n / Config::warps_n>;

/// z at (row, column), inside it.
template <class Config>
QT_FN float z_of(const qt_args& args, const Product& p, i64 row, i64 column, float sum) {
  float z = mul(mul(args.alpha, Config::descale),
                mul(sum, Config::a_type == GemmType::bf16 ? 8.0f : 64.0f));
  if constexpr (Config::accumulate)
    if (args.beta != 0.0f)
      z += mul(args.beta, element<Config::side>(args.c.data, place_of(args.c, p.d, row, column)));
  if constexpr (Config::bias)
    z += element<Config::side>(args.bias, bias_place<Config::grouping>(p, args.n) + column);
  return z;
}

template <class Config>
QT_FN void store_pair(const qt_args& args, const Product& p, i64 row, i64 column, float x,
                      float y) {
  const Destination d = {p.d, p.end, args.n};
  if (column < args.n)
    finish_element<Config>(args, d, row, column, z_of<Config>(args, p, row, column, x));
  if (column + 1 < args.n)
    finish_element<Config>(args, d, row, column + 1, z_of<Config>(args, p, row, column + 1, y));
}

/// A SwiGLU's output, if it exists.
template <class Config>
QT_FN void store_output(const qt_args& args, const Product& p, i64 row, i64 output, float gate,
                        float value) {
  if (output >= args.n / 2) return;
  const i64 gate_at = gate_column<Config::epilogue>(output);
  const i64 value_at = value_column<Config::epilogue>(output, args.n);
  finish_pair<Config>(args, {p.d, p.end, args.n}, row, output,
                      z_of<Config>(args, p, row, gate_at, gate),
                      z_of<Config>(args, p, row, value_at, value));
}

}  // namespace gemm_mma

/// One block computes one tile_m x tile_n tile; grid: as TileWalk::find_of_block wants it.
template <class Config>
QT_FN void gemm_mma_tile(const Config&, const qt_args& args) {
  using namespace gemm_mma;
  constexpr bool wide_a = Config::a_type == GemmType::bf16;
  constexpr int warp_m = Config::tile_m / Config::warps_m,
                warp_n = Config::tile_n / Config::warps_n;
  constexpr int tiles_m = warp_m / 16, tiles_n = warp_n / 8;
  static_assert(Config::warps_m * Config::warps_n * 32 == kThreads, "eight warps share a tile");
  static_assert(!is_gated(Config::epilogue) || tiles_n % 2 == 0, "a warp has gates and values");
  static_assert(tiles_m * 16 == warp_m && tiles_n * 8 == warp_n,
                "a warp's part is made of 16x8 tiles");

  TileWalk<Config, u32(Config::tile_m)> tiles(args, args.m, args.n, args.k, Config::tile_n);
  if (!tiles.find_of_block()) return;
  const Product p = tiles.product();
  // In 32 bits, which saves registers.
  const i64 row0 = p.first + i32(tiles.y * Config::tile_m);
  const i64 column0 = i32(tiles.x * Config::tile_n);
  const i64 k_end = (p.k + 31) / 32 * 32;

  const Packed a = packed(args.a, row0, p.end, p.k_first, k_end, p.a);
  using Columns = RowsOfB<Config>;
  const Columns columns(column0, args.n);
  const Packed b = packed(args.b, 0, args.n, p.k_first, k_end, p.b);
  const u32 base = shared_base();
  const auto stage_a = [&](i64 s) {
    return base + u32(s % Config::stages) * stage_bytes<Config>();
  };
  const auto stage_b = [&](i64 s) { return stage_a(s) + u32(Config::tile_m) * a_row<Config>(); };

  Scales<Config::tile_m> a_scales;
  Scales<Config::tile_n> b_scales;
  const i64 stages = (k_end + kChunk - 1) / kChunk;
  const auto fetch = [&](i64 s) {
    if (s < stages) {
      const i64 k0 = s * kChunk;
      if constexpr (wide_a)
        fetch_wide<Config::tile_m>(args.a, row0, p.end, k0, p.k, p.a, stage_a(s));
      else
        fetch_codes<Config::tile_m>(a, RowsInOrder{}, k0, stage_a(s));
      fetch_codes<Config::tile_n>(b, columns, k0, stage_b(s));
    }
    copy_async_commit();
  };
  const auto read_scales = [&](i64 s) {
    if constexpr (!wide_a) a_scales.read(a, RowsInOrder{}, s * kChunk);
    b_scales.read(b, columns, s * kChunk);
  };

  float sums[tiles_m][tiles_n][4] = {};
  QT_UNROLL
  for (int s = 0; s < Config::stages - 1; ++s) fetch(s);
  read_scales(0);

  const u32 warp = warp_index(), lane = lane_index();
  const u32 g = lane >> 2, q = lane & 3u;
  const u32 a_first = (warp / Config::warps_n) * warp_m + g;
  const u32 b_first = (warp % Config::warps_n) * warp_n + g;

  for (i64 s = 0; s < stages; ++s) {
    copy_async_wait<Config::stages - 2>();
    if constexpr (!wide_a) a_scales.write(stage_a(s));
    b_scales.write(stage_b(s));
    sync_block();
    fetch(s + Config::stages - 1);
    if (s + 1 < stages) read_scales(s + 1);

    QT_UNROLL
    for (int block = 0; block < kBlocks; ++block) {
      u32 bs[tiles_n][4];
      QT_UNROLL
      for (int j = 0; j < tiles_n; ++j) {
        const u32 row = stage_b(s) + (b_first + 8u * u32(j)) * kPackedRow;
        decode_bf16(load_shared_u32(row + u32(block) * 16u + q * 4u),
                    load_shared_u32(row + 64u + u32(block) * 4u), bs[j]);
      }
      QT_UNROLL
      for (int i = 0; i < tiles_m; ++i) {
        u32 top[4], bottom[4];
        if constexpr (wide_a) {
          const u32 row =
              stage_a(s) + (a_first + 16u * u32(i)) * kWideRow + u32(block) * 64u + q * 16u;
          const Words4 upper_row = load_shared_4(row),
                       lower_row = load_shared_4(row + 8u * kWideRow);
          QT_UNROLL
          for (int w = 0; w < 4; ++w) top[w] = upper_row.word[w], bottom[w] = lower_row.word[w];
        } else {
          const u32 row = stage_a(s) + (a_first + 16u * u32(i)) * kPackedRow;
          const u32 below = row + 8u * kPackedRow;
          decode_bf16(load_shared_u32(row + u32(block) * 16u + q * 4u),
                      load_shared_u32(row + 64u + u32(block) * 4u), top);
          decode_bf16(load_shared_u32(below + u32(block) * 16u + q * 4u),
                      load_shared_u32(below + 64u + u32(block) * 4u), bottom);
        }
        QT_UNROLL
        for (int step = 0; step < 2; ++step) {
          const Words4 as{
              {top[2 * step], bottom[2 * step], top[2 * step + 1], bottom[2 * step + 1]}};
          QT_UNROLL
          for (int j = 0; j < tiles_n; ++j)
            mma_bf16(sums[i][j], as, bs[j][2 * step], bs[j][2 * step + 1]);
        }
      }
    }
  }

  QT_UNROLL
  for (int i = 0; i < tiles_m; ++i) {
    QT_UNROLL
    for (int j = 0; j < tiles_n; ++j) {
      const u32 in_tile = (warp % Config::warps_n) * warp_n + 8u * u32(j) + 2u * q;
      QT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const i64 row = row0 + a_first + 16u * u32(i) + 8 * half;
        if (row >= p.end) continue;
        if constexpr (!Columns::paired) {
          store_pair<Config>(args, p, row, column0 + in_tile, sums[i][j][2 * half],
                             sums[i][j][2 * half + 1]);
        } else if (j < tiles_n / 2) {
          QT_UNROLL
          for (int e = 0; e < 2; ++e)
            store_output<Config>(args, p, row, columns.output(in_tile + u32(e)),
                                 sums[i][j][2 * half + e], sums[i][j + tiles_n / 2][2 * half + e]);
        }
      }
    }
  }
}

}  // namespace qt::cuda

#endif
