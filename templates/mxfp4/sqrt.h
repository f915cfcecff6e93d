// A correctly rounded binary32 square root in integers: back ends' own are not all correctly
// rounded.
#ifndef QT_MXFP4_SQRT_H
#define QT_MXFP4_SQRT_H

#include "mxfp4/types.h"

namespace qt {

/// For x >= 0 or NaN; 0, Inf and NaN give themselves.
QT_FN float sqrt_rn(float x) {
  u32 u = bits_of(x);
  if ((u & kMagnitude) == 0u || (u & kMagnitude) >= kInfinity) return x;
  i32 exponent = i32(u >> 23) - 127;
  u32 mantissa = u & 0x7fffffu;
  if (exponent == -127) {  // subnormal: normalise
    exponent = -126;
    while (mantissa < 0x800000u) {
      mantissa <<= 1;
      --exponent;
    }
  }
  mantissa |= 0x800000u;
  // x = mantissa * 2^(exponent - 23), made with an even exponent, which halves exactly.
  const u32 odd = u32(exponent) & 1u;
  mantissa <<= odd;
  exponent -= i32(odd);
  // Digit by digit, 25 bits of root: 24 to keep and one to round by. The root of a 24-bit number is
  // never exactly half-way, so the 25th bit decides alone.
  u32 root = 0, rest = 0;
  for (i32 place = 24; place >= 0; --place) {
    const i32 shift = 2 * place - 25;  // the radicand is mantissa * 2^25, taken two bits at a time
    const u32 pair = shift >= 0 ? mantissa >> shift : shift == -1 ? mantissa << 1 : 0u;
    rest = (rest << 2) | (pair & 3u);
    const u32 trial = (root << 2) | 1u;
    const u32 take = u32(rest >= trial);
    rest -= take ? trial : 0u;
    root = (root << 1) | take;
  }
  const u32 rounded = (root + 1u) >> 1;  // 2^24 when it carries: the exponent takes it
  return float_of(u32(exponent / 2 + 126) * 0x800000u + rounded);
}

}  // namespace qt

#endif
