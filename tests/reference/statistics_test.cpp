// The measures themselves, on numbers small enough to check by hand.
#include "reference/statistics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace quarterturn::reference;

TEST_CASE("statistics.error sums") {
  ErrorSums sums;
  sums.add(3, 2);    // error 1, energy 9, product 6
  sums.add(-4, -5);  // error 1, energy 16, product 20
  CHECK(sums.relative_mse() == doctest::Approx(2.0 / 25));
  CHECK(sums.sqnr_db() == doctest::Approx(10.969100130080564));
  CHECK(sums.shrink() == doctest::Approx(1 - 26.0 / 25));
  CHECK(ErrorSums().relative_mse() == 0);
}

TEST_CASE("statistics.group alignment averages over groups, not elements, and skips empty ones") {
  GroupAlignment alignment;
  const std::vector<float> small = {1, 0}, large = {0, 100}, zero = {0, 0};
  alignment.add_group(small, std::vector<double>{0.5, 0});
  alignment.add_group(large, std::vector<double>{0, 100});
  alignment.add_group(zero, std::vector<double>{0, 0});
  CHECK(alignment.mean() == doctest::Approx(0.25));
}

TEST_CASE("statistics.normal quantiles") {
  CHECK(normal_quantile(0.5) == doctest::Approx(0).epsilon(1e-9));
  CHECK(normal_quantile(0.025) == doctest::Approx(1.959963984540054).epsilon(1e-9));
  CHECK(normal_quantile(1e-6) == doctest::Approx(4.753424308822899).epsilon(1e-9));
}

TEST_CASE("statistics.the bias test accepts chance and rejects bias") {
  // An element midway between 1 and 2: the mean of 10000 draws deviates by 0.005.
  const auto test = [](double mean) {
    BiasTest bias(10000);
    bias.add(1.5, 1, 2, mean);
    return bias.unbiased();
  };
  CHECK(test(1.5));
  CHECK(test(1.512));        // 2.4 deviations; the bound for one element is 2.576
  CHECK_FALSE(test(1.514));  // 2.8
  CHECK_FALSE(test(1.486));

  BiasTest drift(10000);  // each element passes, all together do not
  for (int i = 0; i < 100; ++i) drift.add(1.5, 1, 2, 1.5025);
  CHECK(drift.worst_z() == doctest::Approx(0.5));
  CHECK(drift.mean_z() == doctest::Approx(0.5));
  CHECK_FALSE(drift.unbiased());

  BiasTest exact(10000);
  exact.add(2, 2, 3, 2);
  CHECK(exact.unbiased());
  exact.add(2, 2, 3, 2.0001);
  CHECK_FALSE(exact.unbiased());
}
