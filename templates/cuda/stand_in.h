// The exact stand-in behind a GEMM over expanded operands: computes the rows of D that belong to
// unfit rows of A (reference 255 in expand.h), and the columns that belong to unfit rows of B, from
// the packed codes and scales which those rows hold instead of expanded bytes. Where all rows fit,
// it reads the references and returns.
//
// A block looks at a slab of one operand's references, gathers its unfit rows, and multiplies 64 of
// them at a time with 128 rows of the other operand, packed or expanded, by bf16 mma.sync as
// gemm_mma.h does: every element is a code times a power of two, an eighth of its value, so that
// bf16 holds all of them. Elements keep the order in which expanded rows hold every 128 of K.
#ifndef QT_CUDA_STAND_IN_H
#define QT_CUDA_STAND_IN_H

#include "cuda/bf16.h"
#include "cuda/epilogue.h"
#include "cuda/expand.h"
#include "cuda/tile_walk.h"

namespace qt::cuda {

/// Unfit rows computed exactly since the code was loaded, for qturn_stats.
QT_COUNTER(quarterturn_stand_ins);

namespace stand_in {

constexpr u32 kThreads = 256;
constexpr u32 kSlab = 2048;       // rows whose references a block looks at
constexpr u32 kGathered = 64;     // unfit rows multiplied together
constexpr u32 kAcross = 128;      // rows of the other operand
constexpr u32 kPitch = 256 + 16;  // bytes of 128 elements in bf16, padded against bank conflicts
constexpr u32 kStage = (kGathered + kAcross) * kPitch;
constexpr u32 kListAt = 2 * kStage;  // numbers of unfit rows in the slab, 2 bytes each
constexpr u32 kCountsAt = kListAt + kSlab * 2;
constexpr u32 kPieces = (kGathered + kAcross) * 8 / kThreads;  // of 16 bytes, a thread and stage

/// One operand of a product: its rows, from the first one and from its first element on.
struct Rows {
  const u8* data;
  const u8* references;
  i64 rows;
};

/// Lists the numbers from `first` on, of a slab, that is_unfit answers for, in ascending order;
/// returns how many there are. All threads.
template <class IsUnfit>
QT_FN u32 gather(i64 first, u32 base, const IsUnfit& is_unfit) {
  constexpr u32 rounds = kSlab / kThreads;
  const u32 thread = thread_index(), warp = warp_index(), lane = lane_index();
  u32 unfit[rounds];
  bool any = false;
  QT_UNROLL
  for (u32 i = 0; i < rounds; ++i) {
    const i64 row = first + thread + i * kThreads;
    unfit[i] = is_unfit(row);
    any = any || unfit[i] != 0;
  }
  if (!sync_named_any(1u, kThreads, any)) return 0;
  u32 votes[rounds];
  QT_UNROLL
  for (u32 i = 0; i < rounds; ++i) {
    votes[i] = warp_ballot(unfit[i] != 0);
    if (lane == 0) store_shared_u32(base + kCountsAt + (i * 8u + warp) * 4u, count_bits(votes[i]));
  }
  sync_block();
  u32 total = 0;
  QT_UNROLL
  for (u32 i = 0; i < rounds; ++i) {
    for (u32 w = 0; w < 8u; ++w) {
      if (w == warp && unfit[i] != 0) {
        const u32 at = total + count_bits(votes[i] & ((1u << lane) - 1u));
        store_shared_u16(base + kListAt + at * 2u, thread + i * kThreads);
      }
      total += load_shared_u32(base + kCountsAt + (i * 8u + w) * 4u);
    }
  }
  sync_block();
  return total;
}

/// 16 bytes of a stage on their way from global to shared memory.
struct Piece {
  const u8* row;  // null: there is no such row
  u32 reference;
  Words4 raw;
  u32 scale;
};

/// `length`: elements of the row in this product, padded.
QT_FN void fetch(Piece& piece, u32 part, i64 length, u32 chunk) {
  piece.raw = {};
  piece.scale = 0;
  if (piece.row == nullptr) return;
  if (piece.reference != kUnfit) {
    piece.raw = load_global(reinterpret_cast<const Words4*>(piece.row + chunk * 128u + part * 16u));
  } else if (part < 4u) {
    piece.raw = load_global(reinterpret_cast<const Words4*>(piece.row + chunk * 64u + part * 16u));
    piece.scale = piece.row[length / 2 + chunk * 4u + part];
  }
}

/// Two expanded bytes of `word`, from byte 2 * pair on, as bf16.
template <Expanded type>
QT_FN u32 widen_pair(u32 word, u32 pair) {
  if constexpr (type == Expanded::e5m2) {
    // E5M2 is the upper half of f16.
    const u32 halves = permute_bytes(word, 0u, pair == 0 ? 0x1404u : 0x3424u);
    return pack_bf16(f16_to_float(u16(halves)), f16_to_float(u16(halves >> 16)));
  } else {
    return pack_bf16(float(i32(word << (24u - 16u * pair)) >> 24),
                     float(i32(word << (16u - 16u * pair)) >> 24));
  }
}

/// A piece as bf16 elements, an eighth of their values, to its row of a stage.
template <Expanded type>
QT_FN void put(const Piece& piece, u32 part, u32 row_at) {
  constexpr u32 minus_zero = 0x80008000u;
  if (piece.reference != kUnfit) {
    constexpr u32 bias = type == Expanded::e5m2 ? 13u : 4u;
    const u32 scale = piece.row == nullptr ? 0u : ((piece.reference - bias - 3u) << 7) * 0x10001u;
    QT_UNROLL
    for (u32 half = 0; half < 2u; ++half) {
      Words4 out;
      QT_UNROLL
      for (u32 i = 0; i < 4u; ++i)
        out.word[i] = fma_bf16x2(widen_pair<type>(piece.raw.word[2u * half + i / 2u], i % 2u),
                                 scale, minus_zero);
      store_shared_4(row_at + part * 32u + half * 16u, out);
    }
  } else if (part < 4u) {
    QT_UNROLL
    for (u32 w = 0; w < 4u; ++w) {
      u32 pairs[4];
      decode_bf16(piece.raw.word[w], bf16_scale(piece.scale), pairs);
      store_shared_2(row_at + w * 64u + part * 8u, pairs[0], pairs[1]);
      store_shared_2(row_at + w * 64u + part * 8u + 32u, pairs[2], pairs[3]);
    }
  }
}

}  // namespace stand_in

/// Items of work of a product: slabs of A times tiles of B's rows, then slabs of B times tiles of
/// A's rows.
struct StandInItems {
  u32 across_b, across_a, of_a, all;
  QT_FN StandInItems(i64 rows, i64 columns) {
    across_b = u32(ceil_div(columns, stand_in::kAcross));
    across_a = u32(ceil_div(rows, stand_in::kAcross));
    of_a = u32(ceil_div(rows, stand_in::kSlab)) * across_b;
    all = of_a + u32(ceil_div(columns, stand_in::kSlab)) * across_a;
  }
};

/// Item `number` of product `p`. All threads of the block.
template <class Config>
QT_FN void stand_in_item(const qt_args& args, const Product& p, u32 number) {
  using namespace stand_in;
  constexpr int tiles_m = 2, tiles_n = 4;  // of 16 x 8, a warp; the warps are 2 x 4
  constexpr bool by_tokens = Config::grouping == Grouping::k_grouped;
  const i64 length = expanded_pitch(p.k, Config::k_unit);
  const i64 pitch = by_tokens ? grouped_length(args.k, args.groups, Config::k_unit) : length;
  const i64 rows_of_d = p.end - p.first;
  const Rows a = {
      static_cast<const u8*>(args.a.data) + p.a * args.a.batch_stride + p.first * pitch + p.k_first,
      references_of<Config::grouping>(args.a, p, p.a) + p.first, rows_of_d};
  const Rows b = {static_cast<const u8*>(args.b.data) + p.b * args.b.batch_stride + p.k_first,
                  references_of<Config::grouping>(args.b, p, p.b), args.n};
  const StandInItems items(rows_of_d, args.n);
  const bool is_a = number < items.of_a;  // the unfit rows are A's
  const u32 item = is_a ? number : number - items.of_a;
  const u32 across = is_a ? items.across_b : items.across_a;
  const Rows from = is_a ? a : b, other = is_a ? b : a;
  const i64 slab = i64(item / across) * kSlab;
  const i64 first = i64(item % across) * kAcross;
  const u32 base = shared_base();

  // Of a SwiGLU, B's rows come in pairs: a gate and its value, by the number of their output.
  constexpr bool gated = is_gated(Config::epilogue);
  const i64 outputs = args.n / 2;
  const bool pairs_gathered = gated && !is_a, pairs_across = gated && is_a;
  const auto gate = [&](i64 output) { return gate_column<Config::epilogue>(output); };
  const auto value = [&](i64 output) { return value_column<Config::epilogue>(output, args.n); };
  const u32 total = gather(slab, base, [&](i64 number) {
    if (pairs_gathered)
      return number < outputs &&
             (b.references[gate(number)] == kUnfit || b.references[value(number)] == kUnfit);
    return number < from.rows && from.references[number] == kUnfit;
  });
  if (total == 0) return;
  const u32 thread = thread_index(), warp = warp_index(), lane = lane_index();
  if (thread == 0 && item % across == 0) count_event(&quarterturn_stand_ins, total);
  const u32 g = lane / 4u, q = lane % 4u;
  const u32 a_first = warp / 4u * 32u, b_first = warp % 4u * 32u;
  const u32 chunks = u32(length / 128);
  const float factor = mul(args.alpha, Config::descale);
  const Destination d = {p.d, p.end, args.n};

  // Pairs lie 16 rows apart, so that one thread gets the products of both.
  const auto in_pairs = [](u32 row) { return row / 32u * 16u + row % 16u; };
  const auto row_of_pair = [&](i64 output, u32 row) {
    return row % 32u < 16u ? gate(output) : value(output);
  };
  const u32 round = pairs_gathered ? kGathered / 2 : kGathered;
  for (u32 done = 0; done < total; done += round) {
    const u32 count = min_u32(total - done, round);
    Piece pieces[kPieces];
    QT_UNROLL
    for (u32 j = 0; j < kPieces; ++j) {
      const u32 row = (thread + j * kThreads) / 8u;
      const bool gathered = row < kGathered;
      const u32 listed = pairs_gathered ? in_pairs(row) : row;
      i64 number =
          gathered ? slab + (listed < count ? load_shared_u16(base + kListAt + (done + listed) * 2u)
                                            : 0u)
                   : first + (row - kGathered);
      const Rows& source = gathered ? from : other;
      bool inside = gathered ? listed < count : number < other.rows;
      if (gated && gathered == pairs_gathered) {
        if (!gathered) {
          number = first / 2 + in_pairs(row - kGathered);
          inside = number < outputs;
        }
        number = row_of_pair(number, row);
      }
      pieces[j].row = inside ? source.data + number * pitch : nullptr;
      pieces[j].reference = inside ? source.references[number] : kZeroRow;
    }
    const auto fetch_all = [&](u32 chunk) {
      QT_UNROLL
      for (u32 j = 0; j < kPieces; ++j) fetch(pieces[j], thread % 8u, length, chunk);
    };
    const auto put_all = [&](u32 stage) {
      QT_UNROLL
      for (u32 j = 0; j < kPieces; ++j)
        put<Config::element>(pieces[j], thread % 8u,
                             base + stage * kStage + (thread + j * kThreads) / 8u * kPitch);
    };
    float sums[tiles_m][tiles_n][4] = {};
    if (chunks > 0) {
      fetch_all(0);
      put_all(0);
    }
    for (u32 chunk = 0; chunk < chunks; ++chunk) {
      sync_block();
      if (chunk + 1 < chunks) fetch_all(chunk + 1);
      const u32 stage = base + chunk % 2u * kStage;
      if ((pairs_gathered ? a_first / 2u : a_first) < count) {
        QT_UNROLL
        for (u32 block = 0; block < 4u; ++block) {
          Words4 bs[tiles_n];
          QT_UNROLL
          for (u32 j = 0; j < u32(tiles_n); ++j)
            bs[j] = load_shared_4(stage + (kGathered + b_first + 8u * j + g) * kPitch +
                                  block * 64u + q * 16u);
          QT_UNROLL
          for (u32 i = 0; i < u32(tiles_m); ++i) {
            const u32 row = stage + (a_first + 16u * i + g) * kPitch + block * 64u + q * 16u;
            const Words4 top = load_shared_4(row), bottom = load_shared_4(row + 8u * kPitch);
            QT_UNROLL
            for (u32 step = 0; step < 2u; ++step) {
              const Words4 as{{top.word[2u * step], bottom.word[2u * step],
                               top.word[2u * step + 1u], bottom.word[2u * step + 1u]}};
              QT_UNROLL
              for (u32 j = 0; j < u32(tiles_n); ++j)
                mma_bf16(sums[i][j], as, bs[j].word[2u * step], bs[j].word[2u * step + 1u]);
            }
          }
        }
      }
      if (chunk + 1 < chunks) put_all((chunk + 1u) % 2u);
    }

    // z at (row, column) from a product; rows count from the product's first.
    const auto z_at = [&](float sum, i64 row, i64 column) {
      float v = mul(factor, mul(sum, 64.0f));
      float bias = 0.0f;
      if constexpr (Config::bias)
        bias = element<Config::side>(args.bias, bias_place<Config::grouping>(p, args.n) + column);
      if constexpr (Config::bias || Config::accumulate)
        v = v + addend<Config>(args, d, p.first + row, column, bias);
      return v;
    };
    // A's side computes what both leave out.
    const auto left_to_a = [&](i64 row) { return !is_a && a.references[row] == kUnfit; };
    const auto store_pair = [&](i64 row, i64 output, float gate_sum, float value_sum) {
      if (left_to_a(row)) return;
      finish_pair<Config>(args, d, p.first + row, output, z_at(gate_sum, row, gate(output)),
                          z_at(value_sum, row, value(output)));
    };
    const auto listed = [&](u32 i) {
      return slab + load_shared_u16(base + kListAt + (done + i) * 2u);
    };
    if constexpr (gated) {
      QT_UNROLL
      for (u32 i = 0; i < 2u; ++i) {
        QT_UNROLL
        for (u32 j = 0; j < 2u; ++j) {
          QT_UNROLL
          for (u32 e = 0; e < 4u; ++e) {
            const u32 down = g + e / 2u * 8u, along = 2u * q + e % 2u;
            if (is_a) {  // gates in groups j, values in groups j + 2
              const u32 mine = a_first + 16u * i + down;
              const i64 output = first / 2 + b_first / 2u + 8u * j + along;
              if (mine < count && output < outputs)
                store_pair(listed(mine), output, sums[i][j][e], sums[i][j + 2][e]);
            } else {  // gates in rows i = 0, values in i = 1
              const u32 mine = a_first / 2u + down;
              const i64 row = first + b_first + 8u * (2u * i + j) + along;
              if (mine < count && row < other.rows)
                store_pair(row, listed(mine), sums[0][2u * i + j][e], sums[1][2u * i + j][e]);
            }
          }
        }
      }
    } else {
      QT_UNROLL
      for (u32 i = 0; i < u32(tiles_m); ++i) {
        QT_UNROLL
        for (u32 j = 0; j < u32(tiles_n); ++j) {
          QT_UNROLL
          for (u32 e = 0; e < 4u; ++e) {
            const u32 mine = a_first + 16u * i + g + e / 2u * 8u;
            const i64 across_to = first + b_first + 8u * j + 2u * q + e % 2u;
            if (mine >= count || across_to >= other.rows) continue;
            const i64 number = listed(mine);
            const i64 row = is_a ? number : across_to, column = is_a ? across_to : number;
            if (left_to_a(row)) continue;
            finish_element<Config>(args, d, p.first + row, column,
                                   z_at(sums[i][j][e], row, column));
          }
        }
      }
    }
    sync_block();  // before the next rows' first stage overwrites the last one's
  }
}

/// Blocks take items of all products in turn.
template <class Config>
QT_FN void stand_in_tiles(const Config&, const qt_args& args) {
  ProductWalk<Config> walk(args, args.m, args.k);
  const auto items = [&](const Product& p) { return StandInItems(p.end - p.first, args.n).all; };
  for (u32 item = block_index(); walk.find(item, items); item += block_count())
    stand_in_item<Config>(args, walk.product, item - walk.begin);
}

}  // namespace qt::cuda

#endif
