#include "tuner/recheck.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace quarterturn;

TEST_CASE("recheck.three trials keep an answer, queue it, or leave its place to the default") {
  using Answer = Rechecked::Answer;
  const auto judge = [](double a, double b, double c, double low, double noise = 0.01) {
    return judge_recheck({std::log(a), std::log(b), std::log(c)}, low, noise);
  };
  CHECK(judge(1.30, 1.29, 1.31, 1.28) == Answer::kept);
  CHECK(judge(1.27, 0.50, 9.00, 1.28) == Answer::kept);  // the median, within the noise
  CHECK(judge(1.10, 1.11, 1.12, 1.28) == Answer::queued);
  CHECK(judge(1.005, 1.004, 1.003, 1.28) == Answer::fallback);
  CHECK(judge(0.90, 0.91, 0.92, 1.28) == Answer::fallback);
  CHECK(judge(1.10, 1.11, 1.12, 1.28, 0.2) == Answer::kept);
  // The default itself was the answer, and is another plan now.
  CHECK(judge(1.0, 1.0, 1.0, 1.0) == Answer::kept);
  CHECK(judge(0.9, 0.9, 0.9, 1.0) == Answer::fallback);
  CHECK(judge_recheck({}, 1.2, 0.01) == Answer::fallback);
}
