// Scale rules that look at a block's values: QUEST by their standard deviation, SEARCH by the
// error.
//
// Both add in one fixed tree of adjacent pairs (s[i] = x[2i] + x[2i+1], repeated), each operation
// rounded on its own, so that a sequential loop and lanes that shuffle agree to the bit.
#ifndef QT_MXFP4_SCALE_STATS_H
#define QT_MXFP4_SCALE_STATS_H

#include "mxfp4/e2m1.h"
#include "mxfp4/scale_rules.h"
#include "mxfp4/sqrt.h"

namespace qt {

[[maybe_unused]] constexpr u32 kQuestStep =
    0x3ef96285u;  // 2.92247856 / 6, rounded once from the decimal value
[[maybe_unused]] constexpr u32 kQutlassEpsilon = 0x322bcc77u;  // 1e-8f

/// The sum by adjacent pairs. Halves by template, as hadamard_stages does.
template <int n>
QT_FN float tree_sum(const float (&s)[n]) {
  if constexpr (n == 1) {
    return s[0];
  } else {
    float half[n / 2];
    QT_UNROLL
    for (int i = 0; i < n / 2; ++i) half[i] = s[2 * i] + s[2 * i + 1];
    return tree_sum(half);
  }
}

/// QUEST's byte from the variance: floor(log2 t) with t = sqrt(variance) * step (+ epsilon), by its
/// exponent bits. Decided here: t = 0 (a constant block, or squares that underflow) and a subnormal
/// t give byte 0; t that overflowed, or is NaN because sums did, gives 254.
template <ScaleRule rule>
QT_FN u32 quest_byte(float variance) {
  float t = mul(sqrt_rn(variance), float_of(kQuestStep));
  if constexpr (rule == ScaleRule::quest_qutlass) t = t + float_of(kQutlassEpsilon);
  return min_u32((bits_of(t) & kMagnitude) >> 23, kScaleMax);
}

/// Population variance in two passes: the mean first, then squared distances from it.
QT_FN float block_variance(const float (&x)[32]) {
  constexpr u32 one_32nd = 122u << 23;
  float s[32];
  QT_UNROLL
  for (int j = 0; j < 32; ++j) s[j] = x[j];
  const float mean = mul(tree_sum(s), float_of(one_32nd));
  QT_UNROLL
  for (int j = 0; j < 32; ++j) {
    const float d = x[j] - mean;
    s[j] = mul(d, d);
  }
  return mul(tree_sum(s), float_of(one_32nd));
}

/// Squared error of the nearest codes at byte `candidate`, in units of the scale of byte `unit`.
QT_FN float search_error(const float (&x)[32], u32 unit, u32 candidate) {
  const float to_candidate = e8m0_inverse(candidate);
  const float to_unit = e8m0_inverse(unit);
  const float step = e8m0_value(127u + candidate - unit);
  float s[32];
  QT_UNROLL
  for (int j = 0; j < 32; ++j) {
    const u32 code = e2m1_encode<Rounding::rne>(mul(x[j], to_candidate), 0u);
    const float error = mul(e2m1_value(code), step) - mul(x[j], to_unit);
    s[j] = mul(error, error);
  }
  return tree_sum(s);
}

/// SEARCH over a block of finite values: of RCEIL-1, RCEIL, RCEIL+1, clamped, the least squared
/// error, in units of RCEIL's scale so that nothing overflows; ties go to the larger byte.
QT_FN u32 scale_byte_search(const float (&x)[32], u32 amax) {
  const u32 middle = scale_byte_of_amax<ScaleRule::rceil>(amax);
  u32 best = e8m0_clamp(i32(middle) + 1);
  float least = search_error(x, middle, best);
  for (i32 step = 0; step >= -1; --step) {
    const u32 candidate = e8m0_clamp(i32(middle) + step);
    const float error = search_error(x, middle, candidate);
    if (error < least) {
      least = error;
      best = candidate;
    }
  }
  return best;
}

/// The scale byte of one block under any rule; amax is amax_bits(x).
template <ScaleRule rule>
QT_FN u32 scale_byte(const float (&x)[32], u32 amax) {
  if constexpr (is_amax_rule(rule)) {
    return scale_byte_of_amax<rule>(amax);
  } else {
    if (is_zero_block(amax)) return 0u;
    if (is_nan_block(amax)) return kScaleNaN;
    if constexpr (rule == ScaleRule::search) {
      return scale_byte_search(x, amax);
    } else {
      return quest_byte<rule>(block_variance(x));
    }
  }
}

}  // namespace qt

#endif
