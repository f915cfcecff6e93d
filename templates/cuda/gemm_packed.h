// D = alpha * A * B^T + beta * C + bias on Hopper for few tokens: A expanded to E5M2 or int8
// (expand.h), or in bf16, B's weights packed (permuted.h), decoded in registers and multiplied from
// there. Weights are read once, at the speed of memory; so B's rows are the tensor core's 64 rows,
// tokens its columns.
//
// A tile is 64 * `stripes` weights by `tokens` tokens. All tiles' K, cut into units of `chunks` *
// 128, is shared out evenly: a block takes a run of units, and so may hold the end of one tile,
// whole ones, and the beginning of another. Who holds a tile's last unit finishes it: the others
// leave their sums in the workspace and raise a flag. A block begins with what others wait for, the
// beginning of its last tile. It waits for lower ones only, which have started before it. Flags are
// 64 bits that random memory does not hold, and are lowered after use, so that the workspace needs
// no preparation.
//
// Four warp groups multiply, in `stripes` stripes and 4 / stripes parts of K; threads of the fifth
// bring units through a ring of `stages`. They start on weights before the kernel that quantises A
// has ended. E5M2 sums are promoted to binary32 every `promote` chunks of a group, as in
// gemm_sm90.h.
//
// Rows that do not fit their window are computed here too, by plain arithmetic.
//
// A in bf16, in layout bf16 or as the caller gives it, is reordered on its way by two warps of the
// fifth group (packed_bf16.h).
#ifndef QT_CUDA_GEMM_PACKED_H
#define QT_CUDA_GEMM_PACKED_H

#include "cuda/packed_bf16.h"
#include "cuda/packed_exact.h"
#include "cuda/primitives_wgmma.h"

namespace qt::cuda {

namespace gemm_packed {

constexpr u32 kMultipliers = 512;  // threads; another group of 128 follows
constexpr u64 kReady = 0x517ec0de9a2b7d43ull;

/// Where things lie in shared memory.
template <class Config>
struct Shared {
  static constexpr u32 parts = 4 / Config::stripes;  // of K, side by side
  static constexpr u32 x_chunk = Config::tokens * (Config::element == Expanded::bf16 ? 256 : 128);
  static constexpr u32 x_bytes = Config::chunks * x_chunk;
  static constexpr u32 w_bytes = Config::chunks * Config::stripes * kChunkCodes;
  static constexpr u32 s_bytes = Config::chunks * Config::stripes * kChunkScales;
  static constexpr u32 stage = (x_bytes + w_bytes + s_bytes + 1023) / 1024 * 1024;
  static constexpr u32 sums_at = Config::stages * stage;
  static constexpr u32 sums_bytes = (parts - 1) * Config::stripes * kStripe * Config::tokens * 4;
  static constexpr u32 full_at = sums_at + sums_bytes;
  static constexpr u32 empty_at = full_at + Config::stages * 8;
  static constexpr u32 bytes = empty_at + Config::stages * 8;
};

/// This call's work, and the part of it that is this block's.
template <class Config>
struct Work {
  u32 k_chunks;  // chunks of 128 of K
  u32 units_of_tile;
  u32 stripes;  // of all weights
  u32 token_tiles;
  u32 total;       // units of all tiles
  u32 begin, end;  // this block's

