#include "tuner/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tuner/random.hpp"

namespace quarterturn {
namespace {

constexpr int kResamples = 1000;

double median_of(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

// How many of the smallest samples must be given up: the largest k with P(Binomial(n, 1/2) <= k) <=
// error, or -1 when even k = 0 is too likely.
int sign_test_rank(std::size_t n, double error) {
  double term = std::pow(0.5, static_cast<double>(n)), sum = 0;
  int rank = -1;
  for (std::size_t k = 0; k < n; ++k) {
    sum += term;
    if (sum > error) break;
    rank = static_cast<int>(k);
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1);
  }
  return rank;
}

}  // namespace

double median(std::span<const double> samples) {
  if (samples.empty()) return 0;
  std::vector<double> values(samples.begin(), samples.end());
  return median_of(values);
}

Interval bootstrap_median(std::span<const double> samples, double confidence, std::uint64_t seed) {
  if (samples.empty()) return {};
  Random random(seed);
  std::vector<double> drawn(samples.size()), medians(kResamples);
  for (double& m : medians) {
    for (double& value : drawn) value = samples[random.below(samples.size())];
    m = median_of(drawn);
  }
  std::sort(medians.begin(), medians.end());
  const double tail = 0.5 * (1 - confidence) * (kResamples - 1);
  const auto low = static_cast<std::size_t>(std::floor(tail));
  return {medians[low], medians[kResamples - 1 - low]};
}

double median_lower_bound(std::span<const double> samples, double error) {
  const int rank = sign_test_rank(samples.size(), error);
  if (rank < 0) return -std::numeric_limits<double>::infinity();
  std::vector<double> values(samples.begin(), samples.end());
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<std::size_t>(rank)];
}

double median_upper_bound(std::span<const double> samples, double error) {
  std::vector<double> negated(samples.begin(), samples.end());
  for (double& value : negated) value = -value;
  return -median_lower_bound(negated, error);
}

}  // namespace quarterturn
