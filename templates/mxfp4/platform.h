// The only file of mxfp4/ that knows which compiler reads it: prefixes, integer types, bit casts.
//
// Every file here includes nothing from outside templates/ and is read unchanged by the host
// compiler (C++17 or later), NVRTC, hipRTC and clang for AMD. The arithmetic is defined in IEEE
// binary32, round to nearest even, subnormals kept and no product fused into a sum. So:
//   g++      -ffp-contract=off, never -ffast-math; MXCSR/FPCR without flush-to-zero while it runs
//   clang    the pragma below turns contraction off; never -ffast-math
//   NVRTC    --fmad=false --ftz=false (products that feed a sum go through qt::mul all the same)
//   hipRTC   the pragma below; never -fgpu-flush-denormals-to-zero
#ifndef QT_MXFP4_PLATFORM_H
#define QT_MXFP4_PLATFORM_H

#if defined(__FAST_MATH__)
#error "mxfp4/ defines bits: compile it without -ffast-math"
#endif
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && !defined(__CUDACC__)
#error "mxfp4/ needs float arithmetic in binary32 (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
#if defined(__clang__)
#pragma clang fp contract(off)
#endif

// QT_UNROLL stands before loops over small arrays, whose trip counts are constants (template
// arguments where they vary), so that on a GPU the arrays live in registers. This is not for speed
// alone: NVRTC 13.0 was seen to take elements of an array that had stayed in local memory for
// undefined.

// Internal linkage on the host: kernels built for different instruction sets may be linked into one
// program, and a linker must not merge their copies of one inline function.
#if defined(__HIP__)
#define QT_FN __attribute__((device)) __attribute__((always_inline)) inline
#define QT_UNROLL _Pragma("unroll")
#elif defined(__CUDACC__)
#define QT_FN __device__ __forceinline__
#define QT_UNROLL _Pragma("unroll")
#else
#define QT_FN [[maybe_unused]] static inline
#define QT_UNROLL
#endif

namespace qt {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;
static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8 && sizeof(float) == 4,
              "mxfp4/ needs 16, 32 and 64-bit integers and binary32 floats");

QT_FN u32 bits_of(float x) {
#if defined(__CUDACC__) && !defined(__clang__)
  return __float_as_uint(x);
#else
  return __builtin_bit_cast(u32, x);
#endif
}

QT_FN float float_of(u32 bits) {
#if defined(__CUDACC__) && !defined(__clang__)
  return __uint_as_float(bits);
#else
  return __builtin_bit_cast(float, bits);
#endif
}

/// A product rounded on its own, whatever sum it goes into.
QT_FN float mul(float a, float b) {
#if defined(__CUDACC__) && !defined(__clang__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

/// a * b + c with one rounding. Without the instruction: the product is exact in double, and its
/// sum with c rounded to odd, which the second rounding cannot be misled by.
QT_FN float fused(float a, float b, float c) {
#if defined(__CUDACC__) && !defined(__clang__)
  return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__) || defined(__HIP__)
  return __builtin_fmaf(a, b, c);
#else
  const double product = double(a) * double(b), addend = double(c);
  const double sum = product + addend;
  const double back = sum - product;
  const double rest = (product - (sum - back)) + (addend - back);
  u64 bits = __builtin_bit_cast(u64, sum);
  if ((rest > 0.0 || rest < 0.0) && (bits & 1u) == 0u)
    bits += (rest > 0.0) == (sum > 0.0) ? 1u : ~0ull;
  return float(__builtin_bit_cast(double, bits));
#endif
}

QT_FN u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
QT_FN u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }

}  // namespace qt

#endif
