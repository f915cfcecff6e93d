// D = alpha * A * B^T + beta * C + bias on Hopper for many tokens: A expanded to E5M2 or int8
// (expand.h), or in bf16, B's weights packed (permuted.h) as few tokens read them too, decoded in
// registers and multiplied from there.
//
// The weights are the tensor core's 64 rows, tokens its columns: a tile is 128 weights, 64 for each
// of two warp groups, by `tokens` tokens. One thread of a third group brings 128 of K at a time
// through a ring of `stages`. E5M2 sums are promoted to binary32 every `promote` * 128 of K, as in
// gemm_sm90.h.
//
// Rows that do not fit their window are computed here too, by plain arithmetic. bf16 has none: A in
// layout bf16 or as the caller gives it, brought by ordinary loads where the copy engine cannot
// read it.
#ifndef QT_CUDA_GEMM_PACKED_TILES_H
#define QT_CUDA_GEMM_PACKED_TILES_H

#include "cuda/packed_bf16.h"
#include "cuda/packed_exact.h"
#include "cuda/primitives_wgmma.h"

namespace qt::cuda {

namespace packed_tiles {

constexpr u32 kStripes = 2;  // of 64 weights of a tile, one a warp group

/// Where things lie in shared memory.
template <class Config>
struct Shared {
  static constexpr u32 x_tiles = Config::element == Expanded::bf16 ? 2 : 1;  // of 128 bytes of K
  static constexpr u32 x_bytes = x_tiles * Config::tokens * 128;
  static constexpr u32 w_bytes = kStripes * (kChunkCodes + kChunkScales);
  static constexpr u32 w_at = Config::stages * x_bytes;
  static constexpr u32 factors_at = w_at + Config::stages * w_bytes;  // of tokens, each group's own
  static constexpr u32 factors_bytes = has_references(Config::element) ? Config::tokens * 4 : 0;
  static constexpr u32 staging_at = factors_at + kStripes * factors_bytes;
  static constexpr u32 staging_pitch = 48;  // of 16 weights of a token, without bank conflicts
  static constexpr u32 staging_bytes = 16 * staging_pitch;  // 16 tokens of a warp
  static constexpr u32 full_at =
      staging_at + (Config::output == DType::f32 ? 0 : 8 * staging_bytes);
  static constexpr u32 empty_at = full_at + Config::stages * 8;
  static constexpr u32 bytes = empty_at + Config::stages * 8;
};

/// The tiles of a call: `raster` tiles of tokens are walked before the next weights, so that
/// neighbours in time share both operands in L2.
template <class Config>
struct Tiles {
  u32 k_chunks, stripes, down, across, total;  // `down` counts tiles of tokens
  QT_FN explicit Tiles(const qt_args& args) {
    k_chunks = u32(expanded_pitch(Config::k > 0 ? Config::k : args.k, Config::k_unit) / 128);
    stripes = u32((args.n + kStripe - 1) / kStripe);
    down = u32((args.m + Config::tokens - 1) / Config::tokens);
    across = (stripes + kStripes - 1) / kStripes;
    total = down * across;
  }
  QT_FN void locate(u32 tile, u32& first_token, u32& first_stripe) const {
    const u32 group = tile / (Config::raster * across);
    const u32 rest = tile - group * (Config::raster * across);
    const u32 height = min_u32(down - group * Config::raster, Config::raster);
    const u32 x = rest / height;
    first_token = (group * Config::raster + rest - x * height) * Config::tokens;
    first_stripe = x * kStripes;
  }
};

constexpr u32 kBringers = 1 + kStripes;  // warps: of tokens, and one for each stripe of weights

/// A thread of warp `who` brings its share of every stage: one thread would take longer to start
/// all the copies of a stage than it takes to multiply one.
template <class Config>
QT_FN void bring(const qt_args& args, const qt_tensor_map& a_map, const Tiles<Config>& tiles,
                 u32 base, u32 who) {
  using S = Shared<Config>;
  if (who == 0) prefetch_map(&a_map);
  const u32 i = who - 1u;  // stripe
  const u8* const codes = static_cast<const u8*>(args.b.data);
  const u8* const scales = static_cast<const u8*>(args.b.scales);
  const u64 policy = keep_as_usual();
  u32 stage = 0, parity = 1;  // every stage starts empty
  for (u32 tile = block_index(); tile < tiles.total; tile += block_count()) {
    u32 token, stripe;
    tiles.locate(tile, token, stripe);
    const bool inside = stripe + i < tiles.stripes;
    u64 from = u64(stripe + (inside ? i : 0u)) * tiles.k_chunks;
    for (u32 chunk = 0; chunk < tiles.k_chunks; ++chunk, ++from) {
      const u32 full = base + S::full_at + 8u * stage;
      const u32 w = base + S::w_at + stage * S::w_bytes;
      barrier_wait(base + S::empty_at + 8u * stage, parity);
      if (who == 0) {
        barrier_arrive_expect(full, S::x_bytes);
        for (u32 j = 0; j < S::x_tiles; ++j)
          copy_tile(base + stage * S::x_bytes + j * (u32(Config::tokens) * 128u), &a_map, full,
                    i32((chunk * S::x_tiles + j) * 128u), i32(token), 0);
      } else if (inside) {
        barrier_arrive_expect(full, kChunkCodes + kChunkScales);
        copy_bulk(w + i * kChunkCodes, codes + from * kChunkCodes, kChunkCodes, full, policy);
        copy_bulk(w + kStripes * kChunkCodes + i * kChunkScales, scales + from * kChunkScales,
                  kChunkScales, full, policy);
      } else {
        barrier_arrive(full);
      }
      if (++stage == Config::stages) {
        stage = 0;
        parity ^= 1u;
      }
    }
  }
}

/// Brings activations in bf16 that the copy engine cannot read, by two warps.
template <class Config>
QT_FN void bring_by_loads(const qt_args& args, const Tiles<Config>& tiles, u32 base, u32 thread) {
  using S = Shared<Config>;
  const packed::Activations x = packed::Activations::of(Config{}, args);
  u32 stage = 0, parity = 1;
  for (u32 tile = block_index(); tile < tiles.total; tile += block_count()) {
    u32 token, stripe;
    tiles.locate(tile, token, stripe);
    for (u32 chunk = 0; chunk < tiles.k_chunks; ++chunk) {
      barrier_wait(base + S::empty_at + 8u * stage, parity);
      const u32 to = base + stage * S::x_bytes;
      for (u32 i = thread; i < u32(Config::tokens) * 16u; i += 64u)
        store_shared_4(to + packed::piece_place(u32(Config::tokens), i / 16u, i % 16u),
                       x.eight(i64(token) + i / 16u, i64(chunk) * 128 + i % 16u * 8u));
      async_fence();
      barrier_arrive(base + S::full_at + 8u * stage);
      if (++stage == Config::stages) {
        stage = 0;
        parity ^= 1u;
      }
    }
  }
}

/// This group's 64 weights of a tile, promoted sums, to D. Thread: weights 16w + g and 8 below,
/// tokens 8j + 2q and the next.
template <class Config>
QT_FN void store_tile(const qt_args& args, const Tiles<Config>& tiles, u32 first_token, u32 weight0,
                      const u32 (&of_weights)[2],
                      const typename SumOf<Config::element>::Type (&sums)[Config::tokens / 2],
                      u32 group, u32 thread, u32 base) {
  using S = Shared<Config>;
  const u32 lane = thread % 32u, warp = thread / 32u;
  const u32 g = lane / 4u, q = lane % 4u;
  const u32 factors = base + S::factors_at + group * S::factors_bytes;
  const u8* const a_references = static_cast<const u8*>(args.a.scales);
  const float factor = mul(args.alpha, Config::descale);

  // Factors of tokens; a NaN marks one that does not fit.
  constexpr u32 unfit_factor = 0xffffffffu;
  constexpr bool windowed = has_references(Config::element);
  bool left = windowed && (of_weights[0] == kUnfit || of_weights[1] == kUnfit);
  QT_UNROLL
  for (u32 i = 0; windowed && i < (u32(Config::tokens) + 127u) / 128u; ++i) {
    const u32 at = thread + 128u * i;
    if (at < u32(Config::tokens)) {
      const u32 token = first_token + at;
      const u32 reference = token < args.m ? a_references[token] : kZeroRow;
      left = left || reference == kUnfit;
      const float by = mul(factor, reference_value<Config::element>(reference));
      store_shared_u32(factors + at * 4u, reference == kUnfit ? unfit_factor : bits_of(by));
    }
  }
  if constexpr (windowed) left = sync_named_any(1u + group, 128u, left);

  float bias[2] = {0.0f, 0.0f};
  if constexpr (Config::bias) {
    QT_UNROLL
    for (u32 half = 0; half < 2u; ++half)
      if (weight0 + g + 8u * half < args.n)
        bias[half] = element<Config::output>(args.bias, weight0 + g + 8u * half);
  }
  // (token 8j + 2q, upper weight), (the next token, upper), then the lower weight's.
  const auto results = [&](u32 j, float(&v)[4]) {
    Words2 by = {};
    if constexpr (windowed) by = load_shared_2(factors + (8u * j + 2u * q) * 4u);
    QT_UNROLL
    for (u32 e = 0; e < 4u; ++e) {
      v[e] = mul(mul(float(sums[4u * j + e]), reference_value<Config::element>(of_weights[e / 2u])),
                 windowed ? float_of(by.word[e % 2u]) : mul(factor, Config::a_value));
      if constexpr (Config::accumulate) {
        const u32 token = first_token + 8u * j + 2u * q + e % 2u;
        const u32 weight = weight0 + g + e / 2u * 8u;
        if (token < args.m && weight < args.n)
          v[e] = v[e] + addend<Config>(args, {0, args.m, args.n}, token, weight, bias[e / 2u]);
      } else if constexpr (Config::bias) {
        v[e] = v[e] + bias[e / 2u];
      }
    }
  };
  if constexpr (Config::output == DType::f32) {
    float* const d = static_cast<float*>(args.d.data);
    QT_UNROLL
    for (u32 j = 0; j < u32(Config::tokens) / 8u; ++j) {
      float v[4];
      results(j, v);
      QT_UNROLL
      for (u32 e = 0; e < 4u; ++e) {
        const u32 at = 8u * j + 2u * q + e % 2u;
        const u32 token = first_token + at, weight = weight0 + g + e / 2u * 8u;
        if (token < args.m && weight < args.n && of_weights[e / 2u] != kUnfit &&
            (!windowed || load_shared_u32(factors + at * 4u) != unfit_factor))
          d[i64(token) * args.d.ld + weight] = v[e];
      }
    }
  } else {
    // 16 tokens and 16 weights at a time. Row addresses of the four matrices: tokens 0-7 and 8-15
    // under the upper weights, then both under the lower ones.
    u16* const d = static_cast<u16*>(args.d.data);
    const bool aligned = ((reinterpret_cast<u64>(d) | u64(args.d.ld * 2)) & 15u) == 0;
    const u32 staged = base + S::staging_at + (group * 4u + warp) * S::staging_bytes;
    const u32 write_at = staged + lane % 16u * S::staging_pitch + lane / 16u * 16u;
    const u32 read_at = staged + lane / 2u * S::staging_pitch + lane % 2u * 16u;
    const u32 weight = weight0 + lane % 2u * 8u;
    const u8* const b_references =
        permuted_references<Config::element>(args.b.scales, tiles.stripes, tiles.k_chunks);
    QT_UNROLL
    for (u32 pair = 0; pair < u32(Config::tokens) / 16u; ++pair) {
      float first[4], second[4];
      results(2u * pair, first);
      results(2u * pair + 1u, second);
      store_matrix_4_transposed(write_at, pack_pair<Config::output>(first[0], first[1]),
                                pack_pair<Config::output>(second[0], second[1]),
                                pack_pair<Config::output>(first[2], first[3]),
                                pack_pair<Config::output>(second[2], second[3]));
      sync_warp();
      const u32 at = pair * 16u + lane / 2u;
      const u32 token = first_token + at;
      if (token < args.m && weight < args.n) {
        const Words4 v = load_shared_4(read_at);
        u16* const to = d + i64(token) * args.d.ld + weight;
        if (aligned && weight + 8u <= args.n && !left) {
          store_global(reinterpret_cast<Words4*>(to), v);
        } else if (!windowed || load_shared_u32(factors + at * 4u) != unfit_factor) {
          QT_UNROLL
          for (u32 e = 0; e < 8u; ++e)
            if (weight + e < args.n &&
                reference_at<Config::element>(b_references, weight + e) != kUnfit)
              to[e] = u16(v.word[e / 2u] >> (16u * (e % 2u)));
        }
      }
      sync_warp();
    }
  }
  if constexpr (windowed) {
    if (left)
      packed::store_unfit<Config>(
          args, tiles.k_chunks,
          permuted_references<Config::element>(args.b.scales, tiles.stripes, tiles.k_chunks),
          weight0, 16u, first_token, u32(Config::tokens), lane);
    // The next tile's factors come when all have read these.
    sync_named(1u + group, 128u);
  }
}

/// Decodes and multiplies one tile's chunks, half a chunk at a time: while one half's products run,
/// the next half is decoded, and its products queue up behind them.
template <class Config, class Sum, int width>
QT_FN void multiply_tile(Sum (&sums)[width], u32 k_chunks, const u32 (&of_weights)[2], u32 base,
                         u32 group, u32 thread, u32& stage, u32& parity) {
  using S = Shared<Config>;
  constexpr bool promotes = Config::promote != 0;
  Sum part[promotes ? width : 1];
  Words4 a[2][2];
  Table above, below;
  const auto fetch_first = [&] {
    const u32 w = base + S::w_at + stage * S::w_bytes;
    barrier_wait(base + S::full_at + 8u * stage, parity);
    chunk_tables<Config::element>(w + kStripes * kChunkCodes + group * kChunkScales + thread * 2u,
                                  of_weights[0], of_weights[1], above, below);
    decode_half<Config::element>(w + group * kChunkCodes + thread * 16u, above, below, a[0]);
  };
  const auto issue = [&](u64 x, const Words4(&half)[2], u32 keep) {
    if constexpr (promotes) {
      pin(part);
    } else {
      pin(sums);
    }
    wgmma_fence();
    QT_UNROLL
    for (u32 s = 0; s < 2u; ++s) {
      if constexpr (promotes) {
        packed::multiply(part, half[s], x + s * 2u, keep | s);
      } else {
        packed::multiply(sums, half[s], x + s * 2u, 1u);
      }
    }
    wgmma_commit();
  };
  const auto pin_half = [&](Words4(&half)[2]) {
    QT_UNROLL
    for (u32 s = 0; s < 2u; ++s) pin(half[s]);
  };
  QT_UNROLL
  for (u32 j = 0; j < u32(width); ++j) sums[j] = Sum(0);
  fetch_first();
  u32 pending = 0;  // chunks in `part`
  u32 before = 0;   // the barrier of the last chunk's stage
  for (u32 chunk = 0; chunk < k_chunks; ++chunk) {
    const u64 x = wgmma_tile(base + stage * S::x_bytes);
    const u32 codes = base + S::w_at + stage * S::w_bytes + group * kChunkCodes + thread * 16u;
    issue(x, a[0], pending);
    wgmma_wait<1>();
    pin_half(a[1]);
    if (chunk > 0 && thread % 32u == 0) barrier_arrive(before);
    decode_half<Config::element>(codes + 2048u, above, below, a[1]);
    issue(x + 4u, a[1], 1u);
    wgmma_wait<1>();
    pin_half(a[0]);
    before = base + S::empty_at + 8u * stage;
    if (++stage == Config::stages) {
      stage = 0;
      parity ^= 1u;
    }
    const bool last = chunk + 1u == k_chunks;
    if (!last) fetch_first();
    if constexpr (promotes) {
      if (++pending == Config::promote || last) {
        wgmma_wait<0>();
        pin(part);
        pin_half(a[1]);
        QT_UNROLL
        for (u32 j = 0; j < u32(width); ++j) sums[j] = sums[j] + part[j];
        pending = 0;
      }
    }
  }
  wgmma_wait<0>();
  if constexpr (!promotes) pin(sums);
  pin_half(a[1]);
  if (k_chunks > 0 && thread % 32u == 0) barrier_arrive(before);
}

/// The same in bf16, which needs no promotion: a chunk is two halves of 64 of K.
template <class Config, int width>
QT_FN void multiply_tile_bf16(float (&sums)[width], u32 k_chunks, u32 base, u32 group, u32 thread,
                              u32& stage, u32& parity) {
  using S = Shared<Config>;
  const packed::NaturalOrder order(thread);
  Words4 a[2][4];
  const auto decode = [&](u32 half) {
    const u32 w = base + S::w_at + stage * S::w_bytes;
    order.decode(w + group * kChunkCodes, w + kStripes * kChunkCodes + group * kChunkScales, half,
                 a[half]);
  };
  const auto issue = [&](u32 half) {
    const u64 x = wgmma_tile(base + stage * S::x_bytes + half * (u32(Config::tokens) * 128u));
    pin(sums);
    wgmma_fence();
    QT_UNROLL
    for (u32 s = 0; s < 4u; ++s) wgmma_bf16(sums, a[half][s], x + s * 2u, 1u);
    wgmma_commit();
  };
  const auto pin_half = [&](Words4(&half)[4]) {
    QT_UNROLL
    for (u32 s = 0; s < 4u; ++s) pin(half[s]);
  };
  QT_UNROLL
  for (u32 j = 0; j < u32(width); ++j) sums[j] = 0.0f;
  barrier_wait(base + S::full_at + 8u * stage, parity);
  decode(0);
  u32 before = 0;  // the barrier of the last chunk's stage
  for (u32 chunk = 0; chunk < k_chunks; ++chunk) {
    issue(0);
    wgmma_wait<1>();
    pin_half(a[1]);
    if (chunk > 0 && thread % 32u == 0) barrier_arrive(before);
    decode(1);
    issue(1);
    wgmma_wait<1>();
    pin_half(a[0]);
    before = base + S::empty_at + 8u * stage;
    if (++stage == Config::stages) {
      stage = 0;
      parity ^= 1u;
    }
    if (chunk + 1u < k_chunks) {
      barrier_wait(base + S::full_at + 8u * stage, parity);
      decode(0);
    }
  }
  wgmma_wait<0>();
  pin(sums);
  pin_half(a[1]);
  if (k_chunks > 0 && thread % 32u == 0) barrier_arrive(before);
}

template <class Config>
QT_FN void multiply(const qt_args& args, const Tiles<Config>& tiles, u32 base) {
  using Sum = typename SumOf<Config::element>::Type;
  constexpr u32 width = Config::tokens / 2;
  const u32 group = thread_index() / 128u - 1u;
  const u32 thread = thread_index() % 128u, lane = thread % 32u;
  const u8* const b_references =
      permuted_references<Config::element>(args.b.scales, tiles.stripes, tiles.k_chunks);
  u32 stage = 0, parity = 0;
  for (u32 tile = block_index(); tile < tiles.total; tile += block_count()) {
    u32 first_token, stripe;
    tiles.locate(tile, first_token, stripe);
    const u32 weight0 = (stripe + group) * kStripe + thread / 32u * 16u;  // of the warp
    u32 of_weights[2];
    QT_UNROLL
    for (u32 half = 0; half < 2u; ++half) {
      const u32 weight = weight0 + lane / 4u + 8u * half;
      // Unfit ones decode to numbers that nobody uses.
      of_weights[half] =
          weight < args.n ? reference_at<Config::element>(b_references, weight) : kZeroRow;
    }
    Sum sums[width];
    if constexpr (Config::element == Expanded::bf16) {
      multiply_tile_bf16<Config>(sums, tiles.k_chunks, base, group, thread, stage, parity);
    } else {
      multiply_tile<Config>(sums, tiles.k_chunks, of_weights, base, group, thread, stage, parity);
    }
    store_tile<Config>(args, tiles, first_token, weight0, of_weights, sums, group, thread, base);
  }
}

}  // namespace packed_tiles

template <class Config>
QT_FN void gemm_packed_tiles(const Config&, const qt_args& args, const qt_tensor_map& a_map) {
  using namespace packed_tiles;
  using S = Shared<Config>;
  constexpr bool bf16 = Config::element == Expanded::bf16;
  const u32 base = shared_base();
  bool by_loads = false;
  if constexpr (bf16) by_loads = !packed::Activations::of(Config{}, args).aligned;
  if (thread_index() == 0) {
    for (u32 i = 0; i < Config::stages; ++i) {
      barrier_init(base + S::full_at + 8u * i, by_loads ? kStripes + 64u : kBringers);
      barrier_init(base + S::empty_at + 8u * i, 8u);
    }
    barrier_init_fence();
  }
  sync_block();
  const Tiles<Config> tiles(args);
  constexpr int brings = bf16 ? 40 : 24, multiplies = bf16 ? 232 : 240;
  static_assert(registers_fit(1, brings, 2, multiplies),
                "registers are handed over within the block");
  const u32 warp = warp_index();
  if (warp < 4u) {
    give_registers<brings>();
    if constexpr (bf16)
      if (by_loads && warp % kBringers == 0)
        bring_by_loads<Config>(args, tiles, base, warp / kBringers * 32u + lane_index());
    if (warp < kBringers && !(by_loads && warp == 0) && lane_index() == 0)
      bring<Config>(args, a_map, tiles, base, warp);
  } else {
    take_registers<multiplies>();
    multiply<Config>(args, tiles, base);
  }
}

}  // namespace qt::cuda

#endif
