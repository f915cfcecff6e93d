// Activations against known values, and derivatives against differences.
#include "reference/epilogue.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

using namespace quarterturn::reference;

namespace {

template <typename Function>
double slope_at(const Function& f, double x) {
  const double h = 1e-3;  // fourth order: the error is below 1e-11 for these functions
  return (8 * (f(x + h) - f(x - h)) - (f(x + 2 * h) - f(x - 2 * h))) / (12 * h);
}

}  // namespace

TEST_CASE("gelu.known values of both forms") {
  // x Phi(x), with Phi(1) = 0.8413447460685429 and Phi(2) = 0.9772498680518208.
  CHECK(gelu(1, GeluForm::erf) == doctest::Approx(0.8413447460685429).epsilon(1e-14));
  CHECK(gelu(-1, GeluForm::erf) == doctest::Approx(-0.1586552539314571).epsilon(1e-13));
  CHECK(gelu(2, GeluForm::erf) == doctest::Approx(1.9544997361036416).epsilon(1e-14));
  CHECK(gelu(0, GeluForm::erf) == 0);
  CHECK(gelu(0, GeluForm::tanh) == 0);
  CHECK(gelu(1, GeluForm::tanh) == doctest::Approx(0.8411919906082768).epsilon(1e-12));
  CHECK(gelu(40, GeluForm::erf) == 40);
  CHECK(gelu(40, GeluForm::tanh) == 40);
  // The left tail keeps its digits: -10 Phi(-10) with Phi(-10) = 7.61985302416e-24.
  CHECK(gelu(-10, GeluForm::erf) / -7.61985302416e-23 == doctest::Approx(1).epsilon(1e-10));
}

TEST_CASE("gelu.the tanh form stays within its known distance of the exact one") {
  double worst = 0;
  for (double x = -8; x <= 8; x += 1.0 / 256)
    worst = std::max(worst, std::fabs(gelu(x, GeluForm::erf) - gelu(x, GeluForm::tanh)));
  CHECK(worst < 5e-4);
  CHECK(worst > 4e-4);  // and the two forms are not one
}

TEST_CASE("activations.derivatives equal differences") {
  for (double x = -6; x <= 6; x += 0.37) {
    for (const auto form : {GeluForm::erf, GeluForm::tanh})
      CHECK(std::fabs(gelu_derivative(x, form) -
                      slope_at([&](double v) { return gelu(v, form); }, x)) < 1e-9);
    CHECK(std::fabs(silu_derivative(x) - slope_at(silu, x)) < 1e-9);
  }
}

TEST_CASE("silu.known values") {
  CHECK(silu(0) == 0);
  CHECK(silu(1) == doctest::Approx(0.7310585786300049).epsilon(1e-14));
  CHECK(silu(-1) == doctest::Approx(-0.2689414213699951).epsilon(1e-14));
  CHECK(silu(2) - silu(-2) == doctest::Approx(2).epsilon(1e-14));
  CHECK(silu_derivative(0) == 0.5);
}

TEST_CASE("swiglu.the two layouts hold the same pairs") {
  const std::vector<double> split = {1, -2, 0.5, 10, 20, -30};
  const std::vector<double> interleaved = {1, 10, -2, 20, 0.5, -30};
  const auto out = swiglu(split, GateLayout::split);
  REQUIRE(out.size() == 3);
  CHECK(out == swiglu(interleaved, GateLayout::interleaved));
  CHECK(out[0] == silu(1) * 10);
  CHECK(out[1] == silu(-2) * 20);
  CHECK(out[2] == silu(0.5) * -30);
}

TEST_CASE("swiglu.gradients equal differences of the weighted sum of outputs") {
  const std::vector<double> gradient = {0.3, -1.5};
  for (const auto layout : {GateLayout::split, GateLayout::interleaved}) {
    std::vector<double> row = {0.7, -1.1, 2.3, -0.4};
    const auto got = swiglu_gradient(row, gradient, layout);
    REQUIRE(got.size() == row.size());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto loss = [&](double v) {
        auto moved = row;
        moved[i] = v;
        const auto out = swiglu(moved, layout);
        return out[0] * gradient[0] + out[1] * gradient[1];
      };
      CHECK(std::fabs(got[i] - slope_at(loss, row[i])) < 1e-9);
    }
  }
}
