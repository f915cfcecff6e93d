// Warp-group matrix products of 64 x n x 32 8-bit elements, or 16 bf16, one overload a width.
//
// d[64 x n] (+)= A[64 x 32] B[n x 32]^T; `keep` 0 overwrites d. Lane l of warp w of the group holds
// rows 16w + l/4 and 8 below, and of every 8 columns the two at 8j + 2(l%4): d[4j] and d[4j + 1]
// above, d[4j + 2] and d[4j + 3] below.
#ifndef QT_CUDA_PRIMITIVES_WGMMA_H
#define QT_CUDA_PRIMITIVES_WGMMA_H

#include "cuda/primitives_sm90.h"

namespace qt::cuda {

// clang-format off
// The names %0, %1, ... of 16 operands, and of n/2 of them.
#define QT_NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QT_NAMES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define QT_NAMES_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define QT_NAMES_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QT_NAMES_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define QT_NAMES_5 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define QT_NAMES_6 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define QT_NAMES_7 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define QT_NAMES_OF_32 QT_NAMES_0
#define QT_NAMES_OF_64 QT_NAMES_OF_32 ", " QT_NAMES_1
#define QT_NAMES_OF_96 QT_NAMES_OF_64 ", " QT_NAMES_2
#define QT_NAMES_OF_128 QT_NAMES_OF_96 ", " QT_NAMES_3
#define QT_NAMES_OF_160 QT_NAMES_OF_128 ", " QT_NAMES_4
#define QT_NAMES_OF_192 QT_NAMES_OF_160 ", " QT_NAMES_5
#define QT_NAMES_OF_224 QT_NAMES_OF_192 ", " QT_NAMES_6
#define QT_NAMES_OF_256 QT_NAMES_OF_224 ", " QT_NAMES_7
// The operands themselves, under constraint c.
#define QT_SUMS_4(c, d, i) "+" c(d[i]), "+" c(d[(i) + 1]), "+" c(d[(i) + 2]), "+" c(d[(i) + 3])
#define QT_SUMS_16(c, d, i) QT_SUMS_4(c, d, i), QT_SUMS_4(c, d, (i) + 4), \
                            QT_SUMS_4(c, d, (i) + 8), QT_SUMS_4(c, d, (i) + 12)
#define QT_SUMS_OF_32(c, d) QT_SUMS_16(c, d, 0)
#define QT_SUMS_OF_64(c, d) QT_SUMS_OF_32(c, d), QT_SUMS_16(c, d, 16)
#define QT_SUMS_OF_96(c, d) QT_SUMS_OF_64(c, d), QT_SUMS_16(c, d, 32)
#define QT_SUMS_OF_128(c, d) QT_SUMS_OF_96(c, d), QT_SUMS_16(c, d, 48)
#define QT_SUMS_OF_160(c, d) QT_SUMS_OF_128(c, d), QT_SUMS_16(c, d, 64)
#define QT_SUMS_OF_192(c, d) QT_SUMS_OF_160(c, d), QT_SUMS_16(c, d, 80)
#define QT_SUMS_OF_224(c, d) QT_SUMS_OF_192(c, d), QT_SUMS_16(c, d, 96)
#define QT_SUMS_OF_256(c, d) QT_SUMS_OF_224(c, d), QT_SUMS_16(c, d, 112)
// p0, p1, p2: the names of the operands behind the sums: A, B, keep.
#define QT_WGMMA(n, name, type, c, shape, tail, p0, p1, p2)                                    \
  QT_FN void name(type (&d)[n / 2], u64 a, u64 b, u32 keep) {                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p2 ", 0;\n"                              \
                 "wgmma.mma_async.sync.aligned." shape                                         \
                 " {" QT_NAMES_OF_##n "}, " p0 ", " p1 ", p" tail ";\n}"                       \
                 : QT_SUMS_OF_##n(c, d)                                                        \
                 : "l"(a), "l"(b), "r"(keep));                                                 \
  }
