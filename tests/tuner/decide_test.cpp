// Never worse than the default: decisions on a simulated device that drifts, throttles and hiccups.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/tuner/simulated_device.hpp"
#include "tuner/decide.hpp"
#include "tuner/race.hpp"

using namespace quarterturn;
using simulated::Device;

namespace {

Contender contender(std::string plan, double speedup, double spread, std::int64_t registers = 0) {
  Contender c{std::move(plan), {}, 0, registers, 0};
  for (int i = 0; i < 16; ++i) c.log_speedups.push_back(std::log(speedup) + spread * (i - 7.5) / 8);
  return c;
}

std::vector<double> quiet_self() {
  std::vector<double> out;
  for (int i = 0; i < 16; ++i) out.push_back(0.001 * (i - 7.5) / 8);
  return out;
}

// One whole tuning of a problem: screening, halving, confirmation, decision.
Decision tune(Device& device, std::size_t candidates) {
  MeasureSettings measure;
  measure.seed = 99;
  PairedTimer timer(device, device, device, measure);
  const RaceSettings race;
  const auto never = [] { return false; };
  std::vector<std::size_t> all;
  for (std::size_t i = 1; i <= candidates; ++i) all.push_back(i);
  REQUIRE(screen(timer, all, race, never).ok());
  const auto finalists = halve(timer, all, race, never);
  REQUIRE(finalists.ok());
  const auto decision = [&] {
    std::vector<Contender> contenders;
    for (const auto i : *finalists)
      contenders.push_back({std::to_string(i), timer.series(i).log_speedups, 0, 0, 0});
    return decide(contenders, timer.self().log_speedups, {});
  };
  REQUIRE(confirm(timer, *finalists, race, never, [&] { return decision().settled; }).ok());
  auto out = decision();
  if (out.winner) out.winner = (*finalists)[*out.winner];
  return out;
}

}  // namespace

TEST_CASE("a clear gain wins, with its interval") {
  const auto d = decide({contender("fast", 1.2, 0.01)}, quiet_self(), {});
  REQUIRE(d.winner);
  CHECK(*d.winner == 0);
  CHECK(d.speedup == doctest::Approx(1.2).epsilon(0.005));
  CHECK(d.low > 1.15);
  CHECK(d.high < 1.25);
  CHECK(d.ties == std::vector<std::size_t>{0});
}

TEST_CASE("no gain, a small gain, a slower plan and an uncertain gain leave the default") {
  CHECK(!decide({contender("same", 1.0, 0.01)}, quiet_self(), {}).winner);
  CHECK(!decide({contender("small", 1.006, 0.001)}, quiet_self(), {}).winner);
  CHECK(!decide({contender("slow", 0.8, 0.01)}, quiet_self(), {}).winner);
  const auto uncertain = decide({contender("wild", 1.05, 0.5)}, quiet_self(), {});
  CHECK(!uncertain.winner);
  CHECK(!uncertain.settled);
  CHECK(!decide({}, {}, {}).winner);
}

TEST_CASE("a gain inside the noise of the control is none") {
  std::vector<double> noisy;
  for (int i = 0; i < 16; ++i) noisy.push_back(i % 2 ? 0.2 : -0.2);
  CHECK(!decide({contender("fast", 1.1, 0.01)}, noisy, {}).winner);
}

TEST_CASE("few samples decide nothing") {
  auto c = contender("fast", 1.5, 0.01);
  c.log_speedups.resize(8);
  CHECK(!decide({c}, quiet_self(), {}).winner);
}

TEST_CASE(
    "ties go to fewer registers, then to the fixed order of hashes, whatever the list's order") {
  const auto a = contender("a", 1.200, 0.01, 40), b = contender("b", 1.203, 0.01, 32);
  CHECK(*decide({a, b}, quiet_self(), {}).winner == 1);
  CHECK(*decide({b, a}, quiet_self(), {}).winner == 0);
  const auto c = contender("c", 1.200, 0.01), d = contender("d", 1.204, 0.01);
  const bool first = *decide({c, d}, quiet_self(), {}).winner == 0;
  CHECK((*decide({d, c}, quiet_self(), {}).winner == 1) == first);
  CHECK(decide({c, d}, quiet_self(), {}).ties.size() == 2);
  CHECK(decide({c, d}, quiet_self(), {}).regret < 0.03);
  // Not a tie: 5 % apart.
  CHECK(*decide({contender("e", 1.10, 0.01, 1), contender("f", 1.2, 0.01, 99)}, quiet_self(), {})
             .winner == 1);
}

TEST_CASE("never worse than the default: true regressions above 1 % win at most once in 1000") {
  const Device::Character characters[] = {
      {.noise = 0.005},
      {.noise = 0.03, .outliers = 0.05},
      {.noise = 0.02, .outliers = 0.1, .drift = 0.02},
      {.noise = 0.01, .throttle_period = 0.9},
      {.noise = 0.01, .outliers = 0.02, .throttle_period = 0.5, .observer_sees = false},
      {.noise = 0.02, .outliers = 0.05, .drift = -0.002, .stepping = 0.02},
  };
  int wrong = 0, tunings = 0;
  for (std::uint64_t seed = 0; seed < 340; ++seed)
    for (const auto& character : characters) {
      // Everything is slower, by 1 % to 6 %, at two sizes.
      std::vector<std::vector<double>> seconds{{1e-3, 4e-3}};
      Random random(seed);
      for (int i = 0; i < 8; ++i) {
        const double slower = 1.0101 + 0.05 * random.unit() * random.unit();
        seconds.push_back({1e-3 * slower, 4e-3 * slower});
      }
      Device device(seconds, character, seed * 31 + 1);
      wrong += tune(device, 8).winner.has_value();
      ++tunings;
    }
  CHECK_MESSAGE(wrong * 1000 <= tunings, wrong << " of " << tunings);
}

TEST_CASE("a real gain of 10 % is found in spite of all that") {
  const Device::Character characters[] = {
      {.noise = 0.005},
      {.noise = 0.02, .outliers = 0.02, .drift = 0.01},
      {.noise = 0.01, .throttle_period = 0.9},
  };
  int found = 0, tunings = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed)
    for (const auto& character : characters) {
      std::vector<std::vector<double>> seconds{{1e-3}};
      for (int i = 0; i < 12; ++i) seconds.push_back({i == 7 ? 0.9e-3 : 1e-3 * (1 + 0.01 * i)});
      Device device(seconds, character, seed + 1000);
      const auto decision = tune(device, 12);
      found += decision.winner && *decision.winner == 8;
      ++tunings;
    }
  CHECK_MESSAGE(found * 100 >= tunings * 95, found << " of " << tunings);
}
