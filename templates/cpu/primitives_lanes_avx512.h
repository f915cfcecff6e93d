// Sixteen MX blocks in the lanes of AVX-512 registers.
#ifndef QT_CPU_PRIMITIVES_LANES_AVX512_H
#define QT_CPU_PRIMITIVES_LANES_AVX512_H

#include "cpu/primitives_lanes.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#include <immintrin.h>

namespace qt {
namespace cpu {

struct Avx512Lanes {
  static constexpr int lanes = 16;
  using F = __m512;
  using U = __m512i;

  QT_CPU_INLINE U bits(F x) { return _mm512_castps_si512(x); }
  QT_CPU_INLINE F floats(U x) { return _mm512_castsi512_ps(x); }
  QT_CPU_INLINE U splat(u32 x) { return _mm512_set1_epi32(i32(x)); }
  QT_CPU_INLINE F splat_float(float x) { return _mm512_set1_ps(x); }

  QT_CPU_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  QT_CPU_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  QT_CPU_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  QT_CPU_INLINE F exact_mul_add(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  template <int count>
  QT_CPU_INLINE U left(U x) {
    return _mm512_slli_epi32(x, count);
  }
  template <int count>
  QT_CPU_INLINE U right(U x) {
    return _mm512_srli_epi32(x, count);
  }
  QT_CPU_INLINE U plus(U a, U b) { return _mm512_add_epi32(a, b); }
  QT_CPU_INLINE U minus(U a, U b) { return _mm512_sub_epi32(a, b); }
  QT_CPU_INLINE U both(U a, U b) { return _mm512_and_si512(a, b); }
  QT_CPU_INLINE U either(U a, U b) { return _mm512_or_si512(a, b); }
  QT_CPU_INLINE U flip(U a, U b) { return _mm512_xor_si512(a, b); }
  QT_CPU_INLINE U merge(U a, U b, U mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xf8); }
  QT_CPU_INLINE U mask_or(U b, U mask, U c) { return _mm512_ternarylogic_epi32(b, mask, c, 0xea); }
  QT_CPU_INLINE U below(U a, U b) { return _mm512_movm_epi32(_mm512_cmplt_epu32_mask(a, b)); }
  QT_CPU_INLINE U select(U mask, U yes, U no) {
    return _mm512_ternarylogic_epi32(mask, yes, no, 0xca);
  }
  QT_CPU_INLINE U greater(U a, U b) { return _mm512_max_epu32(a, b); }

