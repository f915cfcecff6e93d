// E8M0 block scales: byte b means 2^(b-127) for b in 0..254; 255 means NaN.
#ifndef QT_MXFP4_E8M0_H
#define QT_MXFP4_E8M0_H

#include "mxfp4/types.h"

namespace qt {

[[maybe_unused]] constexpr u32 kScaleNaN = 255u;
[[maybe_unused]] constexpr u32 kScaleMax = 254u;

/// 2^(b-127), exact at both ends (b = 0 is a binary32 subnormal); the quiet NaN for 255.
QT_FN float e8m0_value(u32 b) {
  return float_of(b == 0u ? 0x00400000u : b == kScaleNaN ? 0x7fc00000u : b << 23);
}

/// 2^(127-b), for b in 0..254: it is representable at both ends, so x * e8m0_inverse(b) is x /
/// 2^(b-127) exactly, unless the quotient is below 2^-126, where every rounding gives code 0 all
/// the same, or overflows (QUEST only), where every rounding saturates.
QT_FN float e8m0_inverse(u32 b) { return e8m0_value(kScaleMax - b); }

/// A biased exponent, possibly negative, as a scale byte for finite data.
QT_FN u32 e8m0_clamp(i32 b) { return b < 0 ? 0u : b > i32(kScaleMax) ? kScaleMax : u32(b); }

}  // namespace qt

#endif
