// Simulated bodies of cuda/primitives.h, under the same guard: read first, they stand in its place.
#ifndef QT_CUDA_PRIMITIVES_H
#define QT_CUDA_PRIMITIVES_H

#include <bit>
#include <cmath>
#include <cstring>

#include "mxfp4/platform.h"
#include "simulated/machine.h"
#include "simulated/words.h"

namespace qt::cuda {

namespace sim = qt::simulated;

struct alignas(8) Words2 {
  u32 word[2];
};
struct alignas(16) Words4 {
  u32 word[4];
};

// ---- places and barriers

QT_FN u32 thread_index() { return sim::machine().current->place.x; }
QT_FN u32 block_index() { return sim::machine().current->block->index.x; }
QT_FN u32 block_count() { return sim::machine().grid.x; }
QT_FN u32 block_index_y() { return sim::machine().current->block->index.y; }
QT_FN u32 block_index_z() { return sim::machine().current->block->index.z; }
QT_FN u32 lane_index() { return sim::machine().current->lane; }

QT_FN u32 shuffle_from(u32 x, u32 lane) {
  struct Lane {
    u32 x, from, result;
  } mine = {x, lane, 0};
  sim::collective("shfl.idx", mine, [](Lane* const* lanes) {
    for (u32 i = 0; i < 32; ++i) lanes[i]->result = lanes[lanes[i]->from & 31u]->x;
  });
  return mine.result;
}
QT_FN u32 warp_index() { return shuffle_from(sim::machine().current->warp, 0); }

QT_FN void sync_named(u32 name, u32 threads) {
  if (name > 15) sim::machine().fail("bar.sync %u: names are 0 to 15", name);
  if (threads == 0 || threads % 32 != 0)
    sim::machine().fail("bar.sync %u of %u threads: whole warps only", name, threads);
  sim::machine().barrier(name, threads, false);
}
QT_FN void sync_block() {
  const sim::Index3 block = sim::machine().block;
  sim::machine().barrier(0, block.x * block.y * block.z, false);
}
QT_FN void sync_warp() {
  struct Lane {
  } mine;
  sim::collective("bar.warp.sync", mine, [](Lane* const*) {});
}
QT_FN bool sync_named_any(u32 name, u32 threads, bool any) {
  return sim::machine().barrier(name, threads, any);
}

QT_FN u32 kept(u32 x) { return x; }
QT_FN u32 in_register(u32 constant) { return constant; }

// Launches of a stream run one after the other.
QT_FN void let_next_start() {}
QT_FN void wait_for_previous() {}

// ---- lanes

QT_FN u32 shuffle_xor(u32 x, u32 mask) {
  struct Lane {
    u32 x, mask, result;
  } mine = {x, mask, 0};
  sim::collective("shfl.bfly", mine, [](Lane* const* lanes) {
    for (u32 i = 0; i < 32; ++i) lanes[i]->result = lanes[(i ^ lanes[i]->mask) & 31u]->x;
  });
  return mine.result;
}
QT_FN float shuffle_xor(float x, u32 mask) { return float_of(shuffle_xor(bits_of(x), mask)); }

namespace simulated_lanes {
struct Word {
  u32 x;
};
}  // namespace simulated_lanes

QT_FN u32 warp_max(u32 x) {
  simulated_lanes::Word mine = {x};
  sim::collective("redux.max", mine, [](simulated_lanes::Word* const* lanes) {
    u32 most = 0;
    for (u32 i = 0; i < 32; ++i) most = max_u32(most, lanes[i]->x);
    for (u32 i = 0; i < 32; ++i) lanes[i]->x = most;
  });
  return mine.x;
}
QT_FN u32 warp_min(u32 x) {
  simulated_lanes::Word mine = {x};
  sim::collective("redux.min", mine, [](simulated_lanes::Word* const* lanes) {
    u32 least = ~0u;
    for (u32 i = 0; i < 32; ++i) least = min_u32(least, lanes[i]->x);
    for (u32 i = 0; i < 32; ++i) lanes[i]->x = least;
  });
  return mine.x;
}
QT_FN u32 warp_ballot(bool x) {
  simulated_lanes::Word mine = {u32(x)};
  sim::collective("vote.ballot", mine, [](simulated_lanes::Word* const* lanes) {
    u32 all = 0;
    for (u32 i = 0; i < 32; ++i) all |= lanes[i]->x << i;
    for (u32 i = 0; i < 32; ++i) lanes[i]->x = all;
  });
  return mine.x;
}
QT_FN u32 count_bits(u32 x) { return u32(std::popcount(x)); }
QT_FN u32 lowest_bit(u32 x) { return x == 0 ? ~0u : u32(std::countr_zero(x)); }

// ---- approximations: the nearest values, as good as any that the hardware may give

QT_FN float exp2_approx(float x) { return std::exp2(x); }
QT_FN float reciprocal_approx(float x) { return 1.0f / x; }

// ---- arithmetic that must be exactly one instruction's rounding

QT_FN float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }
QT_FN float fma_rz(float a, float b, float c) { return sim::machine().fused_toward_zero(a, b, c); }
QT_FN float mul_rz(float a, float b) { return sim::machine().fused_toward_zero(a, b, -0.0f); }
QT_FN float magnitude(float x) { return std::fabs(x); }
QT_FN float max_number(float a, float b) { return std::fmax(a, b); }
QT_FN float min_number(float a, float b) { return std::fmin(a, b); }
QT_FN float max_or_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? float_of(0x7fffffffu) : std::fmax(a, b);
}
QT_FN Words2 multiply_wide(u32 a, u32 b) {
  const u64 product = u64(a) * b;
  return {{u32(product), u32(product >> 32)}};
}
QT_FN u32 permute_bytes(u32 low, u32 high, u32 selector) {
  const u64 bytes = u64(high) << 32 | low;
  u32 d = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 which = selector >> (4 * i) & 15u;
    u32 byte = u32(bytes >> (8 * (which & 7u))) & 0xffu;
    if (which & 8u) byte = byte & 0x80u ? 0xffu : 0u;
    d |= byte << (8 * i);
  }
  return d;
}
QT_FN u32 funnel_left(u32 low, u32 high, u32 shift) {
  return u32((u64(high) << 32 | low) << (shift & 31u) >> 32);
}

