// GELU, SiLU and their derivatives for products of contract `fast`: the forms of
// mxfp4/activation.h with the hardware's approximate exponential and reciprocal.
//
// Results are within 2^-16 of their value (derivatives: of the sum of their terms' magnitudes), or
// 2^-140: the exponential's argument is rounded once, which for exp(-120) is the largest part.
// Limits at infinities are those of the exact forms, and NaN gives NaN.
#ifndef QT_CUDA_ACTIVATION_FAST_H
#define QT_CUDA_ACTIVATION_FAST_H

#include "cuda/primitives.h"
#include "mxfp4/activation.h"

namespace qt::cuda::fast {

/// exp(-a), a >= 0.
QT_FN float exponential(float a) { return exp2_approx(mul(a, -1.44269502f)); }

/// sigmoid(|w|) and sigmoid(-|w|), neither of them by a difference.
struct Sigmoid {
  float up, down;
};
QT_FN Sigmoid sigmoid(float magnitude_of_w) {
  const float e = exponential(magnitude_of_w);
  const float up = reciprocal_approx(1.0f + e);
  return {up, mul(e, up)};
}

/// x * sigmoid(w), w of x's sign; `bounded` is x where sigmoid underflows.
QT_FN float times_sigmoid(float x, float bounded, float magnitude_of_w) {
  const Sigmoid s = sigmoid(magnitude_of_w);
  return x >= 0.0f ? mul(x, s.up) : mul(bounded, s.down);
}

/// sigmoid(w) + x * slope * sigmoid(w) * sigmoid(-w), x bounded.
QT_FN float sigmoid_derivative(float x, float slope, float magnitude_of_w) {
  const Sigmoid s = sigmoid(magnitude_of_w);
  const float there = x >= 0.0f ? s.up : s.down, back = x >= 0.0f ? s.down : s.up;
  return mul(there, fused(mul(x, slope), back, 1.0f));
}

QT_FN float silu(float x) {
  const float a = bounded_magnitude(x, 150.0f);
  return times_sigmoid(x, with_sign(a, x), a);
}
QT_FN float silu_derivative(float x) {
  const float a = bounded_magnitude(x, 150.0f);
  return sigmoid_derivative(with_sign(a, x), 1.0f, a);
}

/// 2 sqrt(2 / pi) (t + 0.044715 t^3).
QT_FN float tanh_argument(float t, float square) {
  return mul(t, fused(square, 0.0713548139f, 1.59576917f));
}
QT_FN float gelu_tanh(float x) {
  const float t = bounded_magnitude(x, 14.0f);
  return times_sigmoid(x, with_sign(t, x), tanh_argument(t, mul(t, t)));
}
QT_FN float gelu_tanh_derivative(float x) {
  const float t = bounded_magnitude(x, 14.0f), square = mul(t, t);
  return sigmoid_derivative(with_sign(t, x), fused(0.214064442f, square, 1.59576917f),
                            tanh_argument(t, square));
}

/// The normal distribution's tail beyond t >= 0 over its density times sqrt(2 pi), and exp(-t^2/2).
struct Tail {
  float tail, density;
};
QT_FN Tail normal_tail(float t) {
  const float r = reciprocal_approx(t + 4.0f);
  return {mul(tail_polynomial(mul(t - 4.0f, r)), r), exponential(mul(0.5f, mul(t, t)))};
}
QT_FN float gelu(float x) {
  const float t = bounded_magnitude(x, 14.8f);
  const Tail n = normal_tail(t);
  const float beyond = mul(n.density, n.tail);
  return x >= 0.0f ? mul(x, 1.0f - beyond) : mul(with_sign(t, x), beyond);
}
QT_FN float gelu_derivative(float x) {
  const float t = bounded_magnitude(x, 14.8f);
  const Tail n = normal_tail(t);
  const float down = mul(n.density, fused(t, 0.398942292f, -n.tail));
  return x >= 0.0f ? 1.0f + down : -down;
}

}  // namespace qt::cuda::fast

namespace qt::cuda {

/// silu(gate) * value, as the contract wants it.
template <class Config>
QT_FN float gated(float gate, float value) {
  if constexpr (Config::fast_activation) return mul(fast::silu(gate), value);
  return swiglu(gate, value);
}

/// The gradients of gate and value from that of silu(gate) * value.
template <class Config>
QT_FN GateGradient gated_gradient(float z, float gate, float value) {
  if constexpr (Config::fast_activation)
    return {mul(mul(z, value), fast::silu_derivative(gate)), mul(z, fast::silu(gate))};
  return swiglu_gradient(z, gate, value);
}

/// D of an activation of one argument, or of its derivative at `aux`.
template <class Config>
QT_FN float finished(float z, float aux) {
  constexpr Epilogue epilogue = Config::epilogue;
  if constexpr (!Config::fast_activation) return activated<epilogue>(z, aux);
  if constexpr (epilogue == Epilogue::gelu) return fast::gelu(z);
  if constexpr (epilogue == Epilogue::gelu_tanh) return fast::gelu_tanh(z);
  if constexpr (epilogue == Epilogue::dgelu) return mul(z, fast::gelu_derivative(aux));
  if constexpr (epilogue == Epilogue::dgelu_tanh) return mul(z, fast::gelu_tanh_derivative(aux));
  return z;
}

}  // namespace qt::cuda

#endif
