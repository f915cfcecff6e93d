// qturn doctor --cluster and --compare: what nodes say of themselves, and where they differ.
#include <doctest/doctest.h>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

using Facts = std::map<std::string, std::string>;

Facts facts_of(const Outcome& outcome, const std::string& node) {
  Facts out;
  for (const auto& line : outcome.lines()) {
    CHECK(line.at("node") == node);
    CHECK(out.emplace(line.at("fact"), line.at("value")).second);
  }
  return out;
}

// As a launcher with labels collects them.
std::string lines_for(const std::string& node, const Facts& facts) {
  std::string out;
  for (const auto& [fact, value] : facts)
    out += node + ": " + nlohmann::json{{"node", node}, {"fact", fact}, {"value", value}}.dump() +
           "\n";
  return out;
}

}  // namespace

TEST_CASE(
    "doctor --cluster tells versions, devices, places and the clock against a shared folder") {
  Home home;
  home.set("QTURN_SNAPSHOTS", (home / "none").string());
  home.set("TMPDIR", home.path().string());
  const auto outcome =
      home.run({"doctor", "--cluster", "--node", "n7", "--shared", home.path().string()});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const auto facts = facts_of(outcome, "n7");
  for (const char* fact : {"library", "cores", "device cpu", "compiler c++", "database filesystem",
                           "code filesystem", "code free", "scratch free", "shared filesystem",
                           "setting on_miss", "setting snapshot_keys"})
    CHECK_MESSAGE(facts.count(fact) == 1, fact);
  CHECK(std::abs(std::stod(facts.at("clock"))) < 5);
  CHECK(std::stod(facts.at("database free")) > 0);
  CHECK(facts.at("snapshot " + (home / "none").string()).find("cannot open") == 0);
  for (const auto& entry : std::filesystem::directory_iterator(home.path()))
    CHECK(entry.path().extension() != ".clock");
  CHECK(home.run({"doctor", "--cluster", "--shared", (home / "none").string()}).code == 2);
  CHECK(home.run({"doctor", "--node", "n7"}).code == 2);
}

TEST_CASE("doctor --compare names the nodes that differ, and what to do") {
  const Home home;
  const Facts sound{{"library", "0.1.0"},
                    {"clock", "0.002"},
                    {"cores", "64"},
                    {"device cuda:0", "sm_90a (nvidia units=132)"},
                    {"driver nvidia", "580.65"},
                    {"setting on_miss", "heuristic"},
                    {"snapshot /shared/q", "generation 3, winners aa"},
                    {"database filesystem", "local xfs"},
                    {"database free", "100000000000"},
                    {"something newer", "told"}};
  std::string all;
  for (const char* node : {"n1", "n2", "n3"}) all += lines_for(node, sound);
  const auto good = (home / "good.jsonl").string(), mixed = (home / "mixed.jsonl").string();
  std::ofstream(good) << all << "\n";
  const auto fine = home.run({"doctor", "--compare", good, "--json"});
  CHECK_MESSAGE(fine.code == 0, fine.err);
  CHECK(fine.says("3 nodes: 0 things are wrong, 0 could be better"));
  for (const auto& line : fine.lines()) CHECK(line.at("state") == "ok");

  auto odd = sound;
  odd["library"] = "0.0.9";
  odd["clock"] = "-3600.5";
  odd["driver nvidia"] = "570.1";
  odd["device cuda:0"] = "sm_90a (nvidia units=114)";
  odd["database filesystem"] = "network nfs";
  odd["database free"] = "1000000";
  odd["cores"] = "32";
  odd.erase("snapshot /shared/q");
  std::ofstream(mixed) << lines_for("n4", odd);
  const auto found = home.run({"doctor", "--compare", good, mixed, "--json"});
  CHECK(found.code == 1);
  CHECK(found.says("4 nodes: 5 things are wrong, 2 could be better"));
  std::map<std::string, std::string> remedies, states;
  for (const auto& line : found.lines())
    if (line.at("nodes") == "n4") {
      states[line.at("what")] = line.at("state");
      remedies[line.at("what")] = line.at("remedy");
    }
  CHECK(states == Facts{{"library", "wrong"},
                        {"clock", "wrong"},
                        {"driver nvidia", "note"},
                        {"device cuda:0", "note"},
                        {"database filesystem", "wrong"},
                        {"database free", "wrong"},
                        {"snapshot /shared/q", "wrong"}});
  CHECK(remedies.at("clock").find("chrony") != std::string::npos);
  CHECK(remedies.at("database filesystem").find("QTURN_DATABASE") != std::string::npos);
  CHECK(found.says("32 to 64"));

  std::ofstream(mixed) << all << "{\"node\": 3}\n";
  const auto broken = home.run({"doctor", "--compare", mixed});
  CHECK(broken.code == 2);
  CHECK(broken.says("mixed.jsonl:31"));
  std::ofstream(mixed) << "\n";
  CHECK(home.run({"doctor", "--compare", mixed}).code == 2);
  CHECK(home.run({"doctor", "--compare", (home / "none").string()}).code == 3);
}