namespace simulated_formats {
QT_FN u32 bf16_of(float x) {
  const u32 u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
  return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
}  // namespace simulated_formats

QT_FN u32 pack_bf16(float low, float high) {
  return simulated_formats::bf16_of(low) | simulated_formats::bf16_of(high) << 16;
}
QT_FN u32 pack_f16(float low, float high) {
  return u32(sim::machine().float_to_half(low)) | u32(sim::machine().float_to_half(high)) << 16;
}
QT_FN float f16_to_float(u16 h) { return sim::machine().half_to_float(h); }

// ---- global memory

QT_FN Words4 load_global(const Words4* p) {
  sim::require_aligned(p, 16, "ld.global.v4");
  return *p;
}
QT_FN Words2 load_global(const Words2* p) {
  sim::require_aligned(p, 8, "ld.global.v2");
  return *p;
}
QT_FN Words4 load_words(const Words4* p) { return load_global(p); }
QT_FN void store_global(Words4* p, const Words4& v) {
  sim::require_aligned(p, 16, "st.global.v4");
  *p = v;
}
QT_FN void store_global(Words2* p, const Words2& v) {
  sim::require_aligned(p, 8, "st.global.v2");
  *p = v;
}

// ---- blocks that wait for each other

namespace simulated_flags {

struct LastLook {
  const u64* flag = nullptr;
};

/// Flags that are set. The next launch finds what this one leaves, and would take it for its own.
struct SetFlags {
  std::map<const u64*, u64> all;
  ~SetFlags() noexcept(false) {
    if (!sim::machine().failed && !all.empty())
      sim::machine().fail("the launch ends and leaves %zu flags set", all.size());
  }
};

}  // namespace simulated_flags

QT_FN void release_flag(u64* flag, u64 value) {
  sim::require_aligned(flag, 8, "st.release");
  *flag = value;
  auto& set = sim::state<simulated_flags::SetFlags>(sim::Scope::launch).all;
  if (value != 0)
    set[flag] = value;
  else
    set.erase(flag);
  sim::machine().pause(sim::Scope::block);
}
QT_FN u64 acquire_flag(const u64* flag) {
  sim::require_aligned(flag, 8, "ld.acquire");
  // The first look comes as early as it may; before another one, others run.
  auto& last = sim::state<simulated_flags::LastLook>(sim::Scope::thread).flag;
  if (last == flag) sim::machine().spin("ld.acquire of a flag");
  last = flag;
  return *static_cast<const volatile u64*>(flag);
}

// ---- counters

#define QT_COUNTER(name)                                                     \
  extern "C" __attribute__((visibility("default"))) unsigned long long name; \
  unsigned long long name = 0
QT_FN void count_event(unsigned long long* counter, unsigned long long by) { *counter += by; }

// ---- shared memory

QT_FN u32 shared_base() { return sim::kSharedBase; }

namespace simulated_shared {

/// Which thread stored a 16-byte piece last, until it fences its stores for asynchronous readers
/// (fence.proxy.async): tensor cores and the copy engine may not see them before that.
struct Unfenced {
  std::vector<u16> writer;                    ///< of a piece: thread + 1
  std::map<u32, std::vector<u32>> of_thread;  ///< pieces

