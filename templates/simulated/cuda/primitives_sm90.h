// Simulated bodies of cuda/primitives_sm90.h: mbarriers with transaction counts, bulk copies that
// land late and in any order, clusters.
#ifndef QT_CUDA_PRIMITIVES_SM90_H
#define QT_CUDA_PRIMITIVES_SM90_H

#include "cuda/tile_descriptors.h"
#include "simulated/cuda/primitives.h"
#include "simulated/cuda/tensor_map.h"

struct alignas(64) qt_tensor_map {
  unsigned long long word[16];
};

namespace qt::cuda {

// ---- mbarriers

namespace simulated_barriers {

/// What one mbarrier counts. Its eight bytes of shared memory hold a mark, so that stores which hit
/// it are noticed.
struct Mbarrier {
  u32 arrivals = 0, pending = 0;
  long long bytes = 0;  ///< expected and not yet there
  u32 phase = 0;
  u8* mark = nullptr;
  u32 at = 0;

  static constexpr u64 kMark = 0x7265697272616275ull;
  void check() const {
    u64 found;
    std::memcpy(&found, mark, 8);
    if (found != kMark) sim::machine().fail("the mbarrier at %u was overwritten", at);
  }
  void arrive() {
    check();
    if (pending == 0) sim::machine().fail("mbarrier %u: more than %u arrivals", at, arrivals);
    --pending;
    finish();
  }
  void expect(u32 more) {
    check();
    bytes += more;
    if (bytes >= 1 << 20) sim::machine().fail("mbarrier %u: waits for %lld bytes", at, bytes);
  }
  void complete(u32 come) {
    check();
    bytes -= come;
    finish();
  }

 private:
  void finish() {
    if (pending != 0 || bytes != 0) return;
    phase ^= 1u;
    pending = arrivals;
  }
};

/// All of a cluster, by block and address.
struct Mbarriers {
  std::map<std::pair<u32, u32>, Mbarrier> all;

  ~Mbarriers() {
    if (sim::machine().failed) return;
    for (const auto& [place, barrier] : all)
      if (barrier.bytes != 0)
        sim::machine().fail("mbarrier %u of block %u of the cluster ends %lld bytes short",
                            place.second, place.first, barrier.bytes);
  }
};

QT_FN Mbarrier& find(u32 at, const sim::Block& block) {
  auto& all = sim::state<Mbarriers>(sim::Scope::cluster).all;
  const auto found = all.find({block.rank, at});
  if (found == all.end()) sim::machine().fail("no mbarrier was initialised at %u", at);
  return found->second;
}
QT_FN Mbarrier& find(u32 at) { return find(at, *sim::machine().current->block); }

}  // namespace simulated_barriers

QT_FN void barrier_init(u32 barrier, u32 arrivals) {
  using simulated_barriers::Mbarrier;
  if (arrivals == 0 || arrivals >= 1u << 20)
    sim::machine().fail("mbarrier of %u arrivals", arrivals);
  u8* const mark = sim::shared(barrier, 8, 8);
  std::memcpy(mark, &Mbarrier::kMark, 8);
  const u32 rank = sim::machine().current->block->rank;
  auto& all = sim::state<simulated_barriers::Mbarriers>(sim::Scope::cluster).all;
  all[{rank, barrier}] = Mbarrier{arrivals, arrivals, 0, 0, mark, barrier};
}
QT_FN void barrier_init_fence() {}
QT_FN void barrier_arrive(u32 barrier) {
  simulated_barriers::find(barrier).arrive();
  sim::machine().pause(sim::Scope::warp);
}
QT_FN void barrier_arrive_expect(u32 barrier, u32 bytes) {
  auto& b = simulated_barriers::find(barrier);
  b.expect(bytes);
  b.arrive();
}
QT_FN void barrier_arrive_remote(u32 barrier, u32 rank) {
  const sim::Block* other = sim::machine().peer(rank);
  if (!other) sim::machine().fail("the cluster has no block %u", rank);
  if (other->threads_left == 0)
    sim::machine().fail("mbarrier %u of block %u of the cluster, which has ended", barrier, rank);
  simulated_barriers::find(barrier, *other).arrive();
  sim::machine().pause(sim::Scope::warp);
}
QT_FN void barrier_wait(u32 barrier, u32 parity) {
  if (parity > 1) sim::machine().fail("mbarrier %u: parity %u", barrier, parity);
  const auto& b = simulated_barriers::find(barrier);
  b.check();
  sim::wait_until("mbarrier", barrier, [&b, parity] { return b.phase != parity; });
}

// ---- clusters

QT_FN u32 cluster_rank() { return sim::machine().current->block->rank; }
QT_FN void sync_cluster() { sim::machine().cluster_barrier(); }

// ---- bulk copies

namespace simulated_copies {

/// A box of a tensor into the shared memory of a block; what lies outside of the tensor is zero.
struct BoxCopy {
  sim::TensorMap map;
  i32 first[5];
  u32 to;

