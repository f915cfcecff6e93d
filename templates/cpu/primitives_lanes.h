// Vectors whose lanes are MX blocks, in the vector types that GCC and clang share: any machine.
//
// A register holds element j (or word j) of several blocks, so that rotation, maximum, scale and
// rounding need no shuffles. Other instruction sets have the same functions under their own names.
#ifndef QT_CPU_PRIMITIVES_LANES_H
#define QT_CPU_PRIMITIVES_LANES_H

#include "cpu/primitives_portable.h"
#include "mxfp4/noise.h"

namespace qt {
namespace cpu {

/// Whether a Config states all its members as constants.
template <class Config>
constexpr bool is_constant = __is_empty(Config);

constexpr u32 kFixedPointOffset = 127u << 23;

/// Fetches the line that holds `address`, to be written (any address will do).
QT_CPU_INLINE void prefetch_to_write(const void* address) { __builtin_prefetch(address, 1, 3); }

template <i64 count>
QT_CPU_INLINE void copy_bytes(u8* to, const u8* from) {
  __builtin_memcpy(to, from, count);
}

struct PortableLanes {
  static constexpr int lanes = 4;
  typedef float F __attribute__((vector_size(16)));
  typedef u32 U __attribute__((vector_size(16)));
  typedef i32 I __attribute__((vector_size(16)));

  QT_CPU_INLINE U bits(F x) { return (U)x; }
  QT_CPU_INLINE F floats(U x) { return (F)x; }
  QT_CPU_INLINE U splat(u32 x) { return U{} + x; }
  QT_CPU_INLINE F splat_float(float x) { return floats(splat(bits_of(x))); }

  QT_CPU_INLINE F add(F a, F b) { return a + b; }
  QT_CPU_INLINE F sub(F a, F b) { return a - b; }
  QT_CPU_INLINE F mul(F a, F b) { return a * b; }
  /// a * b + c where a * b is exact, so that one rounding or two are the same.
  QT_CPU_INLINE F exact_mul_add(F a, F b, F c) { return a * b + c; }

  template <int count>
  QT_CPU_INLINE U left(U x) {
    return x << count;
  }
  template <int count>
  QT_CPU_INLINE U right(U x) {
    return x >> count;
  }
  QT_CPU_INLINE U plus(U a, U b) { return a + b; }
  QT_CPU_INLINE U minus(U a, U b) { return a - b; }
  QT_CPU_INLINE U both(U a, U b) { return a & b; }
  QT_CPU_INLINE U either(U a, U b) { return a | b; }
  QT_CPU_INLINE U flip(U a, U b) { return a ^ b; }
  /// a, and what b has under the mask.
  QT_CPU_INLINE U merge(U a, U b, U mask) { return a | (b & mask); }
  /// b under the mask, and ones of c, which lie outside it.
  QT_CPU_INLINE U mask_or(U b, U mask, U c) { return (b & mask) | c; }
  /// All ones where a < b, as unsigned numbers.
  QT_CPU_INLINE U below(U a, U b) { return (U)(a < b); }
  QT_CPU_INLINE U select(U mask, U yes, U no) { return (mask & yes) | (~mask & no); }
  QT_CPU_INLINE U greater(U a, U b) { return select(below(a, b), b, a); }

  /// The larger of a and |x|, as bits, with NaN on top.
  QT_CPU_INLINE U larger_magnitude(U a, F x) {
    // Signed comparison, which SSE2 has, does for numbers without their signs.
    const I m = (I)(bits(x) & kMagnitude);
    return (U)(m > (I)a ? m : (I)a);
  }
  /// The sign of x with the larger of |x| and 1: x is not NaN, or the lane is not used.
  QT_CPU_INLINE F at_least_one(F x) {
    const I m = (I)(bits(x) & kMagnitude);
    const I one = (I)splat(127u << 23);
    return floats((U)(m > one ? m : one) | (bits(x) & kSign));
  }
  /// The sign of x with the lesser of |x| and 6.
  QT_CPU_INLINE F at_most_six(F x) {
    const I m = (I)(bits(x) & kMagnitude);
    const I six = (I)splat(0x40c00000u);
    return floats((U)(m < six ? m : six) | (bits(x) & kSign));
  }
  /// |x| < 8 on the grid of codes in fixed point, as qt::e2m1_fixed_point, plus kFixedPointOffset.
  QT_CPU_INLINE U fixed_point(F x) {
    const U m = bits(x) & kMagnitude;
    const U small = (U) __builtin_convertvector(floats(m) * 8388608.0f, I);
    return select((U)((I)m < (I)splat(127u << 23)), small + kFixedPointOffset, m + (1u << 23));
  }
  /// sum + low half * low + high half * high, halves and weights as signed 16-bit numbers.
  template <int low, int high>
  QT_CPU_INLINE U dot_halves(U sum, U x) {
    const I lower = (I)(x << 16) >> 16, upper = (I)x >> 16;
    return sum + (U)lower * u32(low) + (U)upper * u32(high);
  }
  template <int low, int high>
  QT_CPU_INLINE U dot_halves(U x) {
    return dot_halves<low, high>(U{}, x);
  }

