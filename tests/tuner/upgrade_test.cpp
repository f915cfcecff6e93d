// What an update does to a database: every answer of an earlier release serves, and what it costs
// is told beforehand.
#include "tuner/upgrade.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>

#include "generator/family.hpp"
#include "tests/cache/support.hpp"
#include "tests/runtime/temporary_folder.hpp"

using namespace quarterturn;
using test::TemporaryFolder;

namespace {

// A file that a release wrote, as its users have it.
std::string unpacked(const TemporaryFolder& folder, const std::string& name) {
  const auto packed = std::string(QTURN_FIXTURES) + "/" + name + ".gz";
  const gzFile from = gzopen(packed.c_str(), "rb");
  REQUIRE_MESSAGE(from, packed);
  const auto path = folder.file(name);
  std::ofstream to(path, std::ios::binary);
  std::string part(1 << 16, '\0');
  for (int n = 0; (n = gzread(from, part.data(), static_cast<unsigned>(part.size()))) > 0;)
    to.write(part.data(), n);
  REQUIRE(gzclose(from) == Z_OK);
  return path;
}

struct Release {
  const char* file;
  const char* library;
  std::int64_t winners;
};
constexpr Release kReleases[] = {{"tuned_by_0.1.0.db", "0.1.0", 7},
                                 {"h200_tuned_by_0.1.0.db", "0.1.0", 8}};

}  // namespace

TEST_CASE("upgrade.no answer of an earlier release is lost or tuned again") {
  for (const auto& release : kReleases) {
    CAPTURE(release.file);
    const TemporaryFolder folder;
    auto database = Database::open(unpacked(folder, release.file));
    REQUIRE_MESSAGE(database.ok(), database.status().message());
    CHECK(database->take_notes().empty());
    CHECK(database->check()->empty());
    for (const bool same : {true, false}) {
      const auto costs = upgrade_costs(*database, same ? release.library : "99.0.0");
      REQUIRE(costs.ok());
      std::int64_t winners = 0;
      for (const auto& cost : *costs) {
        winners += same ? cost.current : cost.to_recheck;
        CHECK(cost.to_tune == 0);
        CHECK(cost.unreadable == 0);
        CHECK((cost.seconds > 0) == !same);
      }
      CHECK(winners == release.winners);
    }
    // Stale, and still what an equal device is served.
    const auto targets = database->targets();
    REQUIRE(targets.ok());
    for (const auto& target : *targets) {
      const auto winners = database->winners(target);
      REQUIRE(winners.ok());
      for (const auto& winner : *winners) {
        const auto problem = parse_problem(winner.problem);
        REQUIRE(problem.ok());
        CHECK(problem->key() == winner.problem);  // else nobody would find it
        Env newer = *winner.env;
        newer.library = "99.0.0";
        newer.compiler = "another";
        CHECK(compare(*winner.env, newer) == Validity::stale);
      }
    }
  }
}

TEST_CASE("upgrade.a family that means something else, and a problem of a newer version") {
  auto database = Database::open("");
  REQUIRE(database.ok());
  Problem problem;
  problem.op = Op::gemm;
  problem.m = {1, 16};
  problem.n = problem.k = Extent::exactly(64);
  problem.a_type = problem.b_type = DType::mxfp4;
  problem.d_type = DType::bf16;
  auto env = *test::env();
  env.target = "sm_90a";
  const auto plan = default_plan(problem, *parse_target(env.target));
  REQUIRE(plan.ok());
  auto revised = plan->text();
  revised.replace(revised.find("/1{"), 3, "/99{");
  Winner winner;
  winner.env = std::make_shared<const Env>(env);
  int size = 0;
  for (const auto& [key, text] : std::vector<std::pair<std::string, std::string>>{
           {problem.key(), plan->text()}, {"", revised}, {"op=gemm twists=7", plan->text()}}) {
    winner.problem = key;
    if (key.empty()) {
      problem.m.hi = 17 + size++;
      winner.problem = problem.key();
    }
    winner.plan = text;
    auto timing = test::trial(size + 1);
    timing.uuid = test::uuid(100 + size++);
    timing.problem = winner.problem;
    timing.plan = plan->text();
    timing.env = winner.env;
    REQUIRE(database->add_trials(std::vector{timing}).ok());
    REQUIRE(database->set_winner(winner).ok());
  }
  const auto costs = upgrade_costs(*database, env.library);
  REQUIRE(costs.ok());
  REQUIRE(costs->size() == 1);
  const auto& cost = costs->front();
  CHECK(cost.target == "sm_90a");
  CHECK(cost.current == 1);
  CHECK(cost.to_recheck == 0);
  CHECK(cost.to_tune == 1);
  CHECK(cost.unreadable == 1);
  CHECK(cost.seconds > 0);
}
