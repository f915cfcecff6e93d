// What kernels for sm_80 and later ask of the machine: places, barriers, memory, shuffles, tensor
// cores. The only texts with PTX or builtins are the primitives*.h: a kernel is plain C++ around
// these names, so a simulated body can be put under the same kernel.
//
// Shared memory is reached through 32-bit addresses (`shared_base`), never through pointers.
// Nothing assumes that the lanes of a warp run in lockstep: what must wait, says so.
#ifndef QT_CUDA_PRIMITIVES_H
#define QT_CUDA_PRIMITIVES_H

#include "mxfp4/platform.h"

namespace qt::cuda {

struct alignas(8) Words2 {
  u32 word[2];
};
struct alignas(16) Words4 {
  u32 word[4];
};

// ---- places and barriers

QT_FN u32 thread_index() { return threadIdx.x; }
QT_FN u32 block_index() { return blockIdx.x; }
QT_FN u32 block_count() { return gridDim.x; }
QT_FN u32 block_index_y() { return blockIdx.y; }
QT_FN u32 block_index_z() { return blockIdx.z; }
QT_FN u32 lane_index() { return threadIdx.x & 31u; }
/// The same value in every lane, known to the compiler as such.
QT_FN u32 warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0); }

QT_FN void sync_block() { __syncthreads(); }
QT_FN void sync_warp() { __syncwarp(); }
/// A barrier of `threads` threads of the block, under one of 16 names; 0 is sync_block's.
QT_FN void sync_named(u32 name, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/// The same barrier, telling every thread whether `any` was set in one of them.
QT_FN bool sync_named_any(u32 name, u32 threads, bool any) {
  u32 result;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbarrier.cta.red.or.pred q, %2, %3, p;\n"
      "selp.u32 %0, 1, 0, q;\n}"
      : "=r"(result)
      : "r"(u32(any)), "r"(name), "r"(threads)
      : "memory");
  return result != 0;
}

/// A value that the compiler keeps, instead of computing it anew where it is used.
QT_FN u32 kept(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

/// A constant that lives in a thread's register, instead of being made anew where it is used: the
/// top bit of the clock, which is 0, and the thread's number hide from every compiler that it is
/// one.
QT_FN u32 in_register(u32 constant) {
  u32 clock;
  asm volatile("mov.u32 %0, %%clock_hi;" : "=r"(clock));
  return constant ^ (clock >> 31 & thread_index());
}

// ---- kernels that follow each other (sm_90 and later)

/// Lets the next kernel of the stream start, if its launch allows that, as far as room is left.
QT_FN void let_next_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
/// Until the kernel before has ended and what it wrote can be read.
QT_FN void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- lanes (all 32 take part)

QT_FN u32 shuffle_xor(u32 x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, int(mask)); }
QT_FN float shuffle_xor(float x, u32 mask) { return __shfl_xor_sync(0xffffffffu, x, int(mask)); }
QT_FN u32 shuffle_from(u32 x, u32 lane) { return __shfl_sync(0xffffffffu, x, int(lane)); }
QT_FN u32 warp_max(u32 x) { return __reduce_max_sync(0xffffffffu, x); }
QT_FN u32 warp_min(u32 x) { return __reduce_min_sync(0xffffffffu, x); }
/// Bit l: lane l's answer.
QT_FN u32 warp_ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
QT_FN u32 count_bits(u32 x) { return u32(__popc(x)); }
/// The number of the lowest bit that is set.
QT_FN u32 lowest_bit(u32 x) { return u32(__ffs(int(x))) - 1u; }

// ---- approximations of the hardware (PTX ISA: errors of 2^-22.5 relatively, and of an ulp)

