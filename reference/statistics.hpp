// Error measures of quantisers, as the literature defines them, and the test that stochastic
// rounding is unbiased.
#pragma once

#include <cstdint>
#include <span>

namespace quarterturn::reference {

/// Running sums over pairs (x, q): the original and the dequantised value.
class ErrorSums {
 public:
  void add(double x, double q);

  double relative_mse() const;  ///< E|q - x|^2 / E|x|^2
  double sqnr_db() const;       ///< -10 log10 of it
  double shrink() const;        ///< 1 - <q, x> / <x, x>, pooled

 private:
  double error_ = 0, energy_ = 0, product_ = 0;
};

/// E[1 - <q, x> / <x, x>] over groups of 32 (the projection magnitude error of Quartet,
/// arXiv:2505.14669).
class GroupAlignment {
 public:
  void add_group(std::span<const float> x, std::span<const double> q);
  double mean() const { return groups_ > 0 ? sum_ / static_cast<double>(groups_) : 0; }

 private:
  double sum_ = 0;
  std::int64_t groups_ = 0;
};

/// Central limit test of unbiasedness. Each element has an exact value a between two neighbours low
/// <= a <= high and a mean over `draws` roundings.
class BiasTest {
 public:
  explicit BiasTest(std::int64_t draws) : draws_(draws) {}

  /// An element on the grid (low == high) must be exact in every draw.
  void add(double a, double low, double high, double mean);

  /// A mean of another kind, such as a product's: its distance from the truth over its own standard
  /// deviation.
  void add_standardised(double z);

  double worst_z() const { return worst_; }
  double mean_z() const { return elements_ > 0 ? sum_ / static_cast<double>(elements_) : 0; }
  /// Every |z| below the Bonferroni bound at 1 %, the mean z within 4 / sqrt(elements), grid values
  /// exact.
  bool unbiased() const;

 private:
  std::int64_t draws_;
  std::int64_t elements_ = 0;
  double sum_ = 0, worst_ = 0;
  bool exact_ = true;
};

/// The x with P(Z > x) = p for a standard normal Z, by bisection of erfc; p in (0, 0.5].
double normal_quantile(double p);

}  // namespace quarterturn::reference
