// Activations against double over all of binary32: every bf16, random floats and the neighbourhoods
// of roots; infinities and NaN; and the fused multiply-add without the instruction.
#include "mxfp4/activation.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "reference/epilogue.hpp"

using namespace qt;
namespace ref = quarterturn::reference;

namespace {

// Calls visit(x) for every bf16, two million floats of all magnitudes, and two million in (-20,
// 20).
template <class Visit>
void over_floats(Visit visit) {
  for (u32 h = 0; h < 0x10000u; ++h) visit(float_of(h << 16));
  std::mt19937 random(71);
  for (int i = 0; i < 400'000; ++i) visit(float_of(u32(random())));
  std::uniform_real_distribution<float> usual(-20.0f, 20.0f);
  for (int i = 0; i < 400'000; ++i) visit(usual(random));
}

// A unit of binary32's last place at `magnitude`.
double ulp(double magnitude) {
  if (magnitude < 0x1p-126) return 0x1p-149;
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

// The largest error of `now`, in ulps of `size(x)`: the result's own magnitude, or its terms'.
template <class Now, class Wanted, class Size>
double worst(Now now, Wanted wanted, Size size, float& at) {
  double out = 0;
  over_floats([&](float x) {
    if (!std::isfinite(x)) return;
    const double error = std::fabs(double(now(x)) - wanted(double(x))) / ulp(size(double(x)));
    if (!(error <= out)) out = error, at = x;
  });
  return out;
}

double phi(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * 3.14159265358979323846); }

template <class Function, class Derivative>
void check_limits(Function f, Derivative d) {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(f(inf) == inf);
  CHECK(bits_of(f(-inf)) == kSign);
  CHECK(d(inf) == 1.0f);
  CHECK(d(-inf) == 0.0f);
  CHECK(f(3e38f) == 3e38f);
  CHECK(f(-3e38f) == 0.0f);
  CHECK(d(3e38f) == 1.0f);
  CHECK(bits_of(f(0.0f)) == 0u);
  CHECK(f(-0.0f) == 0.0f);
  CHECK(d(0.0f) == 0.5f);
  for (const u32 nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu}) {
    CHECK(std::isnan(f(float_of(nan))));
    CHECK(std::isnan(d(float_of(nan))));
  }
}

}  // namespace

TEST_CASE("activation.values lie within a few last places of double") {
  float at = 0;
  const auto check = [&](auto now, auto wanted, double most) {
    const double found = worst(
        now, wanted, [&](double x) { return std::fabs(wanted(x)); }, at);
    CAPTURE(at);
    CHECK(found < most);
    CHECK(found > 0.5);  // no function of more than one step is that good: the measure works
  };
  check([](float x) { return silu(x); }, [](double x) { return ref::silu(x); }, 3.0);
  check([](float x) { return gelu(x); }, [](double x) { return ref::gelu(x, ref::GeluForm::erf); },
        6.0);
  check([](float x) { return gelu_tanh(x); },
        [](double x) { return ref::gelu(x, ref::GeluForm::tanh); }, 4.0);
}

TEST_CASE("activation.derivatives lie within a few last places of their terms") {
  float at = 0;
  const auto check = [&](auto now, auto wanted, auto terms, double most) {
    const double found = worst(now, wanted, terms, at);
    CAPTURE(at);
    CHECK(found < most);
  };
  const auto sigmoid = [](double x) {
    return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
  };
  check([](float x) { return silu_derivative(x); },
        [](double x) { return ref::silu_derivative(x); },
        [&](double x) { return sigmoid(x) + std::fabs(x) * sigmoid(x) * sigmoid(-x); }, 4.0);
  check([](float x) { return gelu_derivative(x); },
        [](double x) { return ref::gelu_derivative(x, ref::GeluForm::erf); },
        [](double x) { return std::erfc(-x / std::sqrt(2.0)) / 2 + std::fabs(x) * phi(x); }, 6.0);
  check([](float x) { return gelu_tanh_derivative(x); },
        [](double x) { return ref::gelu_derivative(x, ref::GeluForm::tanh); },
        [&](double x) {
          const double bounded = std::clamp(x, -100.0, 100.0);
          const double slope = 2 * std::sqrt(2 / 3.14159265358979323846);
          const double w = slope * (bounded + 0.044715 * bounded * bounded * bounded);
          return sigmoid(w) + std::fabs(bounded) * slope * (1 + 3 * 0.044715 * bounded * bounded) *
                                  sigmoid(w) * sigmoid(-w);
        },
        5.0);
}

TEST_CASE("activation.infinities and NaN give limits and NaN") {
  check_limits([](float x) { return silu(x); }, [](float x) { return silu_derivative(x); });
  check_limits([](float x) { return gelu(x); }, [](float x) { return gelu_derivative(x); });
  check_limits([](float x) { return gelu_tanh(x); },
               [](float x) { return gelu_tanh_derivative(x); });
}

TEST_CASE("activation.swiglu's gradient is the product rule's") {
  const GateGradient d = swiglu_gradient(2.0f, 0.5f, -3.0f);
  CHECK(d.gate == mul(-6.0f, silu_derivative(0.5f)));
  CHECK(d.value == mul(2.0f, silu(0.5f)));
  CHECK(swiglu(0.5f, -3.0f) == mul(silu(0.5f), -3.0f));
}

TEST_CASE("activation.a fused multiply-add rounds once") {
  std::mt19937 random(72);
  long wrong = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const float a = float_of(u32(random())), b = float_of(u32(random()));
    float c = float_of(u32(random()));
    if (i % 2) c = -a * b * float_of((random() & 0x7fffffu) | 0x3f000000u);  // cancels in part
    if (i % 4 == 3) c = std::nextafter(-a * b, c);
    const float wanted = std::fma(a, b, c), now = fused(a, b, c);
    wrong += std::isnan(wanted) ? !std::isnan(now) : bits_of(wanted) != bits_of(now);
  }
  CHECK(wrong == 0);
}
