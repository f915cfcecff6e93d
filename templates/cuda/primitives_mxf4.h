// What kernels for sm_120 and sm_121 ask of the machine beyond primitives.h: products of packed
// MXFP4 fragments with their scales, and short copies in the background that bring scales.
#ifndef QT_CUDA_PRIMITIVES_MXF4_H
#define QT_CUDA_PRIMITIVES_MXF4_H

#include "cuda/primitives.h"

namespace qt::cuda {

/// 4 bytes from global to shared memory in the background; only `valid` of them (0 or 4) are read,
/// the rest become zero.
QT_FN void copy_async_4(u32 to, const void* from, u32 valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid)
               : "memory");
}

/// d[16x8] += a[16x64] b[8x64]^T in MXFP4 with binary32 sums.
///
/// With lane = 4 g + t: `a` holds of rows g and g + 8 the elements 8 t..8 t + 7 (words 0 and 1) and
/// 32 behind them (words 2 and 3); b0 and b1 those of column g. Scales of both blocks of 32 are
/// bytes `byte` and `byte` + 1 (0 or 2) of `a_scales` in lanes with t = 2 `pair` (row g) and
/// 2 `pair` + 1 (row g + 8), and of `b_scales` in lanes with t = `quarter` (column g). So a lane's
/// words of scales serve 128 elements of 32 rows and of 32 columns.
template <u32 byte, u32 pair, u32 quarter>
QT_FN void mma_mxf4(float (&d)[4], const Words4& a, u32 b0, u32 b1, u32 a_scales, u32 b_scales) {
  static_assert((byte == 0 || byte == 2) && pair < 2 && quarter < 4, "what the instruction has");
  asm("mma.sync.aligned.kind::mxf4.block_scale.scale_vec::2X.m16n8k64.row.col.f32.e2m1.e2m1.f32."
      "ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, {%10}, {%12, %13}, "
      "{%11}, {%12, %14};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1),
        "r"(a_scales), "r"(b_scales), "n"(byte), "n"(pair), "n"(quarter));
}

}  // namespace qt::cuda

#endif
