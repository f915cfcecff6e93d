// GELU, SiLU and their derivatives in binary32, as epilogues and quantisers apply them: fixed
// polynomials and fused multiply-adds, no library function, so that every back end gives the same
// bits.
//
// All rest on e = exp(-a) for a >= 0, kept as p * 2^n until the last product, so that results keep
// their digits down to the smallest numbers, and on reciprocals by cubic iteration. Measured
// against double over all floats (tests/templates/activation_test.cpp), in units of the last place:
//   silu and gelu_tanh below 4, gelu below 6; derivatives, of the sum of their terms' magnitudes,
//   below 5, gelu's below 6.
// NaN gives NaN; where x goes to infinity, results are the limits: f(Inf) = Inf, f(-Inf) = -0,
// f'(Inf) = 1, f'(-Inf) = 0.
#ifndef QT_MXFP4_ACTIVATION_H
#define QT_MXFP4_ACTIVATION_H

#include "mxfp4/types.h"

namespace qt {

/// The spelling and the order are those of the generator's Epilogue.
enum class Epilogue {
  none,
  gelu,
  gelu_tanh,
  swiglu_split,
  swiglu_interleaved,
  dgelu,
  dgelu_tanh,
  dswiglu,
  dswiglu_interleaved
};

QT_FN constexpr bool is_gated(Epilogue e) {
  return e == Epilogue::swiglu_split || e == Epilogue::swiglu_interleaved;
}
QT_FN constexpr bool is_dswiglu(Epilogue e) {
  return e == Epilogue::dswiglu || e == Epilogue::dswiglu_interleaved;
}
QT_FN constexpr bool is_derivative(Epilogue e) {
  return e == Epilogue::dgelu || e == Epilogue::dgelu_tanh || is_dswiglu(e);
}

/// |x|, at most `most`; NaN stays.
QT_FN float bounded_magnitude(float x, float most) {
  const float a = float_of(bits_of(x) & kMagnitude);
  return a > most ? most : a;
}

/// exp(-a) = p * low * high, both powers of two, 0.7 < p < 1.5.
struct Exponential {
  float p, low, high;
};
QT_FN float value_of(const Exponential& e) { return mul(mul(e.p, e.low), e.high); }
/// y * exp(-a), rounded at most once more than y * p, however small.
QT_FN float times(const Exponential& e, float y) { return mul(mul(mul(y, e.p), e.low), e.high); }

/// Of -(a + rest), 0 <= a <= 250 and rest about an ulp of a or less.
QT_FN Exponential exponential(float a, float rest) {
  constexpr float shifter = 12582912.0f;  // 1.5 * 2^23: sums with it end in an integer
  const float shifted = fused(-a, 1.44269502f, shifter);
  const float n = shifted - shifter;
  float r = fused(n, -0.693145752f, -a);  // exact: 15 bits of ln 2
  r = fused(n, -1.42860677e-06f, r) - rest;
  float q = 0.00139416358f;
  q = fused(q, r, 0.00836347789f);
  q = fused(q, r, 0.0416663699f);
  q = fused(q, r, 0.166665748f);
  q = fused(q, r, 0.5f);
  const i32 power = i32(bits_of(shifted)) - i32(bits_of(shifter));
  const i32 half = power >> 1;
  return {1.0f + fused(mul(r, r), q, r), float_of(u32(half + 127) << 23),
          float_of(u32(power - half + 127) << 23)};
}

/// 1 / (1 + e), 0 <= e <= 1.
QT_FN float reciprocal_of_one_plus(float e) {
  float r = fused(fused(fused(-0.221837088f, e, 0.665511250f), e, -0.942807615f), e, 0.998266876f);
  const float error = fused(-e, r, 1.0f - r);
  return fused(r, fused(error, error, error), r);
}

/// 1 / d, 1 <= d <= 2^20.
QT_FN float reciprocal(float d) {
  float r = float_of(0x7ef311c7u - bits_of(d));
  float error = fused(-d, r, 1.0f);
  r = fused(r, fused(error, error, error), r);
  error = fused(-d, r, 1.0f);
  return fused(r, fused(error, error, error), r);
}

/// x * sigmoid(w), w of x's sign and |w| = a + rest; `x` as it is, `bounded` where sigmoid
/// underflows.
QT_FN float times_sigmoid(float x, float bounded, float a, float rest) {
  const Exponential e = exponential(a, rest);
  const float r = reciprocal_of_one_plus(value_of(e));
  return x >= 0.0f ? mul(x, r) : times(e, mul(bounded, r));
}

/// sigmoid(w) + x * slope * sigmoid(w) * sigmoid(-w), x bounded.
QT_FN float sigmoid_derivative(float x, float slope, float a, float rest) {
  const Exponential e = exponential(a, rest);
  const float value = value_of(e);
  const float r = reciprocal_of_one_plus(value);
  const float up = mul(r, fused(mul(mul(x, slope), value), r, 1.0f));
  const float down = mul(r, fused(mul(x, slope), r, 1.0f));
  return x >= 0.0f ? up : times(e, down);
}

QT_FN float with_sign(float magnitude, float x) {
  return float_of(bits_of(magnitude) | (bits_of(x) & kSign));
}

/// x / (1 + exp(-x)).
QT_FN float silu(float x) {
  const float a = bounded_magnitude(x, 120.0f);
  return times_sigmoid(x, with_sign(a, x), a, 0.0f);
}
QT_FN float silu_derivative(float x) {
  const float a = bounded_magnitude(x, 120.0f);
  return sigmoid_derivative(with_sign(a, x), 1.0f, a, 0.0f);
}

/// 2 sqrt(2 / pi) (t + 0.044715 t^3) to twice binary32's digits: gelu_tanh is x * sigmoid of it.
struct TanhArgument {
  float high, low;
};
QT_FN TanhArgument tanh_argument(float t) {
  constexpr float linear = 1.59576917f, linear_low = -4.53406799e-08f;
  constexpr float cubic = 0.0713548139f, cubic_low = 2.39883247e-09f;
  const float square = mul(t, t), square_low = fused(t, t, -square);
  const float product = mul(cubic, square), product_low = fused(cubic, square, -product);
  const float sum = product + linear;
  const float back = sum - product;
  const float sum_low = (product - (sum - back)) + (linear - back);
  const float low =
      (sum_low + product_low) + fused(cubic, square_low, fused(cubic_low, square, linear_low));
  const float high = mul(t, sum);
  return {high, fused(t, low, fused(t, sum, -high))};
}

/// x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
QT_FN float gelu_tanh(float x) {
  const float t = bounded_magnitude(x, 12.0f);
  const TanhArgument w = tanh_argument(t);
  return times_sigmoid(x, with_sign(t, x), w.high, w.low);
}
QT_FN float gelu_tanh_derivative(float x) {
  const float t = bounded_magnitude(x, 12.0f);
  const TanhArgument w = tanh_argument(t);
  return sigmoid_derivative(with_sign(t, x), fused(0.214064442f, mul(t, t), 1.59576917f), w.high,
                            w.low);
}

/// The normal distribution's tail beyond t >= 0 is `tail` * `density`, density = exp(-t^2 / 2).
struct NormalTail {
  float tail;
  Exponential density;
};
/// The tail times t + 4, of y = (t - 4) / (t + 4).
QT_FN float tail_polynomial(float y) {
  float f = -4.53087277e-05f;
  f = fused(f, y, -0.000219824826f);
  f = fused(f, y, 0.00017169148f);
  f = fused(f, y, 0.00163580838f);
  f = fused(f, y, -0.00349204242f);
  f = fused(f, y, -0.00754267490f);
  f = fused(f, y, 0.0603983141f);
  f = fused(f, y, -0.186521575f);
  f = fused(f, y, 0.387137294f);
  f = fused(f, y, -0.607896626f);
  return fused(f, y, 0.755285144f);
}
QT_FN NormalTail normal_tail(float t) {
  const float square = mul(t, t);
  const float r = reciprocal(t + 4.0f);
  const float f = tail_polynomial(mul(t - 4.0f, r));
  return {mul(f, r), exponential(mul(0.5f, square), mul(0.5f, fused(t, t, -square)))};
}

/// x Phi(x), Phi the normal distribution function.
QT_FN float gelu(float x) {
  const float t = bounded_magnitude(x, 14.8f);
  const NormalTail n = normal_tail(t);
  const float up = mul(x, 1.0f - times(n.density, n.tail));
  return x >= 0.0f ? up : times(n.density, mul(with_sign(t, x), n.tail));
}
QT_FN float gelu_derivative(float x) {
  const float t = bounded_magnitude(x, 14.8f);
  const NormalTail n = normal_tail(t);
  const float slope = fused(t, 0.398942292f, -n.tail);
  const float down = times(n.density, slope);
  return x >= 0.0f ? 1.0f + down : -down;
}

/// silu(gate) * value.
QT_FN float swiglu(float gate, float value) { return mul(silu(gate), value); }

/// D of an activation of one argument, or of its derivative at `aux`.
template <Epilogue epilogue>
QT_FN float activated(float z, float aux) {
  if constexpr (epilogue == Epilogue::gelu) return gelu(z);
  if constexpr (epilogue == Epilogue::gelu_tanh) return gelu_tanh(z);
  if constexpr (epilogue == Epilogue::dgelu) return mul(z, gelu_derivative(aux));
  if constexpr (epilogue == Epilogue::dgelu_tanh) return mul(z, gelu_tanh_derivative(aux));
  return z;
}

/// The gradients of a SwiGLU's gate and value from that of its output.
struct GateGradient {
  float gate, value;
};
QT_FN GateGradient swiglu_gradient(float z, float gate, float value) {
  return {mul(mul(z, value), silu_derivative(gate)), mul(z, silu(gate))};
}

}  // namespace qt

#endif
