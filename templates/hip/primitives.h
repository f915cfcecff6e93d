// What kernels for CDNA 4 (gfx950) ask of the machine. The first part has the names of
// cuda/primitives.h, in whose place this text stands: quantisers, epilogues and walks over tiles
// are one text for both vendors. The second part is AMD's own: copies into LDS, matrix cores.
//
// A "warp" of the shared texts is half of a wavefront of 64: their shuffles stay inside 32 lanes,
// and the other half may take another way. Nothing assumes lockstep: what must wait, says so.
// Shared memory (LDS) is reached through 32-bit addresses, which LDS pointers are.
#ifndef QT_HIP_PRIMITIVES_H
#define QT_HIP_PRIMITIVES_H
#define QT_CUDA_PRIMITIVES_H
#define QT_CUDA_PRIMITIVES_BF16_H

#include "mxfp4/platform.h"

// Behind the parameters of a lambda, which would else be called where it is used twice.
#define QT_INLINE __attribute__((always_inline))

// A kernel's entry: threads of a block, and waves that a SIMD should hold, which bounds registers.
#define QT_KERNEL(threads, waves)                                \
  extern "C" __attribute__((global))                             \
  __attribute__((amdgpu_flat_work_group_size(threads, threads))) \
  __attribute__((amdgpu_waves_per_eu(waves))) void

extern "C" __attribute__((shared)) __attribute__((aligned(1024))) unsigned char dynamic_shared[];

