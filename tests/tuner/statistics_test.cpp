// Medians and their intervals, against exact counts and repeated sampling.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tuner/random.hpp"
#include "tuner/statistics.hpp"

using namespace quarterturn;

TEST_CASE("median of odd, even, one and no samples") {
  CHECK(median(std::vector<double>{3, 1, 2}) == 2);
  CHECK(median(std::vector<double>{4, 1, 3, 2}) == 2.5);
  CHECK(median(std::vector<double>{7}) == 7);
  CHECK(median({}) == 0);
}

TEST_CASE("sign-test bounds take the order statistic that the binomial distribution gives") {
  std::vector<double> samples;
  for (int i = 1; i <= 16; ++i) samples.push_back(i);
  // P(Binomial(16, 1/2) <= 1) = 17 / 65536; <= 2: 137 / 65536 = 0.00209.
  CHECK(median_lower_bound(samples, 0.001) == 2);
  CHECK(median_lower_bound(samples, 0.0021) == 3);
  CHECK(median_lower_bound(samples, 0.00002) == 1);
  CHECK(median_upper_bound(samples, 0.001) == 15);
  CHECK(median_lower_bound(samples, 0.00001) == -std::numeric_limits<double>::infinity());
  CHECK(median_lower_bound({}, 0.5) == -std::numeric_limits<double>::infinity());
}

TEST_CASE("the lower bound exceeds the true median no more often than stated") {
  // A skewed distribution with median 0: exp(z) - 1 for a symmetric z.
  Random random(7);
  int wrong = 0;
  const int trials = 40000;
  for (int t = 0; t < trials; ++t) {
    std::vector<double> samples;
    for (int i = 0; i < 16; ++i) {
      double z = -6;
      for (int j = 0; j < 12; ++j) z += random.unit();
      samples.push_back(std::exp(z) - 1);
    }
    wrong += median_lower_bound(samples, 0.01) > 0;
  }
  // P = P(Binomial(16, 1/2) <= 2) = 0.00209 for the order statistic that an error of 0.01 allows.
  CHECK(wrong < trials * 0.0030);
  CHECK(wrong > trials * 0.0012);
}

TEST_CASE("the bootstrap interval is deterministic and covers about as often as it says") {
  Random random(11);
  int covered = 0;
  const int trials = 400;
  for (int t = 0; t < trials; ++t) {
    std::vector<double> samples;
    for (int i = 0; i < 21; ++i) samples.push_back(random.unit() - 0.5);
    const auto interval = bootstrap_median(samples, 0.95);
    const auto again = bootstrap_median(samples, 0.95);
    CHECK(interval.low == again.low);
    CHECK(interval.low <= median(samples));
    CHECK(interval.high >= median(samples));
    covered += interval.low <= 0 && interval.high >= 0;
  }
  CHECK(covered > trials * 0.90);
  CHECK(covered < trials);
}

TEST_CASE("random numbers: streams can be entered anywhere, shuffles are permutations") {
  Random random(5);
  CHECK(random.next() == Random::at(5, 0));
  CHECK(random.next() == Random::at(5, 1));
  std::vector<int> values{0, 1, 2, 3, 4, 5, 6, 7}, sum(8);
  for (int t = 0; t < 8000; ++t) {
    auto copy = values;
    random.shuffle(copy);
    sum[static_cast<std::size_t>(copy[0])] += 1;
  }
  for (const int count : sum) CHECK(std::abs(count - 1000) < 150);
}

TEST_CASE("rank correlation") {
  const double a[] = {3, 1, 2, 40}, same[] = {30, 10, 20, 31}, other[] = {-3, -1, -2, -40};
  CHECK(rank_correlation(a, same) == doctest::Approx(1));
  CHECK(rank_correlation(a, other) == doctest::Approx(-1));
  // Spearman's textbook case with a tie: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
  const double tied[] = {1, 2, 2, 9}, steady[] = {1, 2, 3, 4};
  CHECK(rank_correlation(tied, steady) == doctest::Approx(0.948683));
  const double flat[] = {5, 5, 5, 5};
  CHECK(rank_correlation(a, flat) == 0);
}
