// Eight MX blocks in the lanes of AVX2 registers.
#ifndef QT_CPU_PRIMITIVES_LANES_AVX2_H
#define QT_CPU_PRIMITIVES_LANES_AVX2_H

#include "cpu/primitives_lanes.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

namespace qt {
namespace cpu {

struct Avx2Lanes {
  static constexpr int lanes = 8;
  using F = __m256;
  using U = __m256i;

  QT_CPU_INLINE U bits(F x) { return _mm256_castps_si256(x); }
  QT_CPU_INLINE F floats(U x) { return _mm256_castsi256_ps(x); }
  QT_CPU_INLINE U splat(u32 x) { return _mm256_set1_epi32(i32(x)); }
  QT_CPU_INLINE F splat_float(float x) { return _mm256_set1_ps(x); }

  QT_CPU_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  QT_CPU_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  QT_CPU_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  QT_CPU_INLINE F exact_mul_add(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }

  template <int count>
  QT_CPU_INLINE U left(U x) {
    return _mm256_slli_epi32(x, count);
  }
  template <int count>
  QT_CPU_INLINE U right(U x) {
    return _mm256_srli_epi32(x, count);
  }
  QT_CPU_INLINE U plus(U a, U b) { return _mm256_add_epi32(a, b); }
  QT_CPU_INLINE U minus(U a, U b) { return _mm256_sub_epi32(a, b); }
  QT_CPU_INLINE U both(U a, U b) { return _mm256_and_si256(a, b); }
  QT_CPU_INLINE U either(U a, U b) { return _mm256_or_si256(a, b); }
  QT_CPU_INLINE U flip(U a, U b) { return _mm256_xor_si256(a, b); }
  QT_CPU_INLINE U merge(U a, U b, U mask) { return either(a, both(b, mask)); }
  QT_CPU_INLINE U mask_or(U b, U mask, U c) { return either(both(b, mask), c); }
  QT_CPU_INLINE U below(U a, U b) {
    return _mm256_andnot_si256(_mm256_cmpeq_epi32(a, b),
                               _mm256_cmpeq_epi32(_mm256_min_epu32(a, b), a));
  }
  QT_CPU_INLINE U select(U mask, U yes, U no) { return _mm256_blendv_epi8(no, yes, mask); }
  QT_CPU_INLINE U greater(U a, U b) { return _mm256_max_epu32(a, b); }

  QT_CPU_INLINE U larger_magnitude(U a, F x) {
    return _mm256_max_epu32(a, both(bits(x), splat(kMagnitude)));
  }
  QT_CPU_INLINE F at_least_one(F x) {
    return floats(either(both(bits(x), splat(kSign)),
                         _mm256_max_epu32(both(bits(x), splat(kMagnitude)), splat(127u << 23))));
  }
  QT_CPU_INLINE F at_most_six(F x) {
    return floats(either(both(bits(x), splat(kSign)),
                         _mm256_min_epu32(both(bits(x), splat(kMagnitude)), splat(0x40c00000u))));
  }
  QT_CPU_INLINE U fixed_point(F x) {
    const U m = both(bits(x), splat(kMagnitude));
    const U small = _mm256_cvttps_epi32(mul(floats(m), splat_float(8388608.0f)));
    const U is_small = _mm256_cmpgt_epi32(splat(127u << 23), m);
    return select(is_small, plus(small, splat(kFixedPointOffset)), plus(m, splat(1u << 23)));
  }
  template <int low, int high>
  QT_CPU_INLINE U dot_halves(U sum, U x) {
    return plus(sum, dot_halves<low, high>(x));
  }
  template <int low, int high>
  QT_CPU_INLINE U dot_halves(U x) {
    return _mm256_madd_epi16(x, splat(u32(high) << 16 | u32(low)));
  }

