// Vectors of one panel's 16 columns for AVX-512 with byte dot products (VNNI).
#ifndef QT_CPU_PRIMITIVES_AVX512_H
#define QT_CPU_PRIMITIVES_AVX512_H

#include "cpu/primitives_portable.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VNNI__)
#include <immintrin.h>

namespace qt {
namespace cpu {

struct Avx512 {
  using Floats = __m512;
  using Codes = __m512i;  // 2q + kCodeBias, byte 4c + j for row c and the j-th of four k
  using Dots = __m512i;
  using Quad = __m512i;

  QT_CPU_INLINE Floats zero() { return _mm512_setzero_ps(); }
  QT_CPU_INLINE Floats load(const float* from) { return _mm512_loadu_ps(from); }
  QT_CPU_INLINE void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
  QT_CPU_INLINE Floats mul(Floats x, float y) { return _mm512_mul_ps(x, _mm512_set1_ps(y)); }
  QT_CPU_INLINE Floats mul(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
  QT_CPU_INLINE Floats fma(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }

  QT_CPU_INLINE void decode(const u8* packed, Codes& low, Codes& high) {
    const __m512i bytes = _mm512_loadu_si512(packed);
    const __m512i shifted = _mm512_srli_epi16(bytes, 4);
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
#if defined(__AVX512VBMI__)
    // The table repeats every 16 bytes, so the index bits above the nibble need no mask.
    low = _mm512_permutexvar_epi8(bytes, table);
    high = _mm512_permutexvar_epi8(shifted, table);
#else
    const __m512i nibble = _mm512_set1_epi8(15);
    low = _mm512_shuffle_epi8(table, _mm512_and_si512(bytes, nibble));
    high = _mm512_shuffle_epi8(table, _mm512_and_si512(shifted, nibble));
#endif
  }
  QT_CPU_INLINE Quad quad(const i8* a) {
    i32 four;
    __builtin_memcpy(&four, a, sizeof four);
    return _mm512_set1_epi32(four);
  }
  QT_CPU_INLINE Dots dot_begin(i32 correction) { return _mm512_set1_epi32(correction); }
  QT_CPU_INLINE Dots dot4(Dots sums, Codes b, Quad a) { return _mm512_dpbusd_epi32(sums, b, a); }
  QT_CPU_INLINE Floats dot_end(Dots sums, i32) { return _mm512_cvtepi32_ps(sums); }

  QT_CPU_INLINE Floats panel_scale_low(const u8* bytes) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_add_epi32(wide, _mm512_set1_epi32(10)), 23));
  }
  QT_CPU_INLINE bool any_wide(const u8* bytes) {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i least = _mm_set1_epi8(static_cast<char>(kWideByte));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(scales, least), scales)) != 0;
  }

  QT_CPU_INLINE void weights(const u8* packed, Floats (&out)[8]) {
    const __m512i words = _mm512_loadu_si512(packed);
    const __m512 table =
        _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
    // The permutation looks at the low four bits of an index only.
    QT_CPU_UNROLL
    for (unsigned j = 0; j < 4; ++j) {
      out[j] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * j), table);
      out[4 + j] = _mm512_permutexvar_ps(_mm512_srli_epi32(words, 8 * j + 4), table);
    }
  }
  QT_CPU_INLINE Floats broadcast(float x) { return _mm512_set1_ps(x); }
  QT_CPU_INLINE Floats weight_scale_low(const u8* bytes) {
    const __m512i wide =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_sub_epi32(wide, _mm512_set1_epi32(1)), 23));
  }
  QT_CPU_INLINE bool any_extreme(const u8* bytes) {
    const __m128i next = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)),
                                      _mm_set1_epi8(1));  // 255, 0, 1 become 0, 1, 2
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(next, _mm_set1_epi8(2)), next)) != 0;
  }
  QT_CPU_INLINE void widen_bf16(const u16* from, float* to) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm512_storeu_si512(to, _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  }
  QT_CPU_INLINE void widen_f16(const u16* from, float* to) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    _mm512_storeu_ps(to, _mm512_cvtph_ps(half));
  }
};

}  // namespace cpu
}  // namespace qt

#endif
#endif