  QT_FN Work(const qt_args& args, i64 k) {
    k_chunks = u32(expanded_pitch(k, Config::k_unit) / 128);
    units_of_tile = (k_chunks + Config::chunks - 1) / Config::chunks;
    stripes = u32((args.n + kStripe - 1) / kStripe);
    token_tiles = u32((args.m + Config::tokens - 1) / Config::tokens);
    const u32 groups = (stripes + Config::stripes - 1) / Config::stripes;
    total = groups * token_tiles * units_of_tile;
    begin = begin_of(block_index());
    end = begin_of(block_index() + 1);
  }
  /// This block's i-th unit: those of a last tile that others finish come first.
  QT_FN u32 unit_at(u32 i) const {
    const u32 start = end / units_of_tile * units_of_tile;  // of a tile that goes on behind `end`
    const u32 first = start > begin ? end - start : 0u;
    return i < first ? start + i : begin + (i - first);
  }
  QT_FN u32 begin_of(u32 block) const { return u32(u64(total) * block / block_count()); }
  QT_FN u32 first_stripe(u32 tile) const { return tile / token_tiles * Config::stripes; }
  QT_FN u32 first_token(u32 tile) const { return tile % token_tiles * Config::tokens; }
};

/// What one thread of a warp brings of every unit: one for all would take longer to start a unit's
/// copies than it takes to multiply one.
enum class Share { codes, scales, tokens };

template <class Config>
QT_FN void bring(const qt_args& args, const qt_tensor_map* a_map, const Work<Config>& work,
                 u32 base, Share share) {
  using S = Shared<Config>;
  if (share == Share::tokens) {
    prefetch_map(a_map);
    wait_for_previous();
  }
  const u64 policy = work.token_tiles == 1u ? evict_first() : keep_as_usual();
  const bool codes = share == Share::codes;
  const u8* const weights = static_cast<const u8*>(codes ? args.b.data : args.b.scales);
  const u32 bytes = codes ? kChunkCodes : kChunkScales;
  u32 stage = 0, parity = 1;  // every stage starts empty
  const u32 count = work.end - work.begin;
  for (u32 i = 0; i < count; ++i) {
    const u32 unit = work.unit_at(i);
    const u32 tile = unit / work.units_of_tile;
    const u32 chunk = unit % work.units_of_tile * Config::chunks;
    const u32 chunks = min_u32(work.k_chunks - chunk, Config::chunks);
    const u32 full = base + S::full_at + 8u * stage, at = base + stage * S::stage;
    barrier_wait(base + S::empty_at + 8u * stage, parity);
    if (share == Share::tokens) {
      barrier_arrive_expect(full, chunks * Config::tokens * 128u);
      for (u32 j = 0; j < chunks; ++j)
        copy_tile(at + j * Config::tokens * 128u, a_map, full, i32((chunk + j) * 128u),
                  i32(work.first_token(tile)), 0);
    } else {
      const u32 first = work.first_stripe(tile);
      const u32 here = min_u32(work.stripes - first, Config::stripes);
      const u32 to = at + S::x_bytes + (codes ? 0u : S::w_bytes);
      barrier_arrive_expect(full, here * chunks * bytes);
      for (u32 j = 0; j < here; ++j)
        copy_bulk(to + j * Config::chunks * bytes,
                  weights + (u64(first + j) * work.k_chunks + chunk) * bytes, chunks * bytes, full,
                  policy);
    }
    if (++stage == Config::stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
}

/// Activations in bf16 on their way to a stage, by 64 threads: of a chunk's four blocks, words of
/// eight elements each become four pieces of two elements a block.
template <class Config>
class Reorder {
  using S = Shared<Config>;
  static constexpr u32 kThreads = 64;
  static constexpr u32 kOfChunk = u32(Config::tokens) * 4u;  // parts: a row's eight of each block
  static constexpr u32 kParts = Config::chunks * kOfChunk;
  static constexpr u32 kRounds = (kParts + kThreads - 1) / kThreads;

 public:
  /// Rounds of a unit whose elements wait in registers for their stage.
  static constexpr u32 kAhead = kRounds < 3u ? kRounds : 3u;

  QT_FN Reorder(const packed::Activations& x, const Work<Config>& work, u32 thread)
      : x_(x), work_(work), thread_(thread) {}

  /// Loads of the first rounds of a unit, from anywhere on.
  QT_FN void begin(u32 unit) {
    const u32 tile = unit / work_.units_of_tile;
    chunk0_ = unit % work_.units_of_tile * Config::chunks;
    token0_ = work_.first_token(tile);
    QT_UNROLL
    for (u32 r = 0; r < kAhead; ++r) load(r, blocks_[r]);
  }
  /// The unit to its stage at `to`. Rows of zeros are there already where `filled`.
  QT_FN void finish(u32 to, bool filled) const {
    QT_UNROLL
    for (u32 r = 0; r < kAhead; ++r) store(to, r, blocks_[r], filled);
    for (u32 r = kAhead; r < kRounds; r += kAhead) {
      Words4 blocks[kAhead][4];
      QT_UNROLL
      for (u32 i = 0; i < kAhead; ++i) load(r + i, blocks[i]);
      QT_UNROLL
      for (u32 i = 0; i < kAhead; ++i) store(to, r + i, blocks[i], filled);
    }
  }

 private:
  QT_FN void load(u32 round, Words4 (&blocks)[4]) const {
    const u32 i = thread_ + round * kThreads;
    const u32 chunk = i / kOfChunk, row = i % kOfChunk / 4u;
    QT_UNROLL
    for (u32 t = 0; t < 4u; ++t) {
      blocks[t] = {};
      if (chunk < Config::chunks)
        blocks[t] =
            x_.eight(i64(token0_) + row, i64(chunk0_ + chunk) * 128 + t * 32u + i % 4u * 8u);
    }
  }
  QT_FN void store(u32 to, u32 round, const Words4 (&blocks)[4], bool filled) const {
    const u32 i = thread_ + round * kThreads;
    const u32 chunk = i / kOfChunk, row = i % kOfChunk / 4u;
    if (chunk >= Config::chunks || (filled && token0_ + row >= x_.rows)) return;
    QT_UNROLL
    for (u32 j = 0; j < 4u; ++j)
      store_shared_4(
          to + chunk * S::x_chunk + packed::piece_place(u32(Config::tokens), row, i % 4u * 4u + j),
          {{blocks[0].word[j], blocks[1].word[j], blocks[2].word[j], blocks[3].word[j]}});
  }

  const packed::Activations& x_;
  const Work<Config>& work_;
  const u32 thread_;
  u32 chunk0_ = 0, token0_ = 0;
  Words4 blocks_[kAhead][4];
};

/// The share of tokens where A is in bf16, whose next unit is loaded before its stage is empty.
template <class Config>
QT_FN void bring_tokens_bf16(const qt_args& args, const Work<Config>& work, u32 base, u32 thread) {
  using S = Shared<Config>;
  const u32 count = work.end - work.begin;
  if (count == 0) return;
  const packed::Activations x = packed::Activations::of(Config{}, args);
  Reorder<Config> reorder(x, work, thread);
  wait_for_previous();
  reorder.begin(work.unit_at(0));
  u32 stage = 0, parity = 1;  // every stage starts empty
  for (u32 i = 0; i < count; ++i) {
    barrier_wait(base + S::empty_at + 8u * stage, parity);
    reorder.finish(base + stage * S::stage, work.token_tiles == 1u && i >= Config::stages);
    async_fence();
    barrier_arrive(base + S::full_at + 8u * stage);
    if (i + 1u < count) reorder.begin(work.unit_at(i + 1u));
    if (++stage == Config::stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
}

/// A finished stripe's sums to D. Thread: rows 16w + g and 8 below, tokens 8j + 2q and the next.
template <class Config>
QT_FN void store_sums(const qt_args& args, const Work<Config>& work, u32 tile, u32 stripe,
                      const typename SumOf<Config::element>::Type (&sums)[Config::tokens / 2],
                      u32 thread) {
  const u32 lane = thread % 32u;
  const u32 weight0 = (work.first_stripe(tile) + stripe) * kStripe + thread / 32u * 16u + lane / 4u;
  const u32 token0 = work.first_token(tile) + lane % 4u * 2u;
  const u8* const b_references =
      permuted_references<Config::element>(args.b.scales, work.stripes, work.k_chunks);
  const u8* const a_references = static_cast<const u8*>(args.a.scales);
  const float factor = mul(args.alpha, Config::descale);
  const auto b_reference = [&](u32 weight) -> u32 {
    return weight < args.n ? reference_at<Config::element>(b_references, weight) : kZeroRow;
  };
  const auto a_reference = [&](u32 token) -> u32 {
    return token < args.m ? reference_at<Config::element>(a_references, token) : kZeroRow;
  };
  const u32 of_rows[2] = {b_reference(weight0), b_reference(weight0 + 8u)};
  bool left = of_rows[0] == kUnfit || of_rows[1] == kUnfit;
  QT_UNROLL
  for (u32 j = 0; j < u32(Config::tokens) / 8u; ++j) {
    QT_UNROLL
    for (u32 column = 0; column < 2u; ++column) {
      const u32 token = token0 + 8u * j + column;
      const u32 of_token = a_reference(token);
      left = left || of_token == kUnfit;
      constexpr bool referred = has_references(Config::element);
      const float by =
          mul(factor, referred ? reference_value<Config::element>(of_token) : Config::a_value);
      QT_UNROLL
      for (u32 half = 0; half < 2u; ++half) {
        const u32 weight = weight0 + 8u * half;
        if (token < args.m && weight < args.n && of_token != kUnfit && of_rows[half] != kUnfit)
          packed::store_one<Config>(args, token, weight,
                                    mul(mul(float(sums[4u * j + 2u * half + column]),
                                            reference_value<Config::element>(of_rows[half])),
                                        by));
      }
    }
  }
  if constexpr (!has_references(Config::element)) return;
  if (warp_ballot(left) == 0) return;
  packed::store_unfit<Config>(args, work.k_chunks, b_references, shuffle_from(weight0, 0u), 16u,
                              work.first_token(tile), u32(Config::tokens), lane);
}

template <class Config>
QT_FN void multiply(const qt_args& args, const Work<Config>& work, u32 base) {
  using S = Shared<Config>;
  using Sum = typename SumOf<Config::element>::Type;
  constexpr u32 width = Config::tokens / 2;
  const u32 group = warp_index() / 4u, thread = thread_index() % 128u, lane = thread % 32u;
  const u32 stripe = group % Config::stripes, part = group / Config::stripes;
  constexpr u32 slot = Config::stripes * kStripe * Config::tokens;  // sums
  u32* const begun = static_cast<u32*>(args.workspace);  // a slot a block: a last tile's sums
  u32* const ended = begun + u64(block_count()) * slot;  // a first tile's, if others began it
  u64* const flags = reinterpret_cast<u64*>(ended + u64(block_count()) * slot);
  const u8* const b_references =
      permuted_references<Config::element>(args.b.scales, work.stripes, work.k_chunks);

  constexpr bool bf16 = Config::element == Expanded::bf16;
  constexpr u32 steps = bf16 ? 4 : 2;  // products of half a chunk
  const packed::Decoder decoder;       // of bf16 alone
  u32 stage = 0, parity = 0;
  bool owes = false;  // a first tile to finish
  for (u32 done = 0; done < work.end - work.begin;) {
    u32 unit = work.unit_at(done);
    const u32 tile = unit / work.units_of_tile;
    const u32 tile_end = (tile + 1u) * work.units_of_tile;
    const u32 end = min_u32(tile_end, work.end);
    const bool from_start = unit == tile * work.units_of_tile;
    done += end - unit;
    // References of this thread's rows; unfit ones decode to numbers that nobody uses.
    const u32 weight0 =
        (work.first_stripe(tile) + stripe) * kStripe + thread / 32u * 16u + lane / 4u;
    const u32 upper =
        weight0 < args.n ? reference_at<Config::element>(b_references, weight0) : kZeroRow;
    const u32 lower = weight0 + 8u < args.n
                          ? reference_at<Config::element>(b_references, weight0 + 8u)
                          : kZeroRow;

    Sum sums[width], part_sums[width];  // the latter of E5M2 alone
    QT_UNROLL
    for (u32 j = 0; j < width; ++j) sums[j] = part_sums[j] = Sum(0);
    u32 pending = 0;     // chunks in part_sums
    Words4 a[2][steps];  // a chunk's halves: one is decoded while the other one's products run
    u32 held = 0;        // the barrier of a stage whose products may still run
    const auto pin_sums = [&] {
      if constexpr (Config::promote == 0) {
        pin(sums);
      } else {
        pin(part_sums);
      }
    };
    const auto promote = [&] {
      wgmma_wait<0>();
      pin_sums();
      QT_UNROLL
      for (u32 s = 0; s < 2u * steps; ++s) pin(a[s / steps][s % steps]);
      if constexpr (Config::promote != 0) {
        QT_UNROLL
        for (u32 j = 0; j < width; ++j) sums[j] = sums[j] + part_sums[j];
        pending = 0;
      }
    };
    const auto release_held = [&] {
      if (held != 0 && lane == 0) barrier_arrive(held);
      held = 0;
    };
    for (; unit < end; ++unit) {
      const u32 chunk0 = unit % work.units_of_tile * Config::chunks;
      barrier_wait(base + S::full_at + 8u * stage, parity);
      const u32 at = base + stage * S::stage;
      QT_UNROLL
      for (u32 i = 0; i < Config::chunks / S::parts; ++i) {
        const u32 chunk = i * S::parts + part;
        if (chunk0 + chunk >= work.k_chunks) continue;
        const u32 codes = at + S::x_bytes + (stripe * Config::chunks + chunk) * kChunkCodes;
        const u32 scales =
            at + S::x_bytes + S::w_bytes + (stripe * Config::chunks + chunk) * kChunkScales;
        const u64 x = wgmma_tile(at + chunk * S::x_chunk);
        Table above, below;
        packed::BlockScales block_scales;
        if constexpr (bf16) {
          block_scales = packed::block_scales(scales + thread * 2u);
        } else {
          chunk_tables<Config::element>(scales + thread * 2u, upper, lower, above, below);
        }
        QT_UNROLL
        for (u32 half = 0; half < 2u; ++half) {
          const u32 mine = codes + half * 2048u + thread * 16u;
          if constexpr (bf16) {
            decoder.half(mine, block_scales, a[half]);
          } else {
            decode_half<Config::element>(mine, above, below, a[half]);
          }
          pin_sums();
          wgmma_fence();
          QT_UNROLL
          for (u32 s = 0; s < steps; ++s) {
            if constexpr (bf16) {
              wgmma_bf16(sums, a[half][s], x + half * (S::x_chunk / 32u) + s * 2u, 1u);
            } else if constexpr (Config::promote == 0) {
              packed::multiply(sums, a[half][s], x + half * 4u + s * 2u, 1u);
            } else {
              packed::multiply(part_sums, a[half][s], x + half * 4u + s * 2u, pending | half | s);
            }
          }
          wgmma_commit();
          wgmma_wait<1>();
          QT_UNROLL
          for (u32 s = 0; s < steps; ++s) pin(a[1u - half][s]);
          release_held();
        }
        if constexpr (Config::promote != 0)
          if (++pending == Config::promote) promote();
      }
      if (held != 0) wgmma_wait<0>();  // this group had no part of the unit
      release_held();
      held = base + S::empty_at + 8u * stage;
      if (++stage == Config::stages) {
        stage = 0;
        parity ^= 1u;
      }
    }
    if (Config::promote == 0 || pending != 0) promote();
    wgmma_wait<0>();
    release_held();

    // Parts of K come together in the first part's group.
    if constexpr (S::parts > 1) {
      const u32 mine = base + S::sums_at + (stripe * 128u + thread) * 16u;
      constexpr u32 pitch = Config::stripes * 128u * 16u;  // of four sums of all threads
      sync_named(1u + stripe, S::parts * 128u);            // the last tile's sums have been read
      if (part > 0) {
        QT_UNROLL
        for (u32 j = 0; j < width / 4u; ++j)
          store_shared_4(
              mine + ((part - 1u) * (width / 4u) + j) * pitch,
              {{packed::word_of(sums[4u * j]), packed::word_of(sums[4u * j + 1u]),
                packed::word_of(sums[4u * j + 2u]), packed::word_of(sums[4u * j + 3u])}});
      }
      sync_named(1u + stripe, S::parts * 128u);
      if (part == 0) {
        QT_UNROLL
        for (u32 p = 0; p < S::parts - 1u; ++p) {
          QT_UNROLL
          for (u32 j = 0; j < width / 4u; ++j) {
            const Words4 other = load_shared_4(mine + (p * (width / 4u) + j) * pitch);
            QT_UNROLL
            for (u32 e = 0; e < 4u; ++e) packed::add_word(sums[4u * j + e], other.word[e]);
          }
        }
      }
    }
    if (part > 0) continue;

    const bool finished = end == tile_end;
    if (finished && from_start) {
      store_sums<Config>(args, work, tile, stripe, sums, thread);
      continue;
    }
    u32* const to = (finished ? ended : begun) + u64(block_index()) * slot;
    QT_UNROLL
    for (u32 j = 0; j < width / 4u; ++j)
      store_global(reinterpret_cast<Words4*>(to) + (j * Config::stripes + stripe) * 128u + thread,
                   {{packed::word_of(sums[4u * j]), packed::word_of(sums[4u * j + 1u]),
                     packed::word_of(sums[4u * j + 2u]), packed::word_of(sums[4u * j + 3u])}});
    if (finished) {
      owes = true;
    } else {
      // The barrier gathers all threads' stores under the flag's release.
      sync_named(9u, Config::stripes * 128u);
      if (stripe == 0 && thread == 0) release_flag(flags + block_index(), kReady);
    }
  }

  if (part > 0 || !owes) return;
  const u32 tile = work.begin / work.units_of_tile;
  u32 first = block_index();
  while (work.begin_of(first) > tile * work.units_of_tile) --first;
  if (stripe == 0 && thread == 0) {
    for (u32 block = first; block < block_index(); ++block)
      while (acquire_flag(flags + block) != kReady) {
      }
  }
  sync_named(9u, Config::stripes * 128u);
  Sum sums[width];
  QT_UNROLL
  for (u32 j = 0; j < width; ++j) sums[j] = Sum(0);
  for (u32 block = first; block <= block_index(); ++block) {
    const u32* from = (block == block_index() ? ended : begun) + u64(block) * slot;
    QT_UNROLL
    for (u32 j = 0; j < width / 4u; ++j) {
      const Words4 v = load_global(reinterpret_cast<const Words4*>(from) +
                                   (j * Config::stripes + stripe) * 128u + thread);
      QT_UNROLL
      for (u32 e = 0; e < 4u; ++e) packed::add_word(sums[4u * j + e], v.word[e]);
    }
  }
  if (stripe == 0 && thread == 0) {
    for (u32 block = first; block < block_index(); ++block) release_flag(flags + block, 0);
  }
  store_sums<Config>(args, work, tile, stripe, sums, thread);
}

}  // namespace gemm_packed

/// `a_map`: null where A is in bf16.
template <class Config>
QT_FN void gemm_packed_blocks(const qt_args& args, const qt_tensor_map* a_map) {
  using namespace gemm_packed;
  using S = Shared<Config>;
  constexpr bool bf16 = Config::element == Expanded::bf16;
  const u32 base = shared_base();
  if (thread_index() == 0) {
    for (u32 i = 0; i < Config::stages; ++i) {
      barrier_init(base + S::full_at + 8u * i, bf16 ? 2u + 64u : 3u);  // shares
      barrier_init(base + S::empty_at + 8u * i, kMultipliers / 32u);
    }
    barrier_init_fence();
  }
  sync_block();
  const Work<Config> work(args, Config::k > 0 ? Config::k : args.k);
  constexpr int brings = bf16 ? 96 : 24, multiplies = bf16 ? 96 : 112;
  static_assert(registers_fit(1, brings, 4, multiplies),
                "registers are handed over within the block");
  if (warp_index() >= kMultipliers / 32u) {
    give_registers<brings>();
    const u32 warp = warp_index() - kMultipliers / 32u;
    if constexpr (bf16)
      if (warp >= 2u) bring_tokens_bf16<Config>(args, work, base, thread_index() % 64u);
    if (warp < (bf16 ? 2u : 3u) && lane_index() == 0)
      bring<Config>(args, a_map, work, base, Share(warp));
  } else {
    take_registers<multiplies>();
    // References of A and the last call's D and workspace are the previous kernel's.
    wait_for_previous();
    multiply<Config>(args, work, base);
  }
}

template <class Config>
QT_FN void gemm_packed_sm90(const Config&, const qt_args& args, const qt_tensor_map& a_map) {
  gemm_packed_blocks<Config>(args, &a_map);
}
template <class Config>
QT_FN void gemm_packed_sm90(const Config&, const qt_args& args) {
  gemm_packed_blocks<Config>(args, nullptr);
}

}  // namespace qt::cuda

#endif
