// Robust statistics of paired timings: medians, and how sure one may be of them.
#pragma once

#include <cstdint>
#include <span>

namespace quarterturn {

struct Interval {
  double low = 0;
  double high = 0;
};

/// The middle value, or the mean of the two middle ones; 0 for no samples.
double median(std::span<const double> samples);

/// Percentile bootstrap of the median (Efron 1979), in the limit of infinitely many resamples,
/// which has a closed form. A single sample gives an interval of no width: see median_lower_bound
/// for decisions.
Interval bootstrap_median(std::span<const double> samples, double confidence);

/// A bound that lies above the true median with probability at most `error`, whatever the
/// distribution: an order statistic, from the sign test. Minus infinity when there are too few
/// samples for that.
double median_lower_bound(std::span<const double> samples, double error);

/// A bound for the other side, likewise.
double median_upper_bound(std::span<const double> samples, double error);

/// Spearman's: the correlation of ranks, ties at their mean rank; 0 where one side has no spread.
/// Both have the same size.
double rank_correlation(std::span<const double> a, std::span<const double> b);

}  // namespace quarterturn
