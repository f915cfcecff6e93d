#include "tuner/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace quarterturn {
namespace {

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

// P(Binomial(n, p) >= least).
double binomial_tail(std::size_t n, double p, std::size_t least) {
  if (p >= 1) return 1;
  double term = std::pow(1 - p, static_cast<double>(n)), sum = 0;
  for (std::size_t k = 0; k < least; ++k) {
    sum += term;
    term *= static_cast<double>(n - k) / static_cast<double>(k + 1) * p / (1 - p);
  }
  return 1 - sum;
}

// Of n values drawn from n with replacement, the `rank`-th smallest (from 1) lies at or below the
// k-th smallest of all with the probability that `rank` of n draws do. The first k (from 0) for
// which that reaches `probability`.
std::size_t resampled_quantile(std::size_t n, std::size_t rank, double probability) {
  for (std::size_t k = 0; k + 1 < n; ++k) {
    const double p = static_cast<double>(k + 1) / static_cast<double>(n);
    if (binomial_tail(n, p, rank) >= probability) return k;
  }
  return n - 1;
}

}  // namespace

double median(std::span<const double> samples) {
  if (samples.empty()) return 0;
  std::vector<double> values(samples.begin(), samples.end());
  return median_of(values);
}

Interval bootstrap_median(std::span<const double> samples, double confidence) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t n = sorted.size();
  const double tail = 0.5 * (1 - confidence);
  Interval out;
  // An even number has two middle values, which are averaged as the median does.
  const std::size_t lower = (n + 1) / 2, upper = n / 2 + 1;
  for (const std::size_t rank : {lower, upper}) {
    out.low += 0.5 * sorted[resampled_quantile(n, rank, tail)];
    out.high += 0.5 * sorted[resampled_quantile(n, rank, 1 - tail)];
  }
  return out;
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

namespace {

// From 0 on; equal values share the mean of theirs.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (std::size_t first = 0; first < order.size();) {
    std::size_t end = first;
    while (end < order.size() && values[order[end]] == values[order[first]]) ++end;
    for (std::size_t i = first; i < end; ++i)
      out[order[i]] = 0.5 * static_cast<double>(first + end - 1);
    first = end;
  }
  return out;
}

}  // namespace

double rank_correlation(std::span<const double> a, std::span<const double> b) {
  const auto x = ranks_of(a), y = ranks_of(b);
  const double middle = 0.5 * (static_cast<double>(x.size()) - 1);
  double both = 0, xs = 0, ys = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    both += (x[i] - middle) * (y[i] - middle);
    xs += (x[i] - middle) * (x[i] - middle);
    ys += (y[i] - middle) * (y[i] - middle);
  }
  return xs > 0 && ys > 0 ? both / std::sqrt(xs * ys) : 0;
}

}  // namespace quarterturn
