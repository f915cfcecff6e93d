// Vectors of one panel's 16 columns in plain C++, written so that any compiler vectorises them.
#ifndef QT_CPU_PRIMITIVES_PORTABLE_H
#define QT_CPU_PRIMITIVES_PORTABLE_H

#include "cpu/layouts.h"

// Loops of constant length over registers: they must vanish, whatever their size.
#if defined(__clang__)
#define QT_CPU_UNROLL _Pragma("unroll")
#else
#define QT_CPU_UNROLL _Pragma("GCC unroll 32")
#endif

#define QT_CPU_INLINE [[maybe_unused]] static inline __attribute__((always_inline))
#define QT_CPU_NOINLINE [[maybe_unused]] static __attribute__((noinline))

namespace qt {
namespace cpu {

QT_CPU_INLINE bool unlikely(bool condition) { return __builtin_expect(condition, 0); }

/// Fetches the line that holds `address` (any address will do) into the nearest cache.
QT_CPU_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }
/// The same, no nearer than the second-level cache.
QT_CPU_INLINE void prefetch_far(const void* address) { __builtin_prefetch(address, 0, 2); }

struct Portable {
  // Vectors of 16 bytes, as the compilers' own extension: x86-64's and aarch64's baseline has them,
  // and elsewhere they become scalars.
  typedef float Floats4 __attribute__((vector_size(16)));
  typedef i16 Shorts8 __attribute__((vector_size(16)));

  struct Floats {
    Floats4 v[4];
  };
  /// Codes of four consecutive k, widened: products of 2q and their sums over 32 fit in 16 bits.
  struct Codes {
    Shorts8 v[4][2];
  };
  struct Dots {
    Shorts8 v[2];
  };
  using Quad = const i8*;

  QT_CPU_INLINE Floats zero() { return {}; }
  QT_CPU_INLINE Floats load(const float* from) {
    Floats out;
    __builtin_memcpy(&out, from, sizeof out);
    return out;
  }
  QT_CPU_INLINE void store(float* to, const Floats& x) { __builtin_memcpy(to, &x, sizeof x); }
  QT_CPU_INLINE Floats mul(const Floats& x, float y) {
    return {{x.v[0] * y, x.v[1] * y, x.v[2] * y, x.v[3] * y}};
  }
  QT_CPU_INLINE Floats mul(const Floats& x, const Floats& y) {
    return {{x.v[0] * y.v[0], x.v[1] * y.v[1], x.v[2] * y.v[2], x.v[3] * y.v[3]}};
  }
  /// x * y + z. Callers see to it that the product is exact, so one rounding or two are the same.
  QT_CPU_INLINE Floats fma(const Floats& x, const Floats& y, const Floats& z) {
    return {{x.v[0] * y.v[0] + z.v[0], x.v[1] * y.v[1] + z.v[1], x.v[2] * y.v[2] + z.v[2],
             x.v[3] * y.v[3] + z.v[3]}};
  }

  /// 64 bytes of a panel's block: 16 rows' codes of k = 0..3 (low) and of k = 4..7 (high).
  QT_CPU_INLINE void decode(const u8* packed, Codes& low, Codes& high) {
    u32 word[16];
    __builtin_memcpy(word, packed, sizeof word);
    i16 out[2][4][16];
    for (int j = 0; j < 4; ++j)
      for (int c = 0; c < 16; ++c) {
        out[0][j][c] = twice(word[c] >> (8 * j));
        out[1][j][c] = twice(word[c] >> (8 * j + 4));
      }
    __builtin_memcpy(&low, out[0], sizeof low);
    __builtin_memcpy(&high, out[1], sizeof high);
  }
  QT_CPU_INLINE Quad quad(const i8* a) { return a; }
  QT_CPU_INLINE Dots dot_begin(i32) { return {}; }
  QT_CPU_INLINE Dots dot4(Dots sums, const Codes& b, Quad a) {
    QT_CPU_UNROLL
    for (int j = 0; j < 4; ++j) {
      const i16 x = a[j];
      sums.v[0] += x * b.v[j][0];
      sums.v[1] += x * b.v[j][1];
    }
    return sums;
  }
  QT_CPU_INLINE Floats dot_end(const Dots& sums, i32) {
    i16 integers[16];
    __builtin_memcpy(integers, &sums, sizeof sums);
    float out[16];
    for (int c = 0; c < 16; ++c) out[c] = float(integers[c]);
    return load(out);
  }

  /// PanelScale::low of 16 bytes below kWideByte.
  QT_CPU_INLINE Floats panel_scale_low(const u8* bytes) {
    u32 bits[16];
    for (int c = 0; c < 16; ++c) bits[c] = (bytes[c] + 10u) << 23;
    Floats out;
    __builtin_memcpy(&out, bits, sizeof out);
    return out;
  }
  QT_CPU_INLINE bool any_wide(const u8* bytes) {
    u8 most = 0;
    for (int c = 0; c < 16; ++c) most = bytes[c] > most ? bytes[c] : most;
    return most >= kWideByte;
  }

  /// 2q of 64 bytes of a panel's block: vector i for the i-th of their eight k.
  QT_CPU_INLINE void weights(const u8* packed, Floats (&out)[8]) {
    u32 word[16];
    __builtin_memcpy(word, packed, sizeof word);
    float w[8][16];
    for (int j = 0; j < 4; ++j)
      for (int c = 0; c < 16; ++c) {
        w[j][c] = float(i32(twice(word[c] >> (8 * j))));
        w[4 + j][c] = float(i32(twice(word[c] >> (8 * j + 4))));
      }
    __builtin_memcpy(out, w, sizeof w);
  }
  QT_CPU_INLINE Floats broadcast(float x) {
    const Floats4 all = {x, x, x, x};
    return {{all, all, all, all}};
  }
  /// weight_scale of 16 bytes of which none is extreme; extreme ones give anything.
  QT_CPU_INLINE Floats weight_scale_low(const u8* bytes) {
    u32 bits[16];
    for (int c = 0; c < 16; ++c) bits[c] = (bytes[c] - 1u) << 23;
    Floats out;
    __builtin_memcpy(&out, bits, sizeof out);
    return out;
  }
  QT_CPU_INLINE bool any_extreme(const u8* bytes) {
    bool any = false;
    for (int c = 0; c < 16; ++c) any = any || is_extreme(bytes[c]);
    return any;
  }
  /// 16 elements of bf16 or f16 as binary32.
  QT_CPU_INLINE void widen_bf16(const u16* from, float* to) {
    for (int i = 0; i < 16; ++i) to[i] = f32_from_bf16(from[i]);
  }
  QT_CPU_INLINE void widen_f16(const u16* from, float* to) {
    for (int i = 0; i < 16; ++i) to[i] = f32_from_f16(from[i]);
  }

 private:
  /// 2q of the code in the low four bits, by comparisons, which vectorise where a table does not.
  QT_CPU_INLINE i16 twice(u32 code) {
    const i32 m = i32(code & 7u);
    const i32 magnitude = m + (m >= 5 ? 1 : 0) + (m >= 6 ? 1 : 0) + (m >= 7 ? 3 : 0);
    return i16((code & 8u) ? -magnitude : magnitude);
  }
};

}  // namespace cpu
}  // namespace qt

#endif
