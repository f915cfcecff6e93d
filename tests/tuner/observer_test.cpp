// Reading /proc as it comes.
#include <doctest/doctest.h>

#include "tuner/observer.hpp"

using namespace quarterturn;

TEST_CASE("processor times are those of the allowed processors") {
  const char* stat =
      "cpu  1000 0 500 9000 0 0 0 300 0 0\n"
      "cpu0 100 1 50 900 7 2 3 30 0 0\n"
      "cpu1 900 0 450 8100 0 0 0 270 0 0\n"
      "intr 12345\nctxt 6\n";
  const auto one = parse_cpu_times(stat, {0});
  CHECK(one.busy == 100 + 1 + 50 + 2 + 3);
  CHECK(one.stolen == 30);
  CHECK(one.all == 100 + 1 + 50 + 900 + 7 + 2 + 3 + 30);
  CHECK(parse_cpu_times(stat, {0, 1}).stolen == 300);
  CHECK(parse_cpu_times("", {0}).all == 0);
}

TEST_CASE("the clock is the fastest that any processor states") {
  CHECK(parse_clock_mhz("cpu MHz\t\t: 2200.5\nother\ncpu MHz\t\t: 3100.0\n") == 3100);
  CHECK(parse_clock_mhz("Processor: ARM\n") == 0);
}

TEST_CASE("the observer of this machine answers without fail") {
  LinuxObserver observer;
  const auto seen = observer.observe();
  CHECK(seen.stolen >= 0);
  CHECK(seen.stolen <= 1);
  CHECK(seen.others >= 0);
}