  static Unfenced& of_block() {
    auto& all = sim::state<Unfenced>(sim::Scope::block);
    if (all.writer.empty()) all.writer.resize(sim::machine().current->block->shared_bytes / 16 + 1);
    return all;
  }
  void store(u32 at) {
    const u32 piece = (at - sim::kSharedBase) / 16, thread = sim::machine().current->index;
    if (writer[piece] == thread + 1) return;
    writer[piece] = u16(thread + 1);
    of_thread[thread].push_back(piece);
  }
  void fence() {
    const u32 thread = sim::machine().current->index;
    auto& pieces = of_thread[thread];
    for (const u32 piece : pieces)
      if (writer[piece] == thread + 1) writer[piece] = 0;
    pieces.clear();
  }
  /// What the copy engine wrote needs no fence.
  void overwrite(u32 at, u32 bytes) {
    for (u32 i = 0; i < bytes; i += 16) writer[(at - sim::kSharedBase + i) / 16] = 0;
  }
  void require_fenced(u32 at) const {
    if (const u32 by = writer[(at - sim::kSharedBase) / 16])
      sim::machine().fail(
          "shared memory at %u is read asynchronously, but thread %u has not fenced its store", at,
          by - 1);
  }
};

template <class T>
T load(u32 at) {
  T v;
  std::memcpy(&v, sim::shared(at, sizeof(T), sizeof(T)), sizeof v);
  return v;
}
template <class T>
void store(u32 at, const T& v) {
  std::memcpy(sim::shared(at, sizeof(T), sizeof(T)), &v, sizeof v);
  Unfenced::of_block().store(at);
}
}  // namespace simulated_shared

QT_FN u32 load_shared_u8(u32 at) { return simulated_shared::load<u8>(at); }
QT_FN u32 load_shared_u16(u32 at) { return simulated_shared::load<u16>(at); }
QT_FN u32 load_shared_u32(u32 at) { return simulated_shared::load<u32>(at); }
QT_FN Words2 load_shared_2(u32 at) { return simulated_shared::load<Words2>(at); }
QT_FN Words4 load_shared_4(u32 at) { return simulated_shared::load<Words4>(at); }
QT_FN float load_shared_f32(u32 at) { return simulated_shared::load<float>(at); }
QT_FN void store_shared_u8(u32 at, u32 v) { simulated_shared::store(at, u8(v)); }
QT_FN void store_shared_u16(u32 at, u32 v) { simulated_shared::store(at, u16(v)); }
QT_FN void store_shared_u32(u32 at, u32 v) { simulated_shared::store(at, v); }
QT_FN void store_shared_f32(u32 at, float v) { simulated_shared::store(at, v); }
QT_FN void store_shared_2(u32 at, u32 a, u32 b) { simulated_shared::store(at, Words2{{a, b}}); }
QT_FN void store_shared_4(u32 at, const Words4& v) { simulated_shared::store(at, v); }

// ---- copies in the background: in groups of each thread

namespace simulated_copies {
struct Copies {
  sim::Groups groups;
};
}  // namespace simulated_copies

QT_FN void copy_async_16(u32 to, const void* from, u32 valid) {
  u8* const at = sim::shared(to, 16, 16);
  if (valid > 16) sim::machine().fail("cp.async of %u bytes: 16 at most", valid);
  if (valid > 0) sim::require_aligned(from, 16, "cp.async");
  sim::state<simulated_copies::Copies>(sim::Scope::thread).groups.add([at, from, valid] {
    u8 bytes[16] = {};
    if (valid > 0) std::memcpy(bytes, from, valid);
    std::memcpy(at, bytes, 16);
  });
}
QT_FN void copy_async_commit() {
  sim::state<simulated_copies::Copies>(sim::Scope::thread).groups.commit();
}
template <int pending>
QT_FN void copy_async_wait() {
  sim::state<simulated_copies::Copies>(sim::Scope::thread).groups.wait(pending);
}

// ---- tensor cores: fragments as PTX ISA 9.7.14 has them

/// A row is read when its lane comes, not when the last one has: it takes a barrier, and not the
/// instruction, to see what others stored.
QT_FN Words4 load_matrix_4(u32 row) {
  struct Lane {
    u32 bytes[4];
    Words4 v;
  } mine;
  std::memcpy(mine.bytes, sim::shared(row, 16, 16), 16);
  sim::collective("ldmatrix", mine, [](Lane* const* lanes) {
    for (u32 matrix = 0; matrix < 4; ++matrix)
      for (u32 i = 0; i < 32; ++i)
        lanes[i]->v.word[matrix] = lanes[matrix * 8 + i / 4]->bytes[i % 4];
  });
  return mine.v;
}

namespace simulated_mma {

struct Rows16 {  // of a 16 x 32-byte operand: which bytes a lane's words hold
  static u32 row(u32 lane, u32 word) { return lane / 4 + word % 2 * 8; }
  static u32 byte(u32 lane, u32 word) { return lane % 4 * 4 + word / 2 * 16; }
};

template <class Sum>
struct Lane {
  Sum* d;
  Words4 a;
  u32 b[2];
};

/// d += a b^T from operands of 32 bytes of K, whose elements `decode` takes out of a word.
template <class Sum, u32 elements, class Decode>
void multiply(Lane<Sum>* const* lanes, const Decode& decode) {
  constexpr u32 k = 8 * elements;
  float a[16 * k], b[8 * k];
  double d[16 * 8];
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 word = 0; word < 4; ++word)
      for (u32 e = 0; e < elements; ++e)
        a[Rows16::row(lane, word) * k + Rows16::byte(lane, word) / 4 * elements + e] =
            decode(lanes[lane]->a.word[word], e);
    for (u32 word = 0; word < 2; ++word)
      for (u32 e = 0; e < elements; ++e)
        b[lane / 4 * k + (lane % 4 + word * 4) * elements + e] = decode(lanes[lane]->b[word], e);
    for (u32 i = 0; i < 4; ++i)
      d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = double(lanes[lane]->d[i]);
  }
  sim::machine().multiply(d, a, b, 16, 8, k);
  for (u32 lane = 0; lane < 32; ++lane)
    for (u32 i = 0; i < 4; ++i)
      lanes[lane]->d[i] = Sum(d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2]);
}

}  // namespace simulated_mma

QT_FN void mma_bf16(float (&d)[4], const Words4& a, u32 b0, u32 b1) {
  simulated_mma::Lane<float> mine = {d, a, {b0, b1}};
  sim::collective("mma.bf16", mine, [](simulated_mma::Lane<float>* const* lanes) {
    simulated_mma::multiply<float, 2>(
        lanes, [](u32 word, u32 e) { return float_of(word >> (16 * e) << 16); });
  });
}
QT_FN void mma_s8(i32 (&d)[4], const Words4& a, u32 b0, u32 b1) {
  simulated_mma::Lane<i32> mine = {d, a, {b0, b1}};
  sim::collective("mma.s8", mine, [](simulated_mma::Lane<i32>* const* lanes) {
    simulated_mma::multiply<i32, 4>(
        lanes, [](u32 word, u32 e) { return float(i32(word << (24 - 8 * e)) >> 24); });
  });
}

}  // namespace qt::cuda

#endif
