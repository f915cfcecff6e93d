// What kernels for sm_100 and sm_103 ask of the machine beyond primitives_sm90.h: tensor memory,
// and products of MXFP4 tiles that lie in shared memory, by one block or by a pair (a cluster of
// two), whose even block issues for both. A kernel uses one `blocks` throughout.
//
// Tensor memory of a block: 128 lanes by 512 columns of 32 bits; an address is lane << 16 | column.
#ifndef QT_CUDA_PRIMITIVES_SM100_H
#define QT_CUDA_PRIMITIVES_SM100_H

#include "cuda/primitives_sm90.h"

namespace qt::cuda {

// ---- tensor memory

/// By one whole warp (of each block of a pair): `columns`, a power of two from 32 to 512; where
/// they begin is written to shared memory at `to`. No further allocation may follow.
template <u32 blocks>
QT_FN void allocate_tensor_memory(u32 to, u32 columns) {
  if constexpr (blocks == 1) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
  } else {
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to),
                 "r"(columns)
                 : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
  }
}
/// By one whole warp (of each block), before the kernel ends.
template <u32 blocks>
QT_FN void free_tensor_memory(u32 at, u32 columns) {
  if constexpr (blocks == 1) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns));
  } else {
    asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns));
  }
}
/// Around a barrier between threads: what they did in tensor memory before it, is done before what
/// others do there after it.
QT_FN void tensor_fence_before() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
QT_FN void tensor_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

/// 16 lanes (rows) by 32 columns, by a whole warp, from its own quarter of the lanes (warp % 4) or
/// that quarter's second half: v[4 j..4 j + 3] are columns 8 j + 2 (lane % 4) and the next of row
/// lane / 4, then of the row 8 below. In the background until wait_for_tensor_loads.
QT_FN void load_tensor_16x32(u32 (&v)[16], u32 at) {
  asm volatile(
      "tcgen05.ld.sync.aligned.16x256b.x4.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, "
      "%12, %13, %14, %15}, [%16];"
      : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]),
        "=r"(v[7]), "=r"(v[8]), "=r"(v[9]), "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]),
        "=r"(v[14]), "=r"(v[15])
      : "r"(at)
      : "memory");
}
/// Until this thread's loads have come; `v` may be read after it.
template <int n>
QT_FN void wait_for_tensor_loads(u32 (&v)[n]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  QT_UNROLL
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(v[i])::"memory");
}

// ---- products, by one thread (of the pair's even block); in the background, in order

/// To four columns of tensor memory (of each block, from its own shared memory), as products want
/// them: row r of 128 at lane r % 32 of every quarter, column r / 32, a byte for each 32 of K.
template <u32 blocks>
QT_FN void copy_scales(u32 to, u64 tile) {
  if constexpr (blocks == 1) {
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(tile)
                 : "memory");
  } else {
    asm volatile("tcgen05.cp.cta_group::2.32x128b.warpx4 [%0], %1;" ::"r"(to), "l"(tile)
                 : "memory");
  }
}

/// What a product multiplies: MXFP4 with UE8M0 scales for blocks of 32, `blocks` times 128 rows by
/// n columns by 64 of K. `half`: which bytes of the columns of scales, 0 and 1 or 2 and 3.
template <u32 blocks, u32 n, u32 half>
QT_FN constexpr u32 mxf4_shape() {
  static_assert(n % (8 * blocks) == 0 && n <= 256, "what the instruction has");
  return (2 * half) << 4 | 1u << 7 | 1u << 10 | n / 8 << 17 | 1u << 23 | blocks << 27 |
         (2 * half) << 29;
}
/// d += a b^T, or d = a b^T where `keep` is 0. Scales of a: 4 columns; of b: one for each 32 of n.
template <u32 blocks>
QT_FN void mma_mxf4_tiles(u32 d, u64 a, u64 b, u32 shape, u32 a_scales, u32 b_scales, u32 keep) {
  if constexpr (blocks == 1) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block32 [%0], %1, %2, %3, [%4], [%5], "
        "p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(a_scales), "r"(b_scales), "r"(keep)
        : "memory");
  } else {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "tcgen05.mma.cta_group::2.kind::mxf4.block_scale.block32 [%0], %1, %2, %3, [%4], [%5], "
        "p;\n}" ::"r"(d),
        "l"(a), "l"(b), "r"(shape), "r"(a_scales), "r"(b_scales), "r"(keep)
        : "memory");
  }
}
/// Arrives at a barrier (of both blocks of a pair, at the same place in each) when all that this
/// thread issued so far is done. Implies tensor_fence_before.
template <u32 blocks>
QT_FN void commit_products(u32 barrier) {
  if constexpr (blocks == 1) {
    asm volatile(
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 "
        "[%0], %1;" ::"r"(barrier),
        "h"(u16(3))
        : "memory");
  }
}

// ---- bulk tensor copies that may count at the even block's barrier

/// The place of a barrier in the pair's even block, whichever of both has it.
QT_FN u32 in_even_block(u32 barrier) { return barrier & 0xfeffffffu; }

/// The box at (x, y, z), x fastest, into this block's shared memory; its bytes count towards the
/// barrier, of a pair that of its even block.
template <u32 blocks>
QT_FN void copy_tile_for(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z) {
  if constexpr (blocks == 1) {
    copy_tile(to, map, barrier, x, y, z);
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
        "l"(map), "r"(in_even_block(barrier)), "r"(x), "r"(y), "r"(z)
        : "memory");
  }
}
/// The same of a map of four dimensions.
template <u32 blocks>
QT_FN void copy_tile_4d_for(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z,
                            i32 w) {
  if constexpr (blocks == 1) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.cta_group::2.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(in_even_block(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
  }
}

}  // namespace qt::cuda

#endif
