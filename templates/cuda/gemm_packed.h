// D = alpha * A * B^T + bias on Hopper for few tokens: A expanded to E5M2 or int8 (expand.h), B's
// weights packed (permuted.h), decoded in registers and multiplied from there. Weights are read
// once, at the speed of memory; so B's rows are the tensor core's 64 rows, tokens its columns.
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
#ifndef QT_CUDA_GEMM_PACKED_H
#define QT_CUDA_GEMM_PACKED_H

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
  static constexpr u32 x_bytes = Config::chunks * Config::tokens * 128;
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
QT_FN void bring(const qt_args& args, const qt_tensor_map& a_map, const Work<Config>& work,
                 u32 base, Share share) {
  using S = Shared<Config>;
  if (share == Share::tokens) {
    prefetch_map(&a_map);
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
        copy_tile(at + j * Config::tokens * 128u, &a_map, full, i32((chunk + j) * 128u),
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
    return weight < args.n ? b_references[weight] : kZeroRow;
  };
  const auto a_reference = [&](u32 token) -> u32 {
    return token < args.m ? a_references[token] : kZeroRow;
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
      const float by = mul(factor, reference_value<Config::element>(of_token));
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
    const u32 upper = weight0 < args.n ? b_references[weight0] : kZeroRow;
    const u32 lower = weight0 + 8u < args.n ? b_references[weight0 + 8u] : kZeroRow;

    Sum sums[width], part_sums[width];  // the latter of E5M2 alone
    QT_UNROLL
    for (u32 j = 0; j < width; ++j) sums[j] = part_sums[j] = Sum(0);
    u32 pending = 0;  // chunks in part_sums
    Words4 a[2][2];   // a chunk's halves: one is decoded while the other one's products run
    u32 held = 0;     // the barrier of a stage whose products may still run
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
      for (u32 s = 0; s < 4u; ++s) pin(a[s / 2u][s % 2u]);
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
        const u64 x = wgmma_tile(at + chunk * Config::tokens * 128u);
        Table above, below;
        chunk_tables<Config::element>(scales + thread * 2u, upper, lower, above, below);
        QT_UNROLL
        for (u32 half = 0; half < 2u; ++half) {
          decode_half<Config::element>(codes + half * 2048u + thread * 16u, above, below, a[half]);
          pin_sums();
          wgmma_fence();
          QT_UNROLL
          for (u32 s = 0; s < 2u; ++s) {
            if constexpr (Config::promote == 0) {
              packed::multiply(sums, a[half][s], x + half * 4u + s * 2u, 1u);
            } else {
              packed::multiply(part_sums, a[half][s], x + half * 4u + s * 2u, pending | half | s);
            }
          }
          wgmma_commit();
          wgmma_wait<1>();
          QT_UNROLL
          for (u32 s = 0; s < 2u; ++s) pin(a[1u - half][s]);
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

template <class Config>
QT_FN void gemm_packed_sm90(const Config&, const qt_args& args, const qt_tensor_map& a_map) {
  using namespace gemm_packed;
  using S = Shared<Config>;
  const u32 base = shared_base();
  if (thread_index() == 0) {
    for (u32 i = 0; i < Config::stages; ++i) {
      barrier_init(base + S::full_at + 8u * i, 3u);  // shares
      barrier_init(base + S::empty_at + 8u * i, kMultipliers / 32u);
    }
    barrier_init_fence();
  }
  sync_block();
  const Work<Config> work(args, Config::k > 0 ? Config::k : args.k);
  static_assert(registers_fit(1, 24, 4, 112), "registers are handed over within the block");
  if (warp_index() >= kMultipliers / 32u) {
    give_registers<24>();
    const u32 warp = warp_index() - kMultipliers / 32u;
    if (warp < 3u && lane_index() == 0) bring<Config>(args, a_map, work, base, Share(warp));
  } else {
    take_registers<112>();
    // References of A and the last call's D and workspace are the previous kernel's.
    wait_for_previous();
    multiply<Config>(args, work, base);
  }
}

}  // namespace qt::cuda

#endif