  QT_CPU_INLINE U larger_magnitude(U a, F x) {
    return _mm512_max_epu32(a, _mm512_and_si512(bits(x), splat(kMagnitude)));
  }
  QT_CPU_INLINE F at_least_one(F x) { return _mm512_range_ps(x, splat_float(1.0f), 0x03); }
  QT_CPU_INLINE F at_most_six(F x) { return _mm512_range_ps(x, splat_float(6.0f), 0x02); }
  QT_CPU_INLINE U fixed_point(F x) {
    const U m = _mm512_and_si512(bits(x), splat(kMagnitude));
    const __mmask16 large = _mm512_cmpge_epi32_mask(m, splat(127u << 23));
    // 1 + |x|, cut off, has |x| in units of 2^-23; from 1 on the bits are as they should be.
    const U small = bits(
        _mm512_add_round_ps(floats(m), splat_float(1.0f), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
    return _mm512_mask_add_epi32(small, large, m, splat(1u << 23));
  }
  template <int low, int high>
  QT_CPU_INLINE U dot_halves(U sum, U x) {
    return _mm512_dpwssd_epi32(sum, x, splat(u32(high) << 16 | u32(low)));
  }
  template <int low, int high>
  QT_CPU_INLINE U dot_halves(U x) {
    return _mm512_madd_epi16(x, splat(u32(high) << 16 | u32(low)));
  }

  QT_CPU_INLINE U load_words(const u32* from) { return _mm512_loadu_si512(from); }
  QT_CPU_INLINE void store_words(u32* to, U x) { _mm512_storeu_si512(to, x); }
  QT_CPU_INLINE F load(const float* from) { return _mm512_loadu_ps(from); }
  QT_CPU_INLINE void store(float* to, F x) { _mm512_storeu_ps(to, x); }
  QT_CPU_INLINE U load_halves(const u16* from) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  QT_CPU_INLINE void load_across(const u8* const (&from)[16], U (&x)[16]) {
    QT_CPU_UNROLL
    for (int i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(from[i]);
    transpose(x);
  }
  QT_CPU_INLINE void load_across_f16(const u8* const (&from)[16], F* x) {
    U bits_of_x[16];
    QT_CPU_UNROLL
    for (int i = 0; i < 16; ++i)
      bits_of_x[i] = bits(load_f16(reinterpret_cast<const u16*>(from[i])));
    transpose(bits_of_x);
    QT_CPU_UNROLL
    for (int i = 0; i < 16; ++i) x[i] = floats(bits_of_x[i]);
  }
  QT_CPU_INLINE F load_f16(const u16* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  /// Lane i of x[j] becomes lane j of x[i].
  QT_CPU_INLINE void transpose(U (&x)[16]) {
    U a[16], b[16];
    QT_CPU_UNROLL
    for (int i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
      b[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    // a[4 r + j]: in quarter q, word 4 q + j of lanes 4 r to 4 r + 3.
    QT_CPU_UNROLL
    for (int i = 0; i < 16; i += 4) {
      a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    QT_CPU_UNROLL
    for (int j = 0; j < 4; ++j) {
      const U even_low = _mm512_shuffle_i32x4(a[j], a[j + 4], 0x88);
      const U odd_low = _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd);
      const U even_high = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0x88);
      const U odd_high = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0xdd);
      x[j] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
      x[j + 4] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
      x[j + 8] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
      x[j + 12] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
    }
  }
  QT_CPU_INLINE void store_halves(u16* to, U x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(x));
  }
  QT_CPU_INLINE void store_f16(u16* to, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  QT_CPU_INLINE void load_quads(const u8* const (&from)[16], U (&x)[4]) {
    U a[4];  // quarter q of the i-th: lane 4 q + i
    QT_CPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_castsi128_si512(quad(from[i]));
      a[i] = _mm512_inserti32x4(a[i], quad(from[4 + i]), 1);
      a[i] = _mm512_inserti32x4(a[i], quad(from[8 + i]), 2);
      a[i] = _mm512_inserti32x4(a[i], quad(from[12 + i]), 3);
    }
    const U b0 = _mm512_unpacklo_epi32(a[0], a[1]), b1 = _mm512_unpackhi_epi32(a[0], a[1]);
    const U b2 = _mm512_unpacklo_epi32(a[2], a[3]), b3 = _mm512_unpackhi_epi32(a[2], a[3]);
    x[0] = _mm512_unpacklo_epi64(b0, b2);
    x[1] = _mm512_unpackhi_epi64(b0, b2);
    x[2] = _mm512_unpacklo_epi64(b1, b3);
    x[3] = _mm512_unpackhi_epi64(b1, b3);
  }
  QT_CPU_INLINE F values(U code) {
    const F table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                   -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(code, table);
  }
  QT_CPU_INLINE void store_across(u8* const (&to)[16], const U (&x)[4]) {
    const U a0 = _mm512_unpacklo_epi32(x[0], x[1]), a1 = _mm512_unpackhi_epi32(x[0], x[1]);
    const U a2 = _mm512_unpacklo_epi32(x[2], x[3]), a3 = _mm512_unpackhi_epi32(x[2], x[3]);
    // Quarter q of the i-th has the four words of lane 4 q + i.
    store_quarters<0>(to, _mm512_unpacklo_epi64(a0, a2));
    store_quarters<1>(to, _mm512_unpackhi_epi64(a0, a2));
    store_quarters<2>(to, _mm512_unpacklo_epi64(a1, a3));
    store_quarters<3>(to, _mm512_unpackhi_epi64(a1, a3));
  }
  QT_CPU_INLINE void store_bytes(u8* to, U x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
  }
  QT_CPU_INLINE U twice(U x) {
    const U table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    return _mm512_shuffle_epi8(table, _mm512_and_si512(x, splat(0x0f0f0f0fu)));
  }
  QT_CPU_INLINE U add_bytes(U sum, U x) { return _mm512_dpbusd_epi32(sum, splat(0x01010101u), x); }
  QT_CPU_INLINE void store_by_turns(u8* const (&to)[16], const U (&even)[4], const U (&odd)[4]) {
    U low[4], high[4];  // eight bytes of lanes 0 and 1, or 2 and 3, of each quarter
    QT_CPU_UNROLL
    for (int w = 0; w < 4; ++w) {
      low[w] = _mm512_unpacklo_epi8(even[w], odd[w]);
      high[w] = _mm512_unpackhi_epi8(even[w], odd[w]);
    }
    store_halves<0>(to, _mm512_unpacklo_epi64(low[0], low[1]),
                    _mm512_unpacklo_epi64(low[2], low[3]));
    store_halves<1>(to, _mm512_unpackhi_epi64(low[0], low[1]),
                    _mm512_unpackhi_epi64(low[2], low[3]));
    store_halves<2>(to, _mm512_unpacklo_epi64(high[0], high[1]),
                    _mm512_unpacklo_epi64(high[2], high[3]));
    store_halves<3>(to, _mm512_unpackhi_epi64(high[0], high[1]),
                    _mm512_unpackhi_epi64(high[2], high[3]));
  }
  QT_CPU_INLINE u32 lane_bits(U mask) { return u32(_mm512_movepi32_mask(mask)); }

  QT_CPU_INLINE void draw(const Noise& noise, const u64 (&first)[16], u64 offset, U (&word)[4]) {
    // Eight calls to a register of 64-bit lanes, whose upper halves hold what multiplications
    // ignore: calls of even lanes in one, of odd lanes in another.
    const U a = _mm512_loadu_si512(first), b = _mm512_loadu_si512(first + 8);
    const U step = _mm512_set1_epi64(i64(offset));
    const U even_lanes = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const U odd_lanes = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    U even[4], odd[4];
    philox(noise, _mm512_add_epi64(_mm512_permutex2var_epi64(a, even_lanes, b), step), even);
    philox(noise, _mm512_add_epi64(_mm512_permutex2var_epi64(a, odd_lanes, b), step), odd);
    QT_CPU_UNROLL
    for (int w = 0; w < 4; ++w)
      word[w] = _mm512_mask_blend_epi32(0xaaaa, even[w], _mm512_slli_epi64(odd[w], 32));
  }

 private:
  QT_CPU_INLINE __m128i quad(const u8* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  template <int i>
  QT_CPU_INLINE void store_quarters(u8* const (&to)[16], U x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to[i]), _mm512_castsi512_si128(x));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to[4 + i]), _mm512_extracti32x4_epi32(x, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to[8 + i]), _mm512_extracti32x4_epi32(x, 2));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to[12 + i]), _mm512_extracti32x4_epi32(x, 3));
  }
  /// Quarter q of x and of y: 32 bytes of lane 4 q + i.
  template <int i>
  QT_CPU_INLINE void store_halves(u8* const (&to)[16], U x, U y) {
    const U even = _mm512_permutex2var_epi64(x, _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13), y);
    const U odd = _mm512_permutex2var_epi64(x, _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15), y);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[i]), _mm512_castsi512_si256(even));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[4 + i]), _mm512_castsi512_si256(odd));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[8 + i]), _mm512_extracti64x4_epi64(even, 1));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to[12 + i]), _mm512_extracti64x4_epi64(odd, 1));
  }
  QT_CPU_INLINE void philox(const Noise& noise, U call, U (&c)[4]) {
    c[0] = call;
    c[1] = _mm512_srli_epi64(call, 32);
    c[2] = splat(noise.stream);
    c[3] = splat(noise.lane);
    u32 key0 = u32(noise.seed), key1 = u32(noise.seed >> 32);
    QT_CPU_UNROLL
    for (int round = 0; round < 7; ++round) {
      const U p0 = _mm512_mul_epu32(c[0], splat(0xd2511f53u));
      const U p1 = _mm512_mul_epu32(c[2], splat(0xcd9e8d57u));
      c[0] = _mm512_ternarylogic_epi32(_mm512_srli_epi64(p1, 32), c[1], splat(key0), 0x96);
      c[1] = p1;
      c[2] = _mm512_ternarylogic_epi32(_mm512_srli_epi64(p0, 32), c[3], splat(key1), 0x96);
      c[3] = p0;
      key0 += 0x9e3779b9u;
      key1 += 0xbb67ae85u;
    }
  }
};

}  // namespace cpu
}  // namespace qt

#endif
#endif