namespace qt::cuda {

struct alignas(8) Words2 {
  u32 word[2];
};
struct alignas(16) Words4 {
  u32 word[4];
};

using Vector2 = u32 __attribute__((ext_vector_type(2)));
using Vector4 = u32 __attribute__((ext_vector_type(4)));
template <class T>
using InGlobal = __attribute__((address_space(1))) T;
template <class T>
using InLds = __attribute__((address_space(3))) T;

// ---- places and barriers

QT_FN u32 thread_index() { return __builtin_amdgcn_workitem_id_x(); }
QT_FN u32 block_index() { return __builtin_amdgcn_workgroup_id_x(); }
QT_FN u32 block_index_y() { return __builtin_amdgcn_workgroup_id_y(); }
QT_FN u32 block_index_z() { return __builtin_amdgcn_workgroup_id_z(); }
/// The first of the arguments that the runtime adds (code object version 5 and later).
QT_FN u32 block_count() {
  return *(__attribute__((address_space(4))) const u32*)__builtin_amdgcn_implicitarg_ptr();
}
QT_FN u32 lane_index() { return thread_index() & 31u; }
QT_FN u32 warp_index() { return thread_index() >> 5; }

QT_FN void sync_block() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
QT_FN void sync_warp() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/// A value that the compiler keeps, instead of computing it anew where it is used.
QT_FN u32 kept(u32 x) {
  asm volatile("" : "+v"(x));
  return x;
}

// ---- lanes (all 32 of a warp take part)

QT_FN u32 shuffle_from(u32 x, u32 lane) {
  const u32 half = thread_index() & 32u;
  return u32(__builtin_amdgcn_ds_bpermute(int((half | lane) * 4u), int(x)));
}
QT_FN u32 shuffle_xor(u32 x, u32 mask) { return shuffle_from(x, lane_index() ^ mask); }
QT_FN float shuffle_xor(float x, u32 mask) { return float_of(shuffle_xor(bits_of(x), mask)); }
QT_FN u32 warp_max(u32 x) {
  for (u32 step = 16; step > 0; step /= 2) x = max_u32(x, shuffle_xor(x, step));
  return x;
}
QT_FN u32 warp_min(u32 x) {
  for (u32 step = 16; step > 0; step /= 2) x = min_u32(x, shuffle_xor(x, step));
  return x;
}
/// Bit l: lane l's answer.
QT_FN u32 warp_ballot(bool x) {
  return u32(__builtin_amdgcn_ballot_w64(x) >> (thread_index() & 32u));
}
QT_FN u32 count_bits(u32 x) { return u32(__builtin_popcount(x)); }

// ---- approximations of the hardware (CDNA ISA: errors of an ulp)

QT_FN float exp2_approx(float x) { return __builtin_amdgcn_exp2f(x); }
QT_FN float reciprocal_approx(float x) { return __builtin_amdgcn_rcpf(x); }

// ---- arithmetic that must be exactly one instruction's rounding

QT_FN float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/// Rounded toward zero; subnormal results are kept. The product is exact in binary64.
QT_FN float mul_rz(float a, float b) {
  const double exact = double(a) * double(b);
  const float nearest = float(exact);
  const double size = exact < 0.0 ? -exact : exact;
  return double(float_of(bits_of(nearest) & 0x7fffffffu)) > size ? float_of(bits_of(nearest) - 1u)
                                                                 : nearest;
}
QT_FN float magnitude(float x) { return __builtin_fabsf(x); }
QT_FN float max_number(float a, float b) { return __builtin_fmaxf(a, b); }
QT_FN float min_number(float a, float b) { return __builtin_fminf(a, b); }
/// NaN if either is NaN.
QT_FN float max_or_nan(float a, float b) { return a > b || a != a ? a : b; }
/// The whole product, low word first.
QT_FN Words2 multiply_wide(u32 a, u32 b) {
  const u64 product = u64(a) * b;
  return {{u32(product), u32(product >> 32)}};
}
/// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes (high:low); selectors' bit
/// 3 replicates that byte's sign.
QT_FN u32 permute_bytes(u32 low, u32 high, u32 selector) {
  const u64 bytes = u64(high) << 32 | low;
  u32 out = 0;
  QT_UNROLL
  for (u32 i = 0; i < 4u; ++i) {
    const u32 select = selector >> (4u * i);
    const u32 byte = u32(bytes >> (8u * (select & 7u))) & 0xffu;
    out |= (select & 8u ? (byte & 0x80u ? 0xffu : 0u) : byte) << (8u * i);
  }
  return out;
}
/// The upper word of (high:low) << shift, shift in 0..31.
QT_FN u32 funnel_left(u32 low, u32 high, u32 shift) {
  return u32((u64(high) << 32 | low) << shift >> 32);
}

/// Two binary32 values to bf16 or f16, nearest even, `low` in the lower half.
QT_FN u32 pack_bf16(float low, float high) {
  u32 d;
  asm("v_cvt_pk_bf16_f32 %0, %1, %2" : "=v"(d) : "v"(low), "v"(high));
  return d;
}
QT_FN u32 pack_f16(float low, float high) {
  return u32(__builtin_bit_cast(u16, _Float16(low))) | u32(__builtin_bit_cast(u16, _Float16(high)))
                                                           << 16;
}
QT_FN float f16_to_float(u16 h) { return float(__builtin_bit_cast(_Float16, h)); }
/// Two bf16 products a * b + c, subnormals kept; each sum is rounded to binary32 first.
QT_FN u32 fma_bf16x2(u32 a, u32 b, u32 c) {
  return pack_bf16(
      fma_rn(float_of(a << 16), float_of(b << 16), float_of(c << 16)),
      fma_rn(float_of(a & 0xffff0000u), float_of(b & 0xffff0000u), float_of(c & 0xffff0000u)));
}

// ---- global memory

QT_FN Words4 load_global(const Words4* p) {
  return __builtin_bit_cast(Words4, *(InGlobal<const Vector4>*)p);
}
QT_FN Words2 load_global(const Words2* p) {
  return __builtin_bit_cast(Words2, *(InGlobal<const Vector2>*)p);
}
QT_FN Words4 load_words(const Words4* p) { return load_global(p); }
QT_FN void store_global(Words4* p, const Words4& v) {
  *(InGlobal<Vector4>*)p = __builtin_bit_cast(Vector4, v);
}
QT_FN void store_global(Words2* p, const Words2& v) {
  *(InGlobal<Vector2>*)p = __builtin_bit_cast(Vector2, v);
}

// ---- blocks that wait for each other

/// A word through which blocks of one launch tell each other that data is ready.
QT_FN void release_flag(u64* flag, u64 value) {
  __hip_atomic_store((InGlobal<u64>*)flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
QT_FN u64 acquire_flag(const u64* flag) {
  return __hip_atomic_load((InGlobal<u64>*)flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT);
}

// ---- shared memory

QT_FN u32 shared_base() { return u32(u64((InLds<unsigned char>*)dynamic_shared)); }

QT_FN u32 load_shared_u8(u32 at) { return *(InLds<u8>*)at; }
QT_FN u32 load_shared_u16(u32 at) { return *(InLds<u16>*)at; }
QT_FN u32 load_shared_u32(u32 at) { return *(InLds<u32>*)at; }
QT_FN Words2 load_shared_2(u32 at) { return __builtin_bit_cast(Words2, *(InLds<Vector2>*)at); }
QT_FN Words4 load_shared_4(u32 at) { return __builtin_bit_cast(Words4, *(InLds<Vector4>*)at); }
QT_FN float load_shared_f32(u32 at) { return float_of(load_shared_u32(at)); }
QT_FN void store_shared_u8(u32 at, u32 v) { *(InLds<u8>*)at = u8(v); }
QT_FN void store_shared_u16(u32 at, u32 v) { *(InLds<u16>*)at = u16(v); }
QT_FN void store_shared_u32(u32 at, u32 v) { *(InLds<u32>*)at = v; }
QT_FN void store_shared_f32(u32 at, float v) { store_shared_u32(at, bits_of(v)); }
QT_FN void store_shared_2(u32 at, u32 a, u32 b) { *(InLds<Vector2>*)at = Vector2{a, b}; }
QT_FN void store_shared_4(u32 at, const Words4& v) {
  *(InLds<Vector4>*)at = __builtin_bit_cast(Vector4, v);
}

/// 16 bytes from global to shared memory, of which only `valid` (0..16) are read and the rest
/// become zero; by a register, since LDS-direct loads do not take every lane its own place.
QT_FN void copy_async_16(u32 to, const void* from, u32 valid) {
  Words4 v = {};
  if (valid == 16u) {
    v = load_global(static_cast<const Words4*>(from));
  } else {
    QT_UNROLL
    for (u32 i = 0; i < 16u; ++i)
      if (i < valid) v.word[i / 4u] |= u32(static_cast<const u8*>(from)[i]) << (8u * (i % 4u));
  }
  store_shared_4(to, v);
}
QT_FN void copy_async_commit() {}
template <int pending>
QT_FN void copy_async_wait() {}

}  // namespace qt::cuda

namespace qt::hip {

using cuda::Words4;

// ---- the wavefront

QT_FN u32 wave_lane() { return cuda::thread_index() & 63u; }
/// The same value in every lane, known to the compiler as such.
QT_FN u32 wave_index() {
  return u32(__builtin_amdgcn_readfirstlane(int(cuda::thread_index() >> 6)));
}

// ---- copies that go from global memory to LDS without a register, in order

/// Lane l's 16 bytes at `from` to LDS byte `to` + 16 l; `to` is the same in every lane. The
/// compiler does not know of the copy: wait for it by wait_copies.
QT_FN void copy_to_lds_16(u32 to, const u8* from) {
  asm volatile("s_nop 0\n\tglobal_load_lds_dwordx4 %1, off" ::"{m0}"(to), "v"(from) : "memory");
}
/// Lane l's 4 bytes to LDS byte `to` + 4 l.
QT_FN void copy_to_lds_4(u32 to, const u8* from) {
  asm volatile("s_nop 0\n\tglobal_load_lds_dword %1, off" ::"{m0}"(to), "v"(from) : "memory");
}
/// Until at most `pending` (0..63) of this wave's last memory accesses are still on their way.
template <int pending>
QT_FN void wait_copies() {
  static_assert(pending >= 0 && pending < 64, "vmcnt counts to 63");
  asm volatile("s_waitcnt vmcnt(%0)" ::"n"(pending) : "memory");
}
/// A barrier of the block for what its threads have stored to and read from LDS. Copies in flight
/// stay in flight.
QT_FN void sync_lds() { asm volatile("s_waitcnt lgkmcnt(0)\n\ts_barrier" ::: "memory"); }

// ---- matrix cores: MXFP4 by MXFP4, binary32 sums
//
// Lane l holds one block of 32 codes of each operand (16 bytes, even elements in low nibbles), and
// its E8M0 byte in the lowest byte of a word.

using Sums4 = float __attribute__((ext_vector_type(4)));
using Sums16 = float __attribute__((ext_vector_type(16)));
using Operand = int __attribute__((ext_vector_type(8)));
constexpr int kE2M1 = 4;  // the instruction's number of the type

QT_FN Operand operand_of(const Words4& x) {
  return Operand{int(x.word[0]), int(x.word[1]), int(x.word[2]), int(x.word[3]), 0, 0, 0, 0};
}

/// d[16 x 16] += a[16 x 128] b[16 x 128]^T. Lane l: row l % 16 of a and of b, block l / 16 of K;
/// d[i] is element (4 (l / 16) + i, l % 16).
QT_FN void mfma_scale_16x16x128(float (&d)[4], const Words4& a, u32 a_scale, const Words4& b,
                                u32 b_scale) {
  Sums4 sums = {d[0], d[1], d[2], d[3]};
  sums = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(operand_of(a), operand_of(b), sums, kE2M1,
                                                          kE2M1, 0, int(a_scale), 0, int(b_scale));
  QT_UNROLL
  for (int i = 0; i < 4; ++i) d[i] = sums[i];
}

/// d[32 x 32] += a[32 x 64] b[32 x 64]^T. Lane l: row l % 32 of a and of b, block l / 32 of K; d[i]
/// is element (8 (i / 4) + 4 (l / 32) + i % 4, l % 32).
QT_FN void mfma_scale_32x32x64(float (&d)[16], const Words4& a, u32 a_scale, const Words4& b,
                               u32 b_scale) {
  Sums16 sums;
  QT_UNROLL
  for (int i = 0; i < 16; ++i) sums[i] = d[i];
  sums = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(operand_of(a), operand_of(b), sums, kE2M1,
                                                         kE2M1, 0, int(a_scale), 0, int(b_scale));
  QT_UNROLL
  for (int i = 0; i < 16; ++i) d[i] = sums[i];
}

// ---- matrix cores: bf16 or f16, binary32 sums
//
// Lane l holds eight neighbours of K (16 bytes) of each operand: row l % 16, from k = 8 (l / 16)
// on.

using Bf16x8 = __bf16 __attribute__((ext_vector_type(8)));
using F16x8 = _Float16 __attribute__((ext_vector_type(8)));

/// d[16 x 16] += a[16 x 32] b[16 x 32]^T; d[i] is element (4 (l / 16) + i, l % 16).
QT_FN void mfma_bf16_16x16x32(float (&d)[4], const Words4& a, const Words4& b) {
  Sums4 sums = {d[0], d[1], d[2], d[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(Bf16x8, a),
                                                 __builtin_bit_cast(Bf16x8, b), sums, 0, 0, 0);
  QT_UNROLL
  for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
QT_FN void mfma_f16_16x16x32(float (&d)[4], const Words4& a, const Words4& b) {
  Sums4 sums = {d[0], d[1], d[2], d[3]};
  sums = __builtin_amdgcn_mfma_f32_16x16x32_f16(__builtin_bit_cast(F16x8, a),
                                                __builtin_bit_cast(F16x8, b), sums, 0, 0, 0);
  QT_UNROLL
  for (int i = 0; i < 4; ++i) d[i] = sums[i];
}

/// The two codes of byte `byte`, low nibble in the lower half, exactly.
template <int byte>
QT_FN u32 fp4_pair_to_bf16(u32 codes) {
  return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(codes, 1.0f, byte));
}
template <int byte>
QT_FN u32 fp4_pair_to_f16(u32 codes) {
  return __builtin_bit_cast(u32, __builtin_amdgcn_cvt_scalef32_pk_f16_fp4(codes, 1.0f, byte));
}

}  // namespace qt::hip

#endif
