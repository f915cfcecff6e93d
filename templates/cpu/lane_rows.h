// High-precision results from lanes: element j of several stretches of 32 goes to each one's place.
#ifndef QT_CPU_LANE_ROWS_H
#define QT_CPU_LANE_ROWS_H

#include "cpu/elements.h"
#include "cpu/primitives_lanes.h"

namespace qt {
namespace cpu {

/// The lanes of x to consecutive elements of memory, rounded to nearest even; any NaN becomes the
/// positive quiet one.
template <class Isa>
QT_CPU_INLINE void store_row(u8* to, DType type, typename Isa::U x) {
  using U = typename Isa::U;
  const U nan = Isa::below(Isa::splat(kInfinity), Isa::both(x, Isa::splat(kMagnitude)));
  x = Isa::select(nan, Isa::splat(0x7fc00000u), x);
  if (type == DType::bf16) {
    const U odd = Isa::both(Isa::template right<16>(x), Isa::splat(1u));
    const U rounded = Isa::plus(Isa::plus(x, Isa::splat(0x7fffu)), odd);
    Isa::store_halves(reinterpret_cast<u16*>(to), Isa::template right<16>(rounded));
  } else if (type == DType::f16) {
    Isa::store_f16(reinterpret_cast<u16*>(to), Isa::floats(x));
  } else {
    Isa::store_words(reinterpret_cast<u32*>(to), x);
  }
}

/// 32 elements of each lane to to[lane].
template <class Isa>
QT_CPU_INLINE void store_rows(u8* const (&to)[Isa::lanes], DType type,
                              const typename Isa::F (&x)[kBlock]) {
  constexpr int n = Isa::lanes;
  const i64 bytes = type == DType::f32 ? 4 : 2;
  QT_CPU_UNROLL
  for (int first = 0; first < kBlock; first += n) {
    typename Isa::U rows[n];
    QT_CPU_UNROLL
    for (int j = 0; j < n; ++j) rows[j] = Isa::bits(x[first + j]);
    Isa::transpose(rows);
    QT_CPU_UNROLL
    for (int j = 0; j < n; ++j) store_row<Isa>(to[j] + first * bytes, type, rows[j]);
  }
}

/// The first `count` of 32 elements of one lane, from memory.
QT_FN void store_some(u8* to, DType type, const float* x, i64 count) {
  for (i64 j = 0; j < count; ++j) {
    const float value = (bits_of(x[j]) & kMagnitude) > kInfinity ? float_of(0x7fc00000u) : x[j];
    store_element(to, j, type, value);
  }
}

}  // namespace cpu
}  // namespace qt

#endif
