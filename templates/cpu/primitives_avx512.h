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
};

}  // namespace cpu
}  // namespace qt

#endif
#endif
