// qturn cluster on this machine's CPU: plans, workers that are asked to end or killed, a shared
// folder that goes away, two stages, and one database of all in the end.
#include <doctest/doctest.h>

#include <set>
#include <thread>

#include "tests/tools/qturn.hpp"

using namespace qturn_test;

namespace {

std::vector<std::string> plan(const Home& home, const std::string& shapes,
                              const std::string& shards, const std::string& candidates = "3") {
  return {"cluster",
          "plan",
          "--op",
          "quantize",
          "--shape",
          shapes,
          "--shards",
          shards,
          "--cores",
          "2",
          "--candidates",
          candidates,
          "--threads",
          "2",
          "--json",
          "-o",
          (home / "c").string()};
}

std::vector<std::string> work(const Home& home, const std::vector<std::string>& more = {}) {
  std::vector<std::string> out{"cluster",
                               "work",
                               (home / "c").string(),
                               "--scratch",
                               (home / "scratch").string(),
                               "--threads",
                               "2",
                               "--cores",
                               "2",
                               "--interval",
                               "0.2"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

std::vector<std::string> collect(const Home& home, const std::vector<std::string>& more = {}) {
  std::vector<std::string> out{
      "cluster", "collect", (home / "c").string(), "-o", (home / "all.db").string(), "--json"};
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

/// Files of the campaign's folder, or of the node's disk, with this ending.
std::vector<std::string> files(const Home& home, const std::string& where,
                               const std::string& ending) {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(home / where, error))
    if (const auto path = entry.path().string(); path.ends_with(ending)) out.push_back(path);
  return out;
}

std::set<std::string> trials(const std::vector<std::string>& databases) {
  std::set<std::string> out;
  for (const auto& database : databases)
    for (auto& uuid : rows(database, "SELECT hex(uuid) FROM trial")) out.insert(std::move(uuid));
  return out;
}

bool wait_for(double seconds, const std::function<bool()>& what) {
  const auto begun = std::chrono::steady_clock::now();
  while (!what()) {
    if (std::chrono::steady_clock::now() - begun > std::chrono::duration<double>(seconds))
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace

TEST_CASE("a campaign is planned, worked on by array tasks, and collected into one database") {
  Home home;
  const auto planned = home.run(plan(home, "4x64,6x64", "2"));
  REQUIRE_MESSAGE(planned.code == 0, planned.err);
  REQUIRE(planned.lines().size() == 2);
  CHECK(planned.lines()[0].at("form") == "one stage");
  CHECK(planned.lines()[1].at("form") == "two stages");
  CHECK(planned.lines()[1].at("device_hours").get<double>() <=
        planned.lines()[0].at("device_hours").get<double>());
  CHECK(planned.says("2 problems (0 decided before), at most 6 plans, in 2 shards"));
  const auto text = read_file((home / "c").string());
  REQUIRE(home.run(plan(home, "6x64,4x64", "2")).code == 0);
  CHECK(read_file((home / "c").string()) == text);

  home.set("SLURM_ARRAY_TASK_ID", "1");
  const auto one = home.run(work(home));
  REQUIRE_MESSAGE(one.code == 0, one.err);
  CHECK(one.says("shard 1: done: 1 of 1 problems"));
  CHECK(files(home, "scratch", "tuning.db").empty());
  const auto half = home.run(collect(home, {"--publish", (home / "site").string()}));
  CHECK(half.code == 1);
  CHECK(half.says("nobody began shard 0"));
  CHECK(half.says("nothing was published"));
  CHECK(!std::filesystem::exists(home / "site"));
  home.set("SLURM_ARRAY_TASK_ID", "2");
  CHECK(home.run(work(home)).code == 1);
  home.set("SLURM_ARRAY_TASK_ID", "0");
  REQUIRE(home.run(work(home)).code == 0);
  // A shard that is done is left alone.
  const auto again = home.run(work(home));
  REQUIRE_MESSAGE(again.code == 0, again.err);
  CHECK(again.says("0 plans tried"));

  const auto status = home.run({"cluster", "status", (home / "c").string(), "--json"});
  REQUIRE_MESSAGE(status.code == 0, status.err);
  for (const auto& line : status.lines()) {
    CHECK(line.at("state") == "done");
    CHECK(line.at("answered") == 1);
    CHECK(line.at("trials").get<int>() > 2);
  }
  CHECK(status.says("2 of 2 problems"));
  const auto all = home.run(collect(home, {"--publish", (home / "site").string()}));
  REQUIRE_MESSAGE(all.code == 0, all.err);
  CHECK(all.lines().at(0).at("answered") == 2);
  CHECK(all.says("generation 1"));
  CHECK(trials({(home / "all.db").string()}) == trials(files(home, "c.d", ".db")));
  const auto same = home.run(collect(home, {"--publish", (home / "site").string()}));
  CHECK(same.lines().at(0).at("new_trials") == 0);
  CHECK(same.lines().at(0).at("changed") == 0);
  CHECK(same.says("generation 1 of " + (home / "site").string() + " holds this already"));

  // What was collected serves, and needs no further campaign.
  const auto tuned = home.run({"tune", "--op", "quantize", "--shape", "4x64", "--threads", "2",
                               "--json", "--db", (home / "all.db").string()});
  CHECK_MESSAGE(tuned.lines().at(0).at("answer") == "cached", tuned.out);
  auto rest = plan(home, "4x64", "2");
  rest.insert(rest.end(), {"--db", (home / "all.db").string()});
  CHECK(home.run(rest).says("all 1 problems have their answers"));
}

TEST_CASE("a worker that is asked to end or killed loses nothing, and goes on elsewhere") {
  const Home home;
  REQUIRE(home.run(plan(home, "4x64,6x64,8x64", "1", "8")).code == 0);
  const auto scratch = [&] { return files(home, "scratch", "/tuning.db"); };
  const auto copied = [&] { return files(home, "c.d", ".db"); };
  auto first = home.start(work(home, {"--shard", "0"}));
  REQUIRE(wait_for(100, [&] { return !copied().empty() && trials(copied()).size() >= 2; }));
  // Only one at a time on one disk.
  CHECK(home.run(work(home, {"--shard", "0"})).says("somebody works on shard 0"));
  // As a batch system may: twice.
  first.send(SIGTERM);
  first.send(SIGTERM);
  const auto ended = first.finish(60);
  CHECK_MESSAGE(ended.code == 130, ended.err);
  const auto kept = trials(scratch());
  CHECK(kept.size() >= 2);
  CHECK(trials(copied()) == kept);
  CHECK(home.run({"cluster", "status", (home / "c").string()}).says("interrupted"));

  // On the same node, and killed there.
  auto second = home.start(work(home, {"--shard", "0"}));
  REQUIRE(wait_for(100, [&] { return trials(scratch()).size() > kept.size(); }));
  second.send(SIGKILL);
  CHECK(second.finish(30).signal == SIGKILL);
  const auto committed = trials(scratch());
  CHECK(trials(copied()).size() >= kept.size());
  // With what that node had: another worker of the shard begins by what lies there.
  auto third = home.start(work(home, {"--shard", "0"}));
  REQUIRE(wait_for(100, [&] { return trials(scratch()).size() > committed.size(); }));
  third.send(SIGTERM);
  CHECK(third.finish(60).code == 130);
  for (const auto& uuid : committed) CHECK(trials(copied()).count(uuid) == 1);

  // Another node has an empty disk. The campaign's folder goes away for a while.
  std::filesystem::rename(home / "scratch", home / "other");
  const auto before = trials(copied());
  auto fourth = home.start(work(home, {"--shard", "0"}));
  REQUIRE(wait_for(100,
                   [&] { return !scratch().empty() && trials(scratch()).size() > before.size(); }));
  std::filesystem::rename(home / "c.d", home / "away");
  std::ofstream(home / "c.d") << "no folder";
  CHECK(fourth.read_until(60, [](const Outcome& o) { return o.says("are copied out later"); }));
  std::filesystem::remove(home / "c.d");
  std::filesystem::rename(home / "away", home / "c.d");
  const auto done = fourth.finish(100);
  CHECK_MESSAGE(done.code == 0, done.err);
  CHECK(copied().size() == 2);
  const auto all = home.run(collect(home));
  REQUIRE_MESSAGE(all.code == 0, all.err);
  CHECK(all.lines().at(0).at("conflicts") == 0);
  const auto together = trials({(home / "all.db").string()});
  CHECK(together == trials(copied()));
  for (const auto& uuid : committed) CHECK(together.count(uuid) == 1);
}

TEST_CASE("what a killed worker had is brought out of its node, whoever comes there") {
  const Home home;
  REQUIRE(home.run(plan(home, "4x64,6x64,8x64,10x64", "2", "8")).code == 0);
  const auto on = [&](const std::string& disk, const std::vector<std::string>& more) {
    auto out = work(home, more);
    out[4] = (home / disk).string();
    out[10] = "3600";  // between copies
    return out;
  };
  const auto copied = [&] { return trials(files(home, "c.d", ".db")); };
  const auto left = [&](const std::string& disk) {
    return trials(files(home, disk, "/tuning.db"));
  };
  const auto kill_one = [&](const std::string& disk, const std::string& shard) {
    auto worker = home.start(on(disk, {"--shard", shard}));
    REQUIRE(wait_for(100, [&] { return left(disk).size() >= 2; }));
    // Nobody touches what a worker has.
    const auto beside = home.run(on(disk, {"--stage", "copy"}));
    CHECK_MESSAGE(beside.code == 0, beside.err);
    CHECK(copied().empty());
    worker.send(SIGKILL);
    CHECK(worker.finish(30).signal == SIGKILL);
  };

  kill_one("scratch", "0");
  const auto committed = left("scratch");
  const auto copy = home.run(on("scratch", {"--stage", "copy"}));
  CHECK_MESSAGE(copy.code == 0, copy.err);
  CHECK_MESSAGE(copy.says("brought out what was left in"), copy.err);
  CHECK(copied() == committed);
  CHECK_FALSE(home.run(on("scratch", {"--stage", "copy"})).says("brought out"));
  std::filesystem::remove_all(home / "c.d");

  // As a worker of another shard does that comes there.
  const auto other = home.run(on("scratch", {"--shard", "1"}));
  CHECK_MESSAGE(other.code == 0, other.err);
  const auto after = copied();
  for (const auto& uuid : committed) CHECK(after.count(uuid) == 1);

  // The shard goes on elsewhere.
  const auto elsewhere = home.run(on("other", {"--shard", "0"}));
  CHECK_MESSAGE(elsewhere.code == 0, elsewhere.err);
  const auto all = home.run(collect(home));
  REQUIRE_MESSAGE(all.code == 0, all.err);
  CHECK(all.lines().at(0).at("conflicts") == 0);
  const auto together = trials({(home / "all.db").string()});
  for (const auto& uuid : committed) CHECK(together.count(uuid) == 1);

  // What cannot be read is said and stays, and hinders no worker.
  const auto base = std::filesystem::path(files(home, "scratch", "/tuning.db").at(0)).parent_path();
  std::filesystem::remove_all(base);
  std::filesystem::create_directories(base / "tuning.db");
  const auto refused = home.run(on("scratch", {"--stage", "copy"}));
  CHECK(refused.code != 0);
  CHECK_MESSAGE(refused.says("stays there"), refused.err);
  CHECK(home.run(on("scratch", {"--shard", "1"})).code == 0);
}

TEST_CASE("in two stages the second compiles nothing") {
  Home home;
  home.unset("QTURN_CODE_CACHE");
  REQUIRE(home.run(plan(home, "4x64", "1", "2")).code == 0);
  const auto compiled = home.run(work(home, {"--shard", "0", "--stage", "compile"}));
  REQUIRE_MESSAGE(compiled.code == 0, compiled.err);
  CHECK(files(home, "c.d", ".code.tar").size() == 1);
  CHECK(files(home, "scratch", ".so").empty());
  const auto tuned = home.run(work(home, {"--shard", "0"}));
  REQUIRE_MESSAGE(tuned.code == 0, tuned.err);
  CHECK_MESSAGE(tuned.says("(0 failed), 0 kernels compiled"), tuned.err);
  CHECK(home.run(collect(home)).code == 0);
}

TEST_CASE("submit shows its scripts, and says where there is no Slurm") {
  Home home;
  home.set("PATH", "/nowhere");
  REQUIRE(home.run(plan(home, "4x64,6x64", "2")).code == 0);
  const auto shown =
      home.run({"cluster", "submit", (home / "c").string(), "--print", "--two-stage", "--partition",
                "gpu", "--cpu-partition", "cpu", "--time", "1:00:00"});
  REQUIRE_MESSAGE(shown.code == 0, shown.err);
  for (const auto* line :
       {"#SBATCH --array=0-1\n", "#SBATCH --partition=gpu\n", "#SBATCH --partition=cpu\n",
        "--stage compile", "--stage copy", "#SBATCH --signal=B:TERM@120\n"})
    CHECK_MESSAGE(shown.out.find(line) != std::string::npos, shown.out);
  CHECK(shown.out.find("--gres") == std::string::npos);  // it is a CPU's campaign
  const auto none = home.run({"cluster", "submit", (home / "c").string()});
  CHECK(none.code == 3);
  CHECK_MESSAGE(none.says("sbatch is not here"), none.err);
  CHECK(home.run({"cluster", "submit", (home / "none").string()}).code == 3);
  std::ofstream(home / "c") << "{}";
  CHECK(home.run({"cluster", "status", (home / "c").string()}).code == 2);
  CHECK(home.run({"cluster"}).code == 2);
}