QT_FN float exp2_approx(float x) {
  float d;
  asm("ex2.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}
QT_FN float reciprocal_approx(float x) {
  float d;
  asm("rcp.approx.f32 %0, %1;" : "=f"(d) : "f"(x));
  return d;
}

// ---- arithmetic that must be exactly one instruction's rounding

QT_FN float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/// Rounded toward zero; subnormal results are kept.
QT_FN float mul_rz(float a, float b) { return __fmul_rz(a, b); }
QT_FN float fma_rz(float a, float b, float c) { return __fmaf_rz(a, b, c); }
QT_FN float magnitude(float x) { return fabsf(x); }
QT_FN float max_number(float a, float b) { return fmaxf(a, b); }
QT_FN float min_number(float a, float b) { return fminf(a, b); }
/// NaN if either is NaN.
QT_FN float max_or_nan(float a, float b) {
  float d;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
  return d;
}
/// The whole product, low word first.
QT_FN Words2 multiply_wide(u32 a, u32 b) {
  Words2 d;
  asm("{\n.reg .b64 p;\nmul.wide.u32 p, %2, %3;\nmov.b64 {%0, %1}, p;\n}"
      : "=r"(d.word[0]), "=r"(d.word[1])
      : "r"(a), "r"(b));
  return d;
}
/// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes (high:low); selectors' bit
/// 3 replicates that byte's sign.
QT_FN u32 permute_bytes(u32 low, u32 high, u32 selector) {
  u32 d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(selector));
  return d;
}
/// The upper word of (high:low) << shift, shift in 0..31.
QT_FN u32 funnel_left(u32 low, u32 high, u32 shift) { return __funnelshift_l(low, high, shift); }

/// Two binary32 values to bf16 or f16, nearest even, `low` in the lower half.
QT_FN u32 pack_bf16(float low, float high) {
  u32 d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
QT_FN u32 pack_f16(float low, float high) {
  u32 d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
QT_FN float f16_to_float(u16 h) {
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(h));
  return d;
}

// ---- global memory

QT_FN Words4 load_global(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p)
               : "memory");
  return v;
}
QT_FN Words2 load_global(const Words2* p) {
  Words2 v;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(v.word[0]), "=r"(v.word[1])
               : "l"(p)
               : "memory");
  return v;
}
/// What the compiler may move among other memory accesses. Not by the read-only path (.nc): a
/// kernel may be there before the one in front of it, which writes what it reads, has ended.
QT_FN Words4 load_words(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}
QT_FN void store_global(Words4* p, const Words4& v) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}
QT_FN void store_global(Words2* p, const Words2& v) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1])
               : "memory");
}

// ---- blocks that wait for each other

/// A word through which blocks of one launch tell each other that data is ready.
QT_FN void release_flag(u64* flag, u64 value) {
  asm volatile("st.release.gpu.global.b64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
QT_FN u64 acquire_flag(const u64* flag) {
  u64 value;
  asm volatile("ld.acquire.gpu.global.b64 %0, [%1];" : "=l"(value) : "l"(flag) : "memory");
  return value;
}

// ---- counters

/// A counter of the loaded code, which the host finds by its name.
#define QT_COUNTER(name) extern "C" __device__ unsigned long long name = 0
/// Adds to a counter that only people and qturn_stats read.
QT_FN void count_event(unsigned long long* counter, unsigned long long by) {
  atomicAdd(counter, by);
}

// ---- shared memory

// Tiles under the 128-byte swizzle start at multiples of 1024.
extern __shared__ __align__(1024) unsigned char dynamic_shared[];
QT_FN u32 shared_base() { return u32(__cvta_generic_to_shared(dynamic_shared)); }

QT_FN u32 load_shared_u8(u32 at) {
  u32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
QT_FN u32 load_shared_u16(u32 at) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
  return v;
}
QT_FN u32 load_shared_u32(u32 at) {
  u32 v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
QT_FN Words2 load_shared_2(u32 at) {
  Words2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(v.word[0]), "=r"(v.word[1])
               : "r"(at)
               : "memory");
  return v;
}
QT_FN Words4 load_shared_4(u32 at) {
  Words4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "r"(at)
               : "memory");
  return v;
}
QT_FN float load_shared_f32(u32 at) { return float_of(load_shared_u32(at)); }
QT_FN void store_shared_u8(u32 at, u32 v) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
QT_FN void store_shared_u16(u32 at, u32 v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(u16(v)) : "memory");
}
QT_FN void store_shared_u32(u32 at, u32 v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
QT_FN void store_shared_f32(u32 at, float v) { store_shared_u32(at, bits_of(v)); }
QT_FN void store_shared_2(u32 at, u32 a, u32 b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b) : "memory");
}
QT_FN void store_shared_4(u32 at, const Words4& v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}

/// 16 bytes from global to shared memory in the background; only `valid` of them (0..16) are read,
/// the rest become zero.
QT_FN void copy_async_16(u32 to, const void* from, u32 valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid)
               : "memory");
}
QT_FN void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most `pending` of this thread's last groups are still on their way.
template <int pending>
QT_FN void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- tensor cores of every architecture from sm_80 on

/// Four 8x8 matrices of 16-bit elements, one row address from each lane.
QT_FN Words4 load_matrix_4(u32 row) {
  Words4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "r"(row)
               : "memory");
  return v;
}

/// d[16x8] += a[16x16] b[8x16]^T in bf16 with binary32 sums.
QT_FN void mma_bf16(float (&d)[4], const Words4& a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
}

/// d[16x8] += a[16x32] b[8x32]^T in int8 with exact int32 sums.
QT_FN void mma_s8(i32 (&d)[4], const Words4& a, u32 b0, u32 b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "r"(b0), "r"(b1));
}

}  // namespace qt::cuda

#endif
