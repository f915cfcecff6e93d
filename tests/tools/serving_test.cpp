// What programs asked for and how they are held to it: misses that are tuned later, lock files,
// hashes that ranks compare.
#include <doctest/doctest.h>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

TEST_CASE("what was missed is tuned later, most time first, and leaves the list") {
  const Home home;
  for (const char* shape : {"4x96x128", "4x32x64"})
    REQUIRE(home.run({"compile", "--shape", shape, "--threads", "2"}).code == 0);
  CHECK(home.info("misses") == 2);
  const std::vector<std::string> command{"tune", "--from-misses", "--threads", "2", "--candidates",
                                         "2",    "--json"};
  auto dry = command;
  dry.push_back("--dry-run");
  const auto planned = home.run(dry);
  REQUIRE_MESSAGE(planned.code == 0, planned.err);
  REQUIRE(planned.lines().size() == 2);
  CHECK(planned.lines()[0].at("problem").get<std::string>().find("96x128") != std::string::npos);
  CHECK(planned.lines()[0].at("layers") == "missed");
  // An answer for lack of time is none.
  auto short_of_time = command;
  short_of_time.insert(short_of_time.end(), {"--time-limit", "0.001"});
  REQUIRE(home.run(short_of_time).code == 0);
  CHECK(home.info("misses") == 2);
  const auto tuned = home.run(command);
  REQUIRE_MESSAGE(tuned.code == 0, tuned.err);
  CHECK(tuned.lines().size() == 2);
  CHECK(home.info("misses") == 0);
  const auto nothing = home.run(command);
  CHECK(nothing.code == 0);
  CHECK(nothing.err.find("nothing was missed") != std::string::npos);
}

TEST_CASE("a lock file holds a run to its plans, and the hash tells runs apart") {
  Home home;
  const std::vector<std::string> device{"--threads", "2", "--json"};
  const auto run = [&](std::vector<std::string> command) {
    command.insert(command.end(), device.begin(), device.end());
    return home.run(command);
  };
  const auto hash = [&] {
    const auto outcome = run({"config", "--snapshot-hash"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return outcome.lines().back().at("value").get<std::string>();
  };
  const auto before = hash();
  CHECK(before.size() == 64);
  const auto file = (home / "tuning.lock").string();
  const auto written = run({"lock", "write", "-o", file, "--shape", "4x96x128"});
  REQUIRE_MESSAGE(written.code == 0, written.err);
  CHECK(run({"lock", "write", "-o", file, "--stored"}).code == 1);
  CHECK(run({"lock", "check", file}).code == 0);
  const auto lacking = run({"lock", "check", file, "--shape", "4x32x64"});
  CHECK(lacking.code == 1);
  CHECK(lacking.lines().at(0).at("state") == "refused");
  home.set("QTURN_LOCK", file);
  CHECK(hash() != before);
  CHECK(run({"compile", "--shape", "4x96x128"}).code == 0);
  const auto refused = run({"compile", "--shape", "4x32x64"});
  CHECK(refused.code == 1);
  CHECK(refused.err.find("does not name it") != std::string::npos);
  home.set("QTURN_LOCK", (home / "missing.lock").string());
  CHECK(run({"compile", "--shape", "4x96x128"}).code == 3);
  // A new one follows the databases, not the old one.
  CHECK(run({"lock", "write", "-o", file, "--shape", "4x32x64"}).code == 0);
}
