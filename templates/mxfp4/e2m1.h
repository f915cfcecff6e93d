// E2M1 elements: 4-bit codes s e1 e0 m of the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their
// negatives.
#ifndef QT_MXFP4_E2M1_H
#define QT_MXFP4_E2M1_H

#include "mxfp4/types.h"

namespace qt {

/// The spelling and the order are those of the generator's Rounding.
enum class Rounding { rne, sr16, sr22, sr8, half_away, half_to_zero, sr_cvt_rs, sr_cvt_scalef32 };

/// By an instruction of some devices (cuda/encode.h): the functions of mxfp4/ do not know it.
QT_FN constexpr bool is_of_hardware(Rounding rounding) {
  return rounding == Rounding::sr_cvt_rs || rounding == Rounding::sr_cvt_scalef32;
}

QT_FN constexpr bool is_stochastic(Rounding rounding) {
  return rounding == Rounding::sr16 || rounding == Rounding::sr22 || rounding == Rounding::sr8 ||
         is_of_hardware(rounding);
}

QT_FN float e2m1_value(u32 code) {
  const u32 m = code & 7u;
  const u32 magnitude = m == 0u ? 0u : m == 1u ? 0x3f000000u : (m << 22) + (126u << 23);
  return float_of(((code & 8u) << 28) | magnitude);
}

/// Twice the value, always an integer: 0, 1, 2, 3, 4, 6, 8, 12 with sign.
QT_FN i32 e2m1_twice(u32 code) {
  const u32 m = code & 7u;
  const i32 magnitude = i32(m < 2u ? m : (2u + (m & 1u)) << ((m >> 1) - 1u));
  return (code & 8u) ? -magnitude : magnitude;
}

/// |y| on the grid of codes in fixed point: the code below it in bits 24:22, how far towards the
/// next code in bits 21:0, truncated. From 8 on (Inf and NaN too, which callers have judged before)
/// it is just below 8, which every rounding takes to code 7.
QT_FN u32 e2m1_fixed_point(u32 magnitude) {
  const u32 u = min_u32(magnitude, 0x40ffffffu);
  const u32 exponent = u >> 23;
  const u32 mantissa = (u & 0x7fffffu) | 0x800000u;
  const u32 shift = min_u32(127u - exponent, 25u);  // meant for exponents below 127
  return exponent >= 127u ? u - (126u << 23) : mantissa >> shift;
}

/// The same with "something was truncated" as its lowest bit, for roundings that must tell a tie.
QT_FN u32 e2m1_fixed_point_sticky(u32 magnitude) {
  const u32 u = min_u32(magnitude, 0x40ffffffu);
  const u32 exponent = u >> 23;
  const u32 mantissa = (u & 0x7fffffu) | 0x800000u;
  const u32 shift = min_u32(127u - exponent, 25u);
  const u32 lost = mantissa & ((1u << shift) - 1u);
  return exponent >= 127u ? u - (126u << 23) : (mantissa >> shift) | u32(lost != 0u);
}

/// The code of y = x / scale, finite or Inf. `r` is the noise, 22 bits, of stochastic roundings,
/// whose code goes up with probability (number of r with fraction + r >= 2^22) / 2^bits; others
/// ignore it. Decided here: the sign bit is always copied, so -0 and negatives that round to zero
/// give code 8. Ties: rne to the even code, half_away up and half_to_zero down in magnitude.
/// Saturates at 6.
template <Rounding rounding>
QT_FN u32 e2m1_encode(float y, u32 r) {
  static_assert(!is_of_hardware(rounding), "an instruction rounds so");
  const u32 u = bits_of(y);
  const u32 magnitude = u & kMagnitude;
  u32 t;
  if constexpr (is_stochastic(rounding)) {
    t = e2m1_fixed_point(magnitude) + r;
  } else if constexpr (rounding == Rounding::half_away) {
    t = e2m1_fixed_point(magnitude) + 0x200000u;
  } else if constexpr (rounding == Rounding::half_to_zero) {
    t = e2m1_fixed_point_sticky(magnitude) + 0x1fffffu;
  } else {
    t = e2m1_fixed_point_sticky(magnitude);
    t += 0x1fffffu + ((t >> 22) & 1u);
  }
  return ((u >> 28) & 8u) | min_u32(t >> 22, 7u);
}

}  // namespace qt

#endif
