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
  struct Floats {
    float v[16];
  };
  /// Codes of four consecutive k, widened: products of 2q and their sums over 32 fit in 16 bits.
  struct Codes {
    i16 v[4][16];
  };
  struct Dots {
    i16 v[16];
  };
  using Quad = const i8*;

  QT_CPU_INLINE Floats zero() { return {}; }
  QT_CPU_INLINE Floats load(const float* from) {
    Floats out;
    for (int c = 0; c < 16; ++c) out.v[c] = from[c];
    return out;
  }
  QT_CPU_INLINE void store(float* to, const Floats& x) {
    for (int c = 0; c < 16; ++c) to[c] = x.v[c];
  }
  QT_CPU_INLINE Floats mul(const Floats& x, float y) {
    Floats out;
    for (int c = 0; c < 16; ++c) out.v[c] = x.v[c] * y;
    return out;
  }
  QT_CPU_INLINE Floats mul(const Floats& x, const Floats& y) {
    Floats out;
    for (int c = 0; c < 16; ++c) out.v[c] = x.v[c] * y.v[c];
    return out;
  }
  /// x * y + z. Callers see to it that the product is exact, so one rounding or two are the same.
  QT_CPU_INLINE Floats fma(const Floats& x, const Floats& y, const Floats& z) {
    Floats out;
    for (int c = 0; c < 16; ++c) out.v[c] = x.v[c] * y.v[c] + z.v[c];
    return out;
  }

  /// 64 bytes of a panel's block: 16 rows' codes of k = 0..3 (low) and of k = 4..7 (high).
  QT_CPU_INLINE void decode(const u8* packed, Codes& low, Codes& high) {
    u32 word[16];
    __builtin_memcpy(word, packed, sizeof word);
    for (int j = 0; j < 4; ++j)
      for (int c = 0; c < 16; ++c) {
        low.v[j][c] = twice(word[c] >> (8 * j));
        high.v[j][c] = twice(word[c] >> (8 * j + 4));
      }
  }
  QT_CPU_INLINE Quad quad(const i8* a) { return a; }
  QT_CPU_INLINE Dots dot_begin(i32) { return {}; }
  QT_CPU_INLINE Dots dot4(Dots sums, const Codes& b, Quad a) {
    for (int j = 0; j < 4; ++j)
      for (int c = 0; c < 16; ++c) sums.v[c] = i16(sums.v[c] + a[j] * b.v[j][c]);
    return sums;
  }
  QT_CPU_INLINE Floats dot_end(const Dots& sums, i32) {
    Floats out;
    for (int c = 0; c < 16; ++c) out.v[c] = float(sums.v[c]);
    return out;
  }

  /// PanelScale::low of 16 bytes below kWideByte.
  QT_CPU_INLINE Floats panel_scale_low(const u8* bytes) {
    u32 bits[16];
    for (int c = 0; c < 16; ++c) bits[c] = (bytes[c] + 10u) << 23;
    Floats out;
    __builtin_memcpy(out.v, bits, sizeof bits);
    return out;
  }
  QT_CPU_INLINE bool any_wide(const u8* bytes) {
    u8 most = 0;
    for (int c = 0; c < 16; ++c) most = bytes[c] > most ? bytes[c] : most;
    return most >= kWideByte;
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
