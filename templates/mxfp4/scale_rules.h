// Scale rules that look at a block's largest magnitude only: FLOOR, EVEN, RCEIL, CEIL and TS34.
//
// All work on the bits of amax: no logarithm, no epsilon. A subnormal amax, whatever the rule, asks
// for an exponent below -127 and so gets byte 0; finite data never reach 254.
#ifndef QT_MXFP4_SCALE_RULES_H
#define QT_MXFP4_SCALE_RULES_H

#include "mxfp4/e8m0.h"

namespace qt {

/// The spelling and the order are those of the generator's ScaleRule.
enum class ScaleRule { floor, even, rceil, ceil, ts34, quest, quest_qutlass, search };

/// Whether an element may lie beyond the largest code, 6, which makes stochastic rounding biased.
QT_FN constexpr bool clips(ScaleRule rule) {
  return rule != ScaleRule::rceil && rule != ScaleRule::ceil && rule != ScaleRule::ts34;
}

/// Whether the rule needs amax alone, as a 32x32 tile does. TS34 does, but is not offered for
/// tiles.
QT_FN constexpr bool is_amax_rule(ScaleRule rule) {
  return rule != ScaleRule::quest && rule != ScaleRule::quest_qutlass && rule != ScaleRule::search;
}
QT_FN constexpr bool is_tile_rule(ScaleRule rule) {
  return is_amax_rule(rule) && rule != ScaleRule::ts34;
}

/// The largest magnitude, as bits: integer order is the order of values, with Inf and NaN on top.
template <int n>
QT_FN u32 amax_bits(const float (&x)[n]) {
  u32 amax = 0;
  QT_UNROLL
  for (int j = 0; j < n; ++j) amax = max_u32(amax, bits_of(x[j]) & kMagnitude);
  return amax;
}

/// What amax says before any rule: an all-zero block has byte 0, one with NaN or Inf byte 255, and
/// the codes of both are 0.
QT_FN bool is_zero_block(u32 amax) { return amax == 0u; }
QT_FN bool is_nan_block(u32 amax) { return amax >= kInfinity; }

/// The scale byte of a block whose largest magnitude, as bits, is `amax`.
template <ScaleRule rule>
QT_FN u32 scale_byte_of_amax(u32 amax) {
  static_assert(is_amax_rule(rule), "this rule needs the block's values, not only its amax");
  const u32 exponent = amax >> 23;
  const u32 mantissa = amax & 0x7fffffu;
  i32 b;
  if constexpr (rule == ScaleRule::even) {
    b = i32((amax + 0x200000u) >> 23) - 2;  // the mantissa rounds up from 1.75 on
  } else if constexpr (rule == ScaleRule::rceil) {
    b = i32(exponent) - 2 + i32(mantissa > 0x400000u);  // 2^b >= amax/6: up beyond 1.5
  } else if constexpr (rule == ScaleRule::ceil) {
    b = i32(exponent) - 2 + i32(mantissa != 0u);
  } else {
    b = i32(exponent) - 2;  // FLOOR, and TS34, whose elements are multiplied by 0.75 afterwards
  }
  return is_nan_block(amax) ? kScaleNaN : e8m0_clamp(b);
}

}  // namespace qt

#endif
