// What kernels for Hopper (sm_90a) ask of the machine beyond primitives.h: mbarriers, bulk tensor
// copies, warp-group matrix products, register hand-over, clusters.
#ifndef QT_CUDA_PRIMITIVES_SM90_H
#define QT_CUDA_PRIMITIVES_SM90_H

#include "cuda/primitives.h"
#include "cuda/tile_descriptors.h"

/// A tensor map, encoded by the host; opaque here.
struct alignas(64) qt_tensor_map {
  unsigned long long word[16];
};

namespace qt::cuda {

// ---- mbarriers: 8 bytes of shared memory, a phase that flips when all arrivals and bytes are in

QT_FN void barrier_init(u32 barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the copy engine and to the cluster.
QT_FN void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
QT_FN void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Arrives, and makes the phase wait for `bytes` more from the copy engine.
QT_FN void barrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
/// Arrives at the barrier at the same place in another block of the cluster. No `.release.cluster`:
/// it costs a memory barrier of the whole chip at every stage, and readers of shared memory have
/// nothing to publish.
QT_FN void barrier_arrive_remote(u32 barrier, u32 rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
/// Until the phase with this parity is over.
QT_FN void barrier_wait(u32 barrier, u32 parity) {
  u32 done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// ---- clusters

QT_FN u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
QT_FN void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// ---- bulk tensor copies, by one thread

QT_FN void prefetch_map(const qt_tensor_map* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// The box at (x, y, z), x fastest, into shared memory; its bytes count towards the barrier.
QT_FN void copy_tile(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// The same into every block of the cluster whose bit is set, at the same place in each.
QT_FN void copy_tile_multicast(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z,
                               u32 blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(u16(blocks))
      : "memory");
}
/// How long what is copied should stay in the L2 cache: as long as other data, or less.
QT_FN u64 keep_as_usual() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
QT_FN u64 evict_first() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// A contiguous stretch, a multiple of 16 bytes, into shared memory.
QT_FN void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
/// Orders this thread's ordinary stores to shared memory before the asynchronous reads that follow.
QT_FN void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers handed from the warp group that copies to those that multiply

/// Whether two kinds of warp groups of a block can hold these registers a thread. A block has what
/// it started with, and no more: a hand-over that asks for more waits for ever.
QT_FN constexpr bool registers_fit(u32 giving, u32 give, u32 taking, u32 take) {
  return 128u * (giving * give + taking * take) <=
         65536u / (128u * (giving + taking)) / 8u * 8u * (128u * (giving + taking));
}
template <int registers>
QT_FN void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
QT_FN void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Four 8x8 matrices of 16-bit elements from a warp's registers to shared memory, one row address
/// from each lane.
QT_FN void store_matrix_4(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// The same, each matrix transposed: a row address's 16 bytes are a column of its matrix.
QT_FN void store_matrix_4_transposed(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// ---- warp-group matrix products: asynchronous, so operands and sums may not be touched in between

QT_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
QT_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
QT_FN void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// Tells the compiler that the sums change here.
template <int n>
QT_FN void pin(float (&d)[n]) {
  QT_UNROLL
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int n>
QT_FN void pin(i32 (&d)[n]) {
  QT_UNROLL
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

/// Keeps an operand's registers as they are until here: the products that read them have ended.
QT_FN void pin(Words4& a) {
  asm volatile("" : "+r"(a.word[0]), "+r"(a.word[1]), "+r"(a.word[2]), "+r"(a.word[3])::"memory");
}

}  // namespace qt::cuda

#endif
