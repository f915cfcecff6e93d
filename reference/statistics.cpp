#include "reference/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace quarterturn::reference {

void ErrorSums::add(double x, double q) {
  error_ += (q - x) * (q - x);
  energy_ += x * x;
  product_ += q * x;
}

double ErrorSums::relative_mse() const { return energy_ > 0 ? error_ / energy_ : 0; }
double ErrorSums::sqnr_db() const { return -10 * std::log10(relative_mse()); }
double ErrorSums::shrink() const { return energy_ > 0 ? 1 - product_ / energy_ : 0; }

void GroupAlignment::add_group(std::span<const float> x, std::span<const double> q) {
  double energy = 0, product = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    energy += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    product += static_cast<double>(x[i]) * q[i];
  }
  if (energy == 0) return;
  sum_ += 1 - product / energy;
  ++groups_;
}

void BiasTest::add(double a, double low, double high, double mean) {
  if (low == high || a == low || a == high) {
    exact_ = exact_ && mean == a;
    return;
  }
  const double deviation = std::sqrt((high - a) * (a - low) / static_cast<double>(draws_));
  add_standardised((mean - a) / deviation);
}

void BiasTest::add_standardised(double z) {
  sum_ += z;
  worst_ = std::max(worst_, std::fabs(z));
  ++elements_;
}

bool BiasTest::unbiased() const {
  if (elements_ == 0) return exact_;
  const double n = static_cast<double>(elements_);
  return exact_ && worst_ < normal_quantile(0.005 / n) && std::fabs(mean_z()) < 4 / std::sqrt(n);
}

double normal_quantile(double p) {
  double low = 0, high = 40;
  for (int i = 0; i < 200; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(middle / std::sqrt(2.0)) > p ? low : high) = middle;
  }
  return low;
}

}  // namespace quarterturn::reference
