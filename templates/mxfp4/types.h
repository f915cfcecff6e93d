// bf16 and f16 to and from binary32, by bits, so that no back end's conversion instruction matters.
#ifndef QT_MXFP4_TYPES_H
#define QT_MXFP4_TYPES_H

#include "mxfp4/platform.h"

namespace qt {

[[maybe_unused]] constexpr u32 kMagnitude = 0x7fffffffu;  // everything but the sign
[[maybe_unused]] constexpr u32 kInfinity = 0x7f800000u;   // magnitudes from here on are Inf or NaN
[[maybe_unused]] constexpr u32 kSign = 0x80000000u;

QT_FN float f32_from_bf16(u16 h) { return float_of(u32(h) << 16); }

/// Round to nearest even. Any NaN becomes the positive quiet NaN 0x7fc0.
QT_FN u16 bf16_from_f32(float x) {
  const u32 u = bits_of(x);
  const u32 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return u16((u & kMagnitude) > kInfinity ? 0x7fc0u : rounded);
}

/// Exact, subnormals included.
QT_FN float f32_from_f16(u16 h) {
  const u32 sign = u32(h & 0x8000u) << 16;
  const u32 magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | kInfinity | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  // A subnormal is magnitude * 2^-24: the integer, converted exactly, times a power of two.
  return float_of(sign | bits_of(float(magnitude) * float_of(103u << 23)));
}

/// Round to nearest even, overflow to Inf. Any NaN becomes the positive quiet NaN 0x7e00.
QT_FN u16 f16_from_f32(float x) {
  const u32 u = bits_of(x);
  const u32 sign = (u & kSign) >> 16;
  const u32 magnitude = u & kMagnitude;
  if (magnitude > kInfinity) return u16(0x7e00u);
  if (magnitude >= 0x477ff000u) return u16(sign | 0x7c00u);  // from 65520 on, half-way included
  if (magnitude >= 0x38800000u) {                            // normal in f16: from 2^-14 on
    const u32 rebiased = magnitude - (112u << 23);
    return u16(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }
  if (magnitude <= 0x33000000u) return u16(sign);  // up to 2^-25, a tie with even zero
  const u32 shift = 126u - (magnitude >> 23);      // 14..24: units of 2^-24
  const u32 mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const u32 kept = mantissa >> shift;
  const u32 lost = mantissa & ((1u << shift) - 1u);
  const u32 half = 1u << (shift - 1u);
  return u16(sign | (kept + u32(lost > half || (lost == half && (kept & 1u)))));
}

}  // namespace qt

#endif