  QT_CPU_INLINE U load_words(const u32* from) {
    return _mm256_loadu_si256(reinterpret_cast<const U*>(from));
  }
  QT_CPU_INLINE void store_words(u32* to, U x) { _mm256_storeu_si256(reinterpret_cast<U*>(to), x); }
  QT_CPU_INLINE F load(const float* from) { return _mm256_loadu_ps(from); }
  QT_CPU_INLINE void store(float* to, F x) { _mm256_storeu_ps(to, x); }
  QT_CPU_INLINE U load_halves(const u16* from) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  QT_CPU_INLINE F load_f16(const u16* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  QT_CPU_INLINE void load_across(const u8* const (&from)[8], U (&x)[16]) {
    QT_CPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      U words[8];
      QT_CPU_UNROLL
      for (int i = 0; i < 8; ++i)
        words[i] = _mm256_loadu_si256(reinterpret_cast<const U*>(from[i] + 32 * half));
      transpose(words);
      QT_CPU_UNROLL
      for (int i = 0; i < 8; ++i) x[8 * half + i] = words[i];
    }
  }
  QT_CPU_INLINE void load_across_f16(const u8* const (&from)[8], F* x) {
    QT_CPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      U words[8];
      QT_CPU_UNROLL
      for (int i = 0; i < 8; ++i)
        words[i] = bits(load_f16(reinterpret_cast<const u16*>(from[i] + 16 * half)));
      transpose(words);
      QT_CPU_UNROLL
      for (int i = 0; i < 8; ++i) x[8 * half + i] = floats(words[i]);
    }
  }
  /// Lane i of x[j] becomes lane j of x[i].
  QT_CPU_INLINE void transpose(U (&x)[8]) {
    U a[8], b[8];
    QT_CPU_UNROLL
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
      b[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
    }
    QT_CPU_UNROLL
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
      a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
      a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
      a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    QT_CPU_UNROLL
    for (int j = 0; j < 4; ++j) {
      x[j] = _mm256_permute2x128_si256(a[j], a[j + 4], 0x20);
      x[j + 4] = _mm256_permute2x128_si256(a[j], a[j + 4], 0x31);
    }
  }
  QT_CPU_INLINE void store_halves(u16* to, U x) {
    const U packed = _mm256_packus_epi32(x, x);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
  }
  QT_CPU_INLINE void store_f16(u16* to, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  QT_CPU_INLINE void load_quads(const u8* const (&from)[8], U (&x)[4]) {
    U a[4];  // half h of the i-th: lane 4 h + i
    QT_CPU_UNROLL
    for (int i = 0; i < 4; ++i)
      a[i] = _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(from[4 + i]),
                                 reinterpret_cast<const __m128i*>(from[i]));
    const U b0 = _mm256_unpacklo_epi32(a[0], a[1]), b1 = _mm256_unpackhi_epi32(a[0], a[1]);
    const U b2 = _mm256_unpacklo_epi32(a[2], a[3]), b3 = _mm256_unpackhi_epi32(a[2], a[3]);
    x[0] = _mm256_unpacklo_epi64(b0, b2);
    x[1] = _mm256_unpackhi_epi64(b0, b2);
    x[2] = _mm256_unpacklo_epi64(b1, b3);
    x[3] = _mm256_unpackhi_epi64(b1, b3);
  }
  QT_CPU_INLINE F values(U code) {
    const F table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    const U sign = _mm256_slli_epi32(both(code, splat(8u)), 28);
    return floats(either(bits(_mm256_permutevar8x32_ps(table, code)), sign));
  }
  QT_CPU_INLINE void store_across(u8* const (&to)[8], const U (&x)[4]) {
    const U a0 = _mm256_unpacklo_epi32(x[0], x[1]), a1 = _mm256_unpackhi_epi32(x[0], x[1]);
    const U a2 = _mm256_unpacklo_epi32(x[2], x[3]), a3 = _mm256_unpackhi_epi32(x[2], x[3]);
    // Half h of the i-th has the four words of lane 4 h + i.
    const U out[4] = {_mm256_unpacklo_epi64(a0, a2), _mm256_unpackhi_epi64(a0, a2),
                      _mm256_unpacklo_epi64(a1, a3), _mm256_unpackhi_epi64(a1, a3)};
    QT_CPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to[i]), _mm256_castsi256_si128(out[i]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to[4 + i]), _mm256_extracti128_si256(out[i], 1));
    }
  }
  QT_CPU_INLINE void store_bytes(u8* to, U x) {
    const U pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0,
                                    4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const U bytes = _mm256_shuffle_epi8(x, pick);
    _mm_storel_epi64(
        reinterpret_cast<__m128i*>(to),
        _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
  }
  QT_CPU_INLINE U twice(U x) {
    const U table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    return _mm256_shuffle_epi8(table, both(x, splat(0x0f0f0f0fu)));
  }
  QT_CPU_INLINE U add_bytes(U sum, U x) {
    const U pairs = _mm256_maddubs_epi16(splat(0x01010101u), x);
    return plus(sum, _mm256_madd_epi16(pairs, splat(0x00010001u)));
  }
  QT_CPU_INLINE void store_by_turns(u8* const (&to)[8], const U (&even)[4], const U (&odd)[4]) {
    U low[4], high[4];  // eight bytes of lanes 0 and 1, or 2 and 3, of each half
    QT_CPU_UNROLL
    for (int w = 0; w < 4; ++w) {
      low[w] = _mm256_unpacklo_epi8(even[w], odd[w]);
      high[w] = _mm256_unpackhi_epi8(even[w], odd[w]);
    }
    store_halves(to[0], to[4], _mm256_unpacklo_epi64(low[0], low[1]),
                 _mm256_unpacklo_epi64(low[2], low[3]));
    store_halves(to[1], to[5], _mm256_unpackhi_epi64(low[0], low[1]),
                 _mm256_unpackhi_epi64(low[2], low[3]));
    store_halves(to[2], to[6], _mm256_unpacklo_epi64(high[0], high[1]),
                 _mm256_unpacklo_epi64(high[2], high[3]));
    store_halves(to[3], to[7], _mm256_unpackhi_epi64(high[0], high[1]),
                 _mm256_unpackhi_epi64(high[2], high[3]));
  }
  QT_CPU_INLINE u32 lane_bits(U mask) { return u32(_mm256_movemask_ps(floats(mask))); }

  QT_CPU_INLINE void draw(const Noise& noise, const u64 (&first)[8], u64 offset, U (&word)[4]) {
    // Four calls to a register of 64-bit lanes, whose upper halves hold what multiplications
    // ignore: calls of even lanes in one, of odd lanes in another.
    const U a = _mm256_loadu_si256(reinterpret_cast<const U*>(first));
    const U b = _mm256_loadu_si256(reinterpret_cast<const U*>(first + 4));
    const U step = _mm256_set1_epi64x(i64(offset));
    const U even_first = _mm256_permute4x64_epi64(_mm256_unpacklo_epi64(a, b), 0xd8);
    const U odd_first = _mm256_permute4x64_epi64(_mm256_unpackhi_epi64(a, b), 0xd8);
    U even[4], odd[4];
    philox(noise, _mm256_add_epi64(even_first, step), even);
    philox(noise, _mm256_add_epi64(odd_first, step), odd);
    QT_CPU_UNROLL
    for (int w = 0; w < 4; ++w)
      word[w] = _mm256_blend_epi32(even[w], _mm256_slli_epi64(odd[w], 32), 0xaa);
  }

 private:
  QT_CPU_INLINE void store_halves(u8* lower, u8* upper, U x, U y) {
    _mm256_storeu_si256(reinterpret_cast<U*>(lower), _mm256_permute2x128_si256(x, y, 0x20));
    _mm256_storeu_si256(reinterpret_cast<U*>(upper), _mm256_permute2x128_si256(x, y, 0x31));
  }
  QT_CPU_INLINE void philox(const Noise& noise, U call, U (&c)[4]) {
    c[0] = call;
    c[1] = _mm256_srli_epi64(call, 32);
    c[2] = splat(noise.stream);
    c[3] = splat(noise.lane);
    u32 key0 = u32(noise.seed), key1 = u32(noise.seed >> 32);
    QT_CPU_UNROLL
    for (int round = 0; round < 7; ++round) {
      const U p0 = _mm256_mul_epu32(c[0], splat(0xd2511f53u));
      const U p1 = _mm256_mul_epu32(c[2], splat(0xcd9e8d57u));
      c[0] = flip(flip(_mm256_srli_epi64(p1, 32), c[1]), splat(key0));
      c[1] = p1;
      c[2] = flip(flip(_mm256_srli_epi64(p0, 32), c[3]), splat(key1));
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