  void operator()(const sim::Block& block) const {
    if (&block == sim::machine().current->block)
      simulated_shared::Unfenced::of_block().overwrite(to, map.box_bytes());
    const u32 row_bytes = map.box[0] * map.element_bytes, rows = map.box_bytes() / row_bytes;
    for (u32 row = 0; row < rows; ++row) {
      const u8* from = map.address;
      bool inside = true;
      u32 rest = row;
      for (u32 i = 1; i < 5; ++i) {
        const i64 at = i64(first[i]) + rest % map.box[i];
        rest /= map.box[i];
        inside = inside && at >= 0 && at < i64(map.sizes[i]);
        if (i < map.rank) from += at * i64(map.strides[i - 1]);
      }
      for (u32 piece = 0; piece < row_bytes; piece += 16) {
        u32 at = to + row * row_bytes + piece;
        if (map.swizzle_bytes > 0) at = sim::swizzled(at, map.swizzle_bytes);
        u8* const target = sim::shared(at, 16, 16, &block);
        for (u32 i = 0; i < 16; i += map.element_bytes) {
          const i64 x = i64(first[0]) + (piece + i) / map.element_bytes;
          if (inside && x >= 0 && x < i64(map.sizes[0]))
            std::memcpy(target + i, from + x * map.element_bytes, map.element_bytes);
          else
            std::memset(target + i, 0, map.element_bytes);
        }
      }
    }
  }
};

QT_FN void post_box(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z,
                    u32 blocks) {
  BoxCopy copy = {{}, {x, y, z, 0, 0}, to};
  sim::require_aligned(map, 64, "tensor map");
  std::memcpy(static_cast<void*>(&copy.map), map, sizeof copy.map);
  if (copy.map.magic != sim::TensorMap::kMagic)
    sim::machine().fail("the tensor map is not encoded");
  if (copy.map.rank != 3)
    sim::machine().fail("a copy of 3 dimensions by a map of %u", copy.map.rank);
  if (to % 128 != 0) sim::machine().fail("tile at %u: no multiple of 128", to);
  for (u32 rank = 0; blocks >> rank != 0; ++rank) {
    if ((blocks >> rank & 1u) == 0) continue;
    const sim::Block* block = sim::machine().peer(rank);
    if (!block) sim::machine().fail("the cluster has no block %u", rank);
    if (block->threads_left == 0)
      sim::machine().fail("a tile for block %u of the cluster, which has ended", rank);
    auto& b = simulated_barriers::find(barrier, *block);
    sim::machine().post(sim::kAnyOrder, [copy, block, &b] {
      copy(*block);
      b.complete(copy.map.box_bytes());
    });
  }
}

}  // namespace simulated_copies

QT_FN void prefetch_map(const qt_tensor_map*) {}
QT_FN void copy_tile(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z) {
  simulated_copies::post_box(to, map, barrier, x, y, z, 1u << cluster_rank());
}
QT_FN void copy_tile_multicast(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z,
                               u32 blocks) {
  simulated_copies::post_box(to, map, barrier, x, y, z, blocks);
}
QT_FN u64 keep_as_usual() { return 0; }
QT_FN u64 evict_first() { return 0; }
QT_FN void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64) {
  if (bytes == 0 || bytes % 16 != 0) sim::machine().fail("bulk copy of %u bytes", bytes);
  sim::require_aligned(from, 16, "bulk copy");
  u8* const target = sim::shared(to, bytes, 16);
  auto& b = simulated_barriers::find(barrier);
  auto& unfenced = simulated_shared::Unfenced::of_block();
  sim::machine().post(sim::kAnyOrder, [target, from, bytes, to, &b, &unfenced] {
    std::memcpy(target, from, bytes);
    unfenced.overwrite(to, bytes);
    b.complete(bytes);
  });
}
QT_FN void async_fence() { simulated_shared::Unfenced::of_block().fence(); }