  QT_CPU_INLINE U load_words(const u32* from) {
    U x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
  }
  QT_CPU_INLINE void store_words(u32* to, U x) { __builtin_memcpy(to, &x, sizeof x); }
  QT_CPU_INLINE F load(const float* from) {
    F x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
  }
  QT_CPU_INLINE void store(float* to, F x) { __builtin_memcpy(to, &x, sizeof x); }
  /// One 16-bit number a lane, from memory aligned to 2 bytes.
  QT_CPU_INLINE U load_halves(const u16* from) {
    U x = {};
    for (int i = 0; i < 4; ++i) x[i] = from[i];
    return x;
  }
  /// Word j of the 64 bytes at from[lane], for all j.
  QT_CPU_INLINE void load_across(const u8* const (&from)[4], U (&x)[16]) {
    QT_CPU_UNROLL
    for (int part = 0; part < 4; ++part) {
      U words[4];
      for (int i = 0; i < 4; ++i) __builtin_memcpy(&words[i], from[i] + 16 * part, sizeof words[i]);
      transpose(words);
      QT_CPU_UNROLL
      for (int i = 0; i < 4; ++i) x[4 * part + i] = words[i];
    }
  }
  /// The same for 16 numbers in f16 at from[lane].
  QT_CPU_INLINE void load_across_f16(const u8* const (&from)[4], F* x) {
    for (int i = 0; i < 4; ++i) {
      u16 halves[16];
      __builtin_memcpy(halves, from[i], sizeof halves);
      QT_CPU_UNROLL
      for (int j = 0; j < 16; ++j) x[j][i] = f32_from_f16(halves[j]);
    }
  }
  QT_CPU_INLINE F load_f16(const u16* from) {
    F x = {};
    for (int i = 0; i < 4; ++i) x[i] = f32_from_f16(from[i]);
    return x;
  }
  QT_CPU_INLINE void store_halves(u16* to, U x) {
    for (int i = 0; i < 4; ++i) to[i] = u16(x[i]);
  }
  /// Rounded to nearest even; NaN stays NaN.
  QT_CPU_INLINE void store_f16(u16* to, F x) {
    for (int i = 0; i < 4; ++i) to[i] = f16_from_f32(x[i]);
  }
  /// Lane i of x[j] becomes lane j of x[i].
  QT_CPU_INLINE void transpose(U (&x)[4]) {
    const U a = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const U b = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const U c = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const U d = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
  }
  /// Word j of the 16 bytes at from[lane].
  QT_CPU_INLINE void load_quads(const u8* const (&from)[4], U (&x)[4]) {
    for (int i = 0; i < 4; ++i) __builtin_memcpy(&x[i], from[i], sizeof x[i]);
    transpose(x);
  }
  /// The values of codes 0 to 15.
  QT_CPU_INLINE F values(U code) {
    const U m = code & 7u;
    const U magnitude = select((U)(m < 2u), m * 0x3f000000u, (m << 22) + (126u << 23));
    return floats(magnitude | ((code & 8u) << 28));
  }
  /// Four words of each lane to to[lane].
  QT_CPU_INLINE void store_across(u8* const (&to)[4], const U (&x)[4]) {
    U words[4] = {x[0], x[1], x[2], x[3]};
    transpose(words);
    for (int i = 0; i < 4; ++i) __builtin_memcpy(to[i], &words[i], sizeof words[i]);
  }
  QT_CPU_INLINE void store_bytes(u8* to, U x) {
    for (int i = 0; i < 4; ++i) to[i] = u8(x[i]);
  }
  /// 2q of the codes in the low nibbles of all bytes.
  QT_CPU_INLINE U twice(U x) {
    typedef signed char B __attribute__((vector_size(16)));
    const B code = (B)(x & 0x0f0f0f0fu);
    const B m = code & 7;
    // A true comparison is -1.
    const B magnitude = m - (m > 4) - (m > 5) + ((m > 6) & 3);
    const B negative = code > 7;
    return (U)((magnitude ^ negative) - negative);
  }
  /// sum + the four signed bytes of x.
  QT_CPU_INLINE U add_bytes(U sum, U x) {
    const I all = (I)x;
    return sum + (U)((all << 24 >> 24) + (all << 16 >> 24) + (all << 8 >> 24) + (all >> 24));
  }
  /// 32 bytes of each lane to to[lane]: bytes of even[w] and odd[w] by turns.
  QT_CPU_INLINE void store_by_turns(u8* const (&to)[4], const U (&even)[4], const U (&odd)[4]) {
    for (int i = 0; i < 4; ++i)
      for (int w = 0; w < 4; ++w)
        for (int b = 0; b < 4; ++b) {
          to[i][8 * w + 2 * b] = u8(even[w][i] >> (8 * b));
          to[i][8 * w + 2 * b + 1] = u8(odd[w][i] >> (8 * b));
        }
  }
  /// Bit i is set where lane i of a mask is.
  QT_CPU_INLINE u32 lane_bits(U mask) {
    u32 out = 0;
    for (int i = 0; i < 4; ++i) out |= (mask[i] & 1u) << i;
    return out;
  }
  /// One Philox call a lane: call first[lane] + offset.
  QT_CPU_INLINE void draw(const Noise& noise, const u64 (&first)[4], u64 offset, U (&word)[4]) {
    for (int i = 0; i < 4; ++i) {
      const Philox call = noise_call(noise, first[i] + offset);
      for (int w = 0; w < 4; ++w) word[w][i] = call.word[w];
    }
  }
};

}  // namespace cpu
}  // namespace qt

#endif
