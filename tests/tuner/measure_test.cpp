// Paired rounds: what drift, disturbance, failure and a wrong clock do to them.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/tuner/simulated_device.hpp"
#include "tuner/measure.hpp"
#include "tuner/race.hpp"
#include "tuner/statistics.hpp"

using namespace quarterturn;
using simulated::Device;

namespace {

bool never() { return false; }

}  // namespace

TEST_CASE("drift cancels: the ratio is right although no two times are alike") {
  Device device({{1e-3}, {0.8e-3}}, {.noise = 0, .drift = 0.5, .per_batch = 0}, 1);
  PairedTimer timer(device, device, device, {});
  for (int i = 0; i < 10; ++i) REQUIRE(timer.round({1}).ok());
  CHECK(median(timer.series(1).log_speedups) == doctest::Approx(std::log(1 / 0.8)).epsilon(0.01));
  CHECK(std::fabs(median(timer.self().log_speedups)) < 1e-3);
  CHECK(timer.series(1).seconds[0].size() == 10);
  CHECK(timer.series(1).seconds[0].back() > 1.05 * timer.series(1).seconds[0].front());
}

TEST_CASE("short calls are batched until the clock can read them") {
  struct Counting : Device {
    using Device::Device;
    Result<double> run(std::size_t candidate, std::size_t size, std::int64_t repeats) override {
      most = std::max(most, repeats);
      return Device::run(candidate, size, repeats);
    }
    std::int64_t most = 0;
  } device({{1e-7}, {1e-7}}, {.noise = 0}, 1);
  PairedTimer timer(device, device, device, {});
  REQUIRE(timer.round({1}).ok());
  CHECK(static_cast<double>(device.most) * 1e-7 > 0.6 * MeasureSettings{}.batch_seconds);
}

TEST_CASE("every size counts the same, however long it takes") {
  Device device({{1e-4, 1e-2}, {0.5e-4, 2e-2}}, {.noise = 0, .per_batch = 0}, 1);
  PairedTimer timer(device, device, device, {});
  for (int i = 0; i < 4; ++i) REQUIRE(timer.round({1}).ok());
  CHECK(median(timer.series(1).log_speedups) == doctest::Approx(0).epsilon(0.001));
  CHECK(timer.series(1).seconds.size() == 2);
}

TEST_CASE("throttled rounds are discarded, but only so many") {
  Device device({{1e-3}, {0.9e-3}}, {.noise = 0, .throttle_period = 0.2}, 1);
  PairedTimer timer(device, device, device, {});
  for (int i = 0; i < 40; ++i) REQUIRE(timer.round({1}).ok());
  CHECK(timer.discarded() > 0);
  CHECK(timer.discarded() <= MeasureSettings{}.most_discarded);
  CHECK(timer.series(1).log_speedups.size() == 40);
  CHECK(median(timer.series(1).log_speedups) == doctest::Approx(std::log(1 / 0.9)).epsilon(0.02));
}

TEST_CASE("a candidate that fails leaves, and the others go on") {
  Device device({{1e-3}, {0.9e-3}, {0.8e-3}}, {}, 1);
  device.break_candidate(1);
  PairedTimer timer(device, device, device, {});
  for (int i = 0; i < 20; ++i) REQUIRE(timer.round({1, 2}).ok());
  CHECK(!timer.alive(1));
  CHECK(timer.series(1).failure.message() == "illegal access");
  CHECK(timer.series(2).log_speedups.size() == 20);
  CHECK(ranking(timer, {1, 2}) == std::vector<std::size_t>{2});
}

TEST_CASE("a failing control ends the race") {
  Device device({{1e-3}, {0.9e-3}}, {}, 1);
  device.break_candidate(0);
  PairedTimer timer(device, device, device, {});
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = timer.round({1});
  CHECK(status.code() == Code::launch_failed);
}

TEST_CASE("a hopeless candidate runs no second time") {
  Device device({{1e-3}, {30e-3}, {1e-3}}, {}, 1);
  PairedTimer timer(device, device, device, {});
  for (int i = 0; i < 3; ++i) REQUIRE(timer.round({1, 2}).ok());
  CHECK(timer.series(1).failure.code() == Code::rejected);
  CHECK(timer.series(2).log_speedups.size() == 3);
}

TEST_CASE("a device clock that disagrees with the wall clock is an error, not a speed-up") {
  for (const double rate : {1.5, 0.1}) {
    Device device({{1e-2}, {1e-2}}, {.clock_rate = rate}, 1);
    PairedTimer timer(device, device, device, {});
    Status status;
    for (int i = 0; i < 20 && status.ok(); ++i) status = timer.round({1});
    CHECK(!status.ok());
    CHECK(status.message().find("wall clock") != std::string::npos);
  }
}

TEST_CASE("a machine that slept once, or is busy all the time, is measured all the same") {
  Device slept({{1e-2}, {0.8e-2}}, {.noise = 0}, 1);
  slept.sleep_at(25);
  Device busy({{1e-2}, {0.8e-2}}, {.noise = 0, .waits = 0.05, .others = 1.5}, 1);
  for (Device* device : {&slept, &busy}) {
    PairedTimer timer(*device, *device, *device, {});
    for (int i = 0; i < 20; ++i) REQUIRE(timer.round({1}).ok());
    CHECK(timer.series(1).log_speedups.size() == 20);
    CHECK(median(timer.series(1).log_speedups) == doctest::Approx(std::log(1 / 0.8)).epsilon(0.05));
  }
  // Where nobody else runs, waiting has no excuse.
  Device hiding({{1e-2}, {0.8e-2}}, {.noise = 0, .waits = 0.05}, 1);
  PairedTimer timer(hiding, hiding, hiding, {});
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = timer.round({1});
  CHECK(status.message().find("wall clock") != std::string::npos);
}

TEST_CASE("halving keeps the fastest and spends little on the rest") {
  std::vector<std::vector<double>> seconds{{1e-3}};
  for (int i = 0; i < 40; ++i) seconds.push_back({1e-3 * (0.8 + 0.02 * ((i * 17) % 40))});
  Device device(seconds, {.noise = 0.005}, 3);
  PairedTimer timer(device, device, device, {});
  std::vector<std::size_t> all;
  for (std::size_t i = 1; i <= 40; ++i) all.push_back(i);
  REQUIRE(screen(timer, all, {}, never).ok());
  const auto finalists = halve(timer, all, {}, never);
  REQUIRE(finalists.ok());
  REQUIRE(finalists->size() == 3);
  CHECK((*finalists)[0] == 1);
  std::size_t rounds = 0;
  for (const auto i : all) rounds += timer.series(i).log_speedups.size();
  CHECK(rounds == 40 * 2 + 10 * 4);
  REQUIRE(confirm(timer, *finalists, {}, never, [] { return true; }).ok());
  CHECK(timer.series(1).log_speedups.size() == 16);
  CHECK(timer.series(2).log_speedups.empty());
}

TEST_CASE("a race that is stopped keeps what it has") {
  Device device({{1e-3}, {0.9e-3}, {0.7e-3}}, {}, 1);
  PairedTimer timer(device, device, device, {});
  int asked = 0;
  REQUIRE(screen(timer, {1, 2}, {}, [&] { return ++asked > 1; }).ok());
  CHECK(timer.series(1).log_speedups.size() == 1);
}
