// What the tests hold the kernel text against: E2M1 and E8M0 in double precision, where every
// value, midpoint and scaling that occurs is exact, written without looking at bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "mxfp4/block.h"

namespace oracle {

constexpr double kGrid[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// The largest code whose value is at most a.
inline int code_below(double a) {
  int code = 7;
  while (kGrid[code] > a) --code;
  return code;
}

enum class Tie { even, up, down };

/// The code of a real number by comparing it with the midpoint of its neighbours.
inline unsigned nearest(double y, bool negative, Tie tie) {
  const double a = std::fabs(y);
  int code = code_below(a);
  if (code < 7) {
    const double middle = (kGrid[code] + kGrid[code + 1]) / 2;
    const bool up_at_tie = tie == Tie::up || (tie == Tie::even && code % 2 == 1);
    if (a > middle || (a == middle && up_at_tie)) ++code;
  }
  return unsigned(code) | (negative ? 8u : 0u);
}

/// How far a is on the way to the next code, in [0, 1); 0 from 6 on.
inline double fraction(double a) {
  const int code = code_below(a);
  return code == 7 ? 0 : (a - kGrid[code]) / (kGrid[code + 1] - kGrid[code]);
}

inline double scale_of(unsigned byte) { return std::ldexp(1.0, int(byte) - 127); }

inline double scaled(float x, unsigned byte) { return double(x) / scale_of(byte); }

inline float from_bits(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

inline std::uint32_t to_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline unsigned clamp_byte(int b) { return b < 0 ? 0u : b > 254 ? 254u : unsigned(b); }

/// The scale byte by the rule's meaning: a power of two chosen by comparing real numbers.
inline unsigned amax_byte(qt::ScaleRule rule, float amax) {
  const double m = amax;
  const int e = std::ilogb(m);  // exact, subnormals included
  const double mantissa = std::ldexp(m, -e);
  switch (rule) {
    case qt::ScaleRule::even:
      return clamp_byte(e - 2 + 127 + (mantissa >= 1.75 ? 1 : 0));
    case qt::ScaleRule::ceil:
      return clamp_byte(e - 2 + 127 + (mantissa > 1 ? 1 : 0));
    case qt::ScaleRule::rceil: {
      int s = -200;  // the least power of two that keeps amax within 6
      while (m > std::ldexp(6.0, s)) ++s;
      return clamp_byte(s + 127);
    }
    default:
      return clamp_byte(e - 2 + 127);
  }
}

}  // namespace oracle