#define QT_WGMMA_OF(n, p0, p1, p2)                                                             \
  QT_WGMMA(n, wgmma_e5m2, float, "f", "m64n" #n "k32.f32.e5m2.e5m2", ", 1, 1", p0, p1, p2)     \
  QT_WGMMA(n, wgmma_s8, i32, "r", "m64n" #n "k32.s32.s8.s8", "", p0, p1, p2)                   \
  QT_WGMMA(n, wgmma_bf16, float, "f", "m64n" #n "k16.f32.bf16.bf16", ", 1, 1, 0, 0", p0, p1, p2)

QT_WGMMA_OF(32, "%16", "%17", "%18")
QT_WGMMA_OF(64, "%32", "%33", "%34")
QT_WGMMA_OF(96, "%48", "%49", "%50")
QT_WGMMA_OF(128, "%64", "%65", "%66")
QT_WGMMA_OF(160, "%80", "%81", "%82")
QT_WGMMA_OF(192, "%96", "%97", "%98")
QT_WGMMA_OF(224, "%112", "%113", "%114")
QT_WGMMA_OF(256, "%128", "%129", "%130")

// A from registers: four words a thread, rows and bytes as mma.sync's A has them.
#define QT_NAMES_OF_8 "%0, %1, %2, %3"
#define QT_NAMES_OF_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define QT_SUMS_OF_8(c, d) QT_SUMS_4(c, d, 0)
#define QT_SUMS_OF_16(c, d) QT_SUMS_4(c, d, 0), QT_SUMS_4(c, d, 4)
// p0 to p5: the names of A's words, B and keep.
#define QT_WGMMA_A(n, name, type, c, shape, tail, p0, p1, p2, p3, p4, p5)                      \
  QT_FN void name(type (&d)[n / 2], const Words4& a, u64 b, u32 keep) {                        \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " p5 ", 0;\n"                              \
                 "wgmma.mma_async.sync.aligned." shape                                         \
                 " {" QT_NAMES_OF_##n "}, {" p0 ", " p1 ", " p2 ", " p3 "}, " p4               \
                 ", p" tail ";\n}"                                                             \
                 : QT_SUMS_OF_##n(c, d)                                                        \
                 : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b),     \
                   "r"(keep));                                                                 \
  }
#define QT_WGMMA_A_OF(n, ...)                                                                  \
  QT_WGMMA_A(n, wgmma_e5m2, float, "f", "m64n" #n "k32.f32.e5m2.e5m2", ", 1, 1", __VA_ARGS__)  \
  QT_WGMMA_A(n, wgmma_s8, i32, "r", "m64n" #n "k32.s32.s8.s8", "", __VA_ARGS__)               \
  QT_WGMMA_A(n, wgmma_bf16, float, "f", "m64n" #n "k16.f32.bf16.bf16", ", 1, 1, 0", __VA_ARGS__)

QT_WGMMA_A_OF(8, "%4", "%5", "%6", "%7", "%8", "%9")
QT_WGMMA_A_OF(16, "%8", "%9", "%10", "%11", "%12", "%13")
QT_WGMMA_A_OF(32, "%16", "%17", "%18", "%19", "%20", "%21")
QT_WGMMA_A_OF(64, "%32", "%33", "%34", "%35", "%36", "%37")
QT_WGMMA_A_OF(96, "%48", "%49", "%50", "%51", "%52", "%53")
QT_WGMMA_A_OF(128, "%64", "%65", "%66", "%67", "%68", "%69")
QT_WGMMA_A_OF(160, "%80", "%81", "%82", "%83", "%84", "%85")
QT_WGMMA_A_OF(192, "%96", "%97", "%98", "%99", "%100", "%101")
QT_WGMMA_A_OF(256, "%128", "%129", "%130", "%131", "%132", "%133")
#undef QT_WGMMA_A_OF
#undef QT_WGMMA_A
#undef QT_WGMMA_OF
#undef QT_WGMMA
// clang-format on

}  // namespace qt::cuda

#endif
