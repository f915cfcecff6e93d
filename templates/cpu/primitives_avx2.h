// Vectors of one panel's 16 columns, two registers each, for AVX2 with FMA (and AVX-VNNI if there).
#ifndef QT_CPU_PRIMITIVES_AVX2_H
#define QT_CPU_PRIMITIVES_AVX2_H

#include "cpu/primitives_portable.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace qt {
namespace cpu {

struct Avx2 {
  struct Floats {
    __m256 v[2];
  };
  struct Codes {
    __m256i v[2];  // 2q + kCodeBias, byte 4c + j for row c and the j-th of four k
  };
  // With AVX-VNNI 8 sums of 32 bits each; else 16 sums of 16 bits, two for each column: at most
  // 16 products of 24 * 12 each.
  struct Dots {
    __m256i v[2];
  };
  using Quad = __m256i;

  QT_CPU_INLINE Floats zero() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
  QT_CPU_INLINE Floats load(const float* from) {
    return {{_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}};
  }
  QT_CPU_INLINE void store(float* to, const Floats& x) {
    _mm256_storeu_ps(to, x.v[0]);
    _mm256_storeu_ps(to + 8, x.v[1]);
  }
  QT_CPU_INLINE Floats mul(const Floats& x, float y) {
    const __m256 all = _mm256_set1_ps(y);
    return {{_mm256_mul_ps(x.v[0], all), _mm256_mul_ps(x.v[1], all)}};
  }
  QT_CPU_INLINE Floats mul(const Floats& x, const Floats& y) {
    return {{_mm256_mul_ps(x.v[0], y.v[0]), _mm256_mul_ps(x.v[1], y.v[1])}};
  }
  QT_CPU_INLINE Floats fma(const Floats& x, const Floats& y, const Floats& z) {
    return {{_mm256_fmadd_ps(x.v[0], y.v[0], z.v[0]), _mm256_fmadd_ps(x.v[1], y.v[1], z.v[1])}};
  }

  QT_CPU_INLINE void decode(const u8* packed, Codes& low, Codes& high) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int i = 0; i < 2; ++i) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed + 32 * i));
      low.v[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble));
      high.v[i] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble));
    }
  }
  QT_CPU_INLINE Quad quad(const i8* a) {
    i32 four;
    __builtin_memcpy(&four, a, sizeof four);
    return _mm256_set1_epi32(four);
  }
#if defined(__AVXVNNI__)
  QT_CPU_INLINE Dots dot_begin(i32 correction) {
    return {{_mm256_set1_epi32(correction), _mm256_set1_epi32(correction)}};
  }
  QT_CPU_INLINE Dots dot4(const Dots& sums, const Codes& b, Quad a) {
    return {{_mm256_dpbusd_avx_epi32(sums.v[0], b.v[0], a),
             _mm256_dpbusd_avx_epi32(sums.v[1], b.v[1], a)}};
  }
  QT_CPU_INLINE Floats dot_end(const Dots& sums, i32) {
    return {{_mm256_cvtepi32_ps(sums.v[0]), _mm256_cvtepi32_ps(sums.v[1])}};
  }
#else
  QT_CPU_INLINE Dots dot_begin(i32) { return {{_mm256_setzero_si256(), _mm256_setzero_si256()}}; }
  QT_CPU_INLINE Dots dot4(const Dots& sums, const Codes& b, Quad a) {
    return {{_mm256_add_epi16(sums.v[0], _mm256_maddubs_epi16(b.v[0], a)),
             _mm256_add_epi16(sums.v[1], _mm256_maddubs_epi16(b.v[1], a))}};
  }
  QT_CPU_INLINE Floats dot_end(const Dots& sums, i32 correction) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i all = _mm256_set1_epi32(correction);
    Floats out;
    for (int i = 0; i < 2; ++i)
      out.v[i] = _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(sums.v[i], ones), all));
    return out;
  }
#endif

  QT_CPU_INLINE Floats panel_scale_low(const u8* bytes) {
    Floats out;
    for (int i = 0; i < 2; ++i) {
      const __m256i wide =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 8 * i)));
      out.v[i] =
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(wide, _mm256_set1_epi32(10)), 23));
    }
    return out;
  }
  QT_CPU_INLINE bool any_wide(const u8* bytes) {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    const __m128i least = _mm_set1_epi8(static_cast<char>(kWideByte));
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(scales, least), scales)) != 0;
  }

  QT_CPU_INLINE void weights(const u8* packed, Floats (&out)[8]) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    const __m256i nibble = _mm256_set1_epi8(15);
    QT_CPU_UNROLL
    for (int i = 0; i < 2; ++i) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(packed + 32 * i));
      const __m256i codes[2] = {
          _mm256_shuffle_epi8(table, _mm256_and_si256(bytes, nibble)),
          _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), nibble))};
      QT_CPU_UNROLL
      for (int h = 0; h < 2; ++h) {
        // Byte j of each row's four, moved to the top and down again with its sign.
        QT_CPU_UNROLL
        for (int j = 0; j < 4; ++j)
          out[4 * h + j].v[i] =
              _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(codes[h], 24 - 8 * j), 24));
      }
    }
  }
  QT_CPU_INLINE Floats broadcast(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
  QT_CPU_INLINE Floats weight_scale_low(const u8* bytes) {
    Floats out;
    for (int i = 0; i < 2; ++i) {
      const __m256i wide =
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 8 * i)));
      out.v[i] =
          _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(wide, _mm256_set1_epi32(1)), 23));
    }
    return out;
  }
  QT_CPU_INLINE bool any_extreme(const u8* bytes) {
    const __m128i next = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)),
                                      _mm_set1_epi8(1));  // 255, 0, 1 become 0, 1, 2
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(next, _mm_set1_epi8(2)), next)) != 0;
  }
  QT_CPU_INLINE void widen_bf16(const u16* from, float* to) {
    for (int i = 0; i < 2; ++i) {
      const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8 * i));
      _mm256_storeu_ps(to + 8 * i,
                       _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16)));
    }
  }
  QT_CPU_INLINE void widen_f16(const u16* from, float* to) {
#if defined(__F16C__)
    for (int i = 0; i < 2; ++i)
      _mm256_storeu_ps(
          to + 8 * i,
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 8 * i))));
#else
    for (int i = 0; i < 16; ++i) to[i] = f32_from_f16(from[i]);
#endif
  }
};

}  // namespace cpu
}  // namespace qt

#endif
#endif