// ---- registers handed over

QT_FN constexpr bool registers_fit(u32 giving, u32 give, u32 taking, u32 take) {
  return 128u * (giving * give + taking * take) <=
         65536u / (128u * (giving + taking)) / 8u * 8u * (128u * (giving + taking));
}
template <int registers>
QT_FN void give_registers() {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256, "setmaxnreg");
  sync_warp();
}
template <int registers>
QT_FN void take_registers() {
  give_registers<registers>();
}

// ---- matrices to shared memory

namespace simulated_matrices {

struct Lane {
  u32 row;
  u32 rows[32];  ///< what all lanes brought
};

/// Addresses go round; what a lane holds it stores itself, so that nothing but a barrier tells
/// others when it is there.
QT_FN Lane exchange(const char* name, u32 row) {
  Lane mine = {row, {}};
  sim::collective(name, mine, [](Lane* const* lanes) {
    for (u32 i = 0; i < 32; ++i)
      for (u32 j = 0; j < 32; ++j) lanes[i]->rows[j] = lanes[j]->row;
  });
  return mine;
}

}  // namespace simulated_matrices

QT_FN void store_matrix_4(u32 row, u32 a, u32 b, u32 c, u32 d) {
  const auto all = simulated_matrices::exchange("stmatrix", row);
  const u32 words[4] = {a, b, c, d}, lane = lane_index();
  for (u32 matrix = 0; matrix < 4; ++matrix)
    std::memcpy(sim::shared(all.rows[matrix * 8 + lane / 4], 16, 16) + lane % 4 * 4, &words[matrix],
                4);
}
QT_FN void store_matrix_4_transposed(u32 row, u32 a, u32 b, u32 c, u32 d) {
  const auto all = simulated_matrices::exchange("stmatrix.trans", row);
  const u32 words[4] = {a, b, c, d}, lane = lane_index();
  for (u32 matrix = 0; matrix < 4; ++matrix)
    for (u32 e = 0; e < 2; ++e) {
      // The lane holds row lane/4, columns 2(lane%4) and the next: elements of rows' addresses.
      const u16 half = u16(words[matrix] >> (16 * e));
      std::memcpy(sim::shared(all.rows[matrix * 8 + lane % 4 * 2 + e], 16, 16) + lane / 4 * 2,
                  &half, 2);
    }
}

// ---- warp-group products: what they read and write, they touch when they land

namespace simulated_products {

struct Products {
  sim::Groups groups;
  bool fenced = false;  ///< since registers could last be touched
  ~Products() {
    if (!sim::machine().failed && !groups.idle())
      sim::machine().fail("the warp ends with products on their way");
  }
};
struct Nothing {};

QT_FN Products& of_warp() { return sim::state<Products>(sim::Scope::warp); }

}  // namespace simulated_products

QT_FN void wgmma_fence() {
  simulated_products::Nothing mine;
  sim::collective("wgmma.fence", mine, [](simulated_products::Nothing* const*) {
    simulated_products::of_warp().fenced = true;
  });
}
QT_FN void wgmma_commit() {
  simulated_products::Nothing mine;
  sim::collective("wgmma.commit_group", mine, [](simulated_products::Nothing* const*) {
    simulated_products::of_warp().groups.commit();
  });
}
template <int pending>
QT_FN void wgmma_wait() {
  simulated_products::Nothing mine;
  sim::collective("wgmma.wait_group", mine, [](simulated_products::Nothing* const*) {
    auto& products = simulated_products::of_warp();
    products.groups.wait(pending);
    products.fenced = false;
  });
}
template <int n>
QT_FN void pin(float (&)[n]) {}
template <int n>
QT_FN void pin(i32 (&)[n]) {}
QT_FN void pin(Words4&) {}

}  // namespace qt::cuda

#endif
