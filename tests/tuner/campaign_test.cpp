// Campaigns as values and files: how problems are divided and priced, texts that come back, copies
// that are put together, packed code that must not be anything else.
#include "tuner/campaign.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "generator/digest.hpp"
#include "tests/runtime/temporary_folder.hpp"
#include "tuner/campaign_code.hpp"
#include "tuner/campaign_progress.hpp"
#include "tuner/site.hpp"
#include "tuner/slurm_script.hpp"

using namespace quarterturn;
using test::TemporaryFolder;

namespace {

// Layers of several sizes; each weight at three ranges of tokens.
std::vector<Estimate> estimates(std::size_t weights) {
  std::vector<Estimate> out;
  for (std::size_t i = 0; i < weights; ++i) {
    const auto features = static_cast<std::int64_t>(32 * (i + 1));
    for (const std::int64_t tokens : {1, 16, 512}) {
      Estimate e;
      e.item = {"layer", linear_problem({"layer", features, 64, 1}, Role::fprop, {1, tokens}, {}),
                2};
      e.candidates = 10 + i;
      e.compile_seconds = 15.0 + 7 * static_cast<double>(i * i % 11);
      e.device_seconds = 5;
      e.bytes = 1e6 * static_cast<double>(tokens);
      out.push_back(std::move(e));
    }
  }
  return out;
}

std::vector<double> loads(const Campaign& campaign, double cores) {
  std::vector<double> out(campaign.shards);
  for (const auto& p : campaign.problems)
    out[p.shard] += p.compile_seconds / cores + p.device_seconds;
  return out;
}

Trial trial_of(const Problem& problem, const std::shared_ptr<const Env>& env, double ratio) {
  Trial t;
  t.uuid = random_uuid();
  t.problem = problem.key();
  t.plan = default_plan(problem, *parse_target(env->target))->text();
  t.env = env;
  t.kind = TrialKind::timing;
  t.median_ns = 1000;
  t.ratio = ratio;
  t.ratio_low = ratio * 0.99;
  t.ratio_high = ratio * 1.01;
  return t;
}

Winner winner_of(const Trial& trial, const std::string& certificate) {
  Winner w;
  w.problem = trial.problem;
  w.plan = trial.plan;
  w.env = trial.env;
  w.choice = Choice::fallback;
  w.evidence = 1;
  w.certificate = certificate;
  return w;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::shared_ptr<const Env> env() {
  Env e;
  e.target = "x86-64-v3";
  e.performance_class = "cpu model=test units=2";
  return std::make_shared<Env>(e);
}

}  // namespace

TEST_CASE("campaign.problems of one weight stay together and shards are even, however they come") {
  auto given = estimates(30);
  const auto campaign = divide("x86-64-v3", {}, given, 7, 8);
  CHECK(campaign.shards == 7);
  REQUIRE(campaign.problems.size() == 90);
  std::map<std::string, std::set<std::size_t>> shards_of_site;
  double longest_lot = 0, last = 1e9;
  for (std::size_t i = 0; i < campaign.problems.size(); ++i) {
    const auto& p = campaign.problems[i];
    shards_of_site[site_of(p.item.problem)].insert(p.shard);
    const double seconds = p.compile_seconds / 8 + p.device_seconds;
    longest_lot = std::max(longest_lot, 3 * seconds);
    const bool same = i > 0 && campaign.problems[i - 1].shard == p.shard;
    if (i > 0) CHECK(campaign.problems[i - 1].shard <= p.shard);
    if (same) CHECK(seconds <= last);
    last = seconds;
  }
  CHECK(shards_of_site.size() == 30);
  for (const auto& [site, shards] : shards_of_site) CHECK(shards.size() == 1);
  const auto all = loads(campaign, 8);
  CHECK(std::is_sorted(all.rbegin(), all.rend()));
  CHECK(all.front() - all.back() <= longest_lot);

  std::reverse(given.begin(), given.end());
  CHECK(divide("x86-64-v3", {}, given, 7, 8).text() == campaign.text());
  given[4].decided = true;
  CHECK(divide("x86-64-v3", {}, given, 7, 8).problems.size() == 89);
  // No more shards than there is to divide, and none of nothing.
  CHECK(divide("x86-64-v3", {}, estimates(3), 7, 8).shards == 3);
  CHECK(divide("x86-64-v3", {}, {}, 7, 8).shards == 0);
}

TEST_CASE("campaign.lots hold problems of one weight, all of them, the longest first") {
  const auto campaign = divide("x86-64-v3", {}, estimates(30), 7, 8);
  const auto lots = campaign.lots();
  REQUIRE(lots.size() == 30);
  std::size_t problems = 0;
  for (std::size_t i = 0; i < lots.size(); ++i) {
    problems += lots[i].problems.size();
    if (i > 0) CHECK(lots[i].seconds <= lots[i - 1].seconds);
    for (const auto& p : lots[i].problems) {
      CHECK(site_of(p.item.problem) == site_of(lots[i].problems.front().item.problem));
      CHECK(p.shard == lots[i].shard);
    }
  }
  CHECK(problems == campaign.problems.size());
}

TEST_CASE("campaign.its text comes back, a problem a line, and names what is wrong") {
  CampaignSearch search{12, 30.5, "predicted", 4};
  const auto campaign = divide("x86-64-v3", search, estimates(4), 2, 1);
  const auto text = campaign.text();
  const auto back = parse_campaign(text);
  REQUIRE_MESSAGE(back.ok(), back.status().message());
  CHECK(*back == campaign);
  CHECK(back->id() == campaign.id());
  CHECK(std::count(text.begin(), text.end(), '\n') == 12 + 6);
  std::vector<Item> items = campaign.items_of(0);
  for (const auto& item : campaign.items_of(1)) items.push_back(item);
  CHECK(items.size() == 12);

  const auto spoilt = [&](const std::string& what, const std::string& by) {
    auto changed = text;
    const auto at = changed.find(what);
    REQUIRE(at != std::string::npos);
    changed.replace(at, what.size(), by);
    return parse_campaign(changed).status();
  };
  CHECK(spoilt("\"quarterturn_campaign\": 1", "\"quarterturn_campaign\": 2").code() ==
        Code::newer_version);
  CHECK(spoilt("\"shards\": 2", "\"shards\": 1").message().find("shard 1") != std::string::npos);
  CHECK(spoilt("\"predicted\"", "\"lucky\"").message().find("lucky") != std::string::npos);
  CHECK(spoilt("op=", "opera=").code() == Code::invalid_argument);
  CHECK(spoilt("\"calls\"", "\"cells\"").message().find("calls") != std::string::npos);
  CHECK(parse_campaign("{}").status().code() == Code::invalid_argument);
  CHECK(parse_campaign("[1").status().code() == Code::invalid_argument);
}

TEST_CASE("campaign.two stages hold devices for admitting and timing only") {
  Campaign campaign{"x86-64-v3", {}, 3, {}};
  const auto given = estimates(3);
  for (std::size_t i = 0; i < 3; ++i)
    campaign.problems.push_back({given[3 * i].item, i, 1, 3600.0 * 8, 3600, 2e9});
  const auto one = price(campaign, {3, 8}, CampaignForm::one_stage);
  CHECK(one.core_hours == doctest::Approx(24));
  CHECK(one.device_hours == doctest::Approx(6));
  CHECK(one.seconds == doctest::Approx(7200));
  CHECK(one.device_bytes == doctest::Approx(2e9));
  const auto two = price(campaign, {3, 8}, CampaignForm::two_stage);
  CHECK(two.core_hours == doctest::Approx(24));
  CHECK(two.device_hours == doctest::Approx(3));
  CHECK(two.seconds == doctest::Approx(7200));
  // Three shards of two hours on two workers.
  CHECK(price(campaign, {2, 8}, CampaignForm::one_stage).seconds == doctest::Approx(14400));
  CHECK(price(campaign, {1, 16}, CampaignForm::one_stage).seconds == doctest::Approx(16200));
}

TEST_CASE("campaign.a worker finds its shards by what started it") {
  std::map<std::string, std::string> variables;
  const auto shards = [&](std::size_t count) {
    return shards_of_environment([&](const char* name) { return variables[name]; }, count);
  };
  CHECK(shards(8).status().message().find("--shard") != std::string::npos);
  variables = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_ARRAY_TASK_ID", "5"}};
  CHECK(*shards(8) == std::vector<std::size_t>{5});
  variables = {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "3"}};
  CHECK(*shards(8) == std::vector<std::size_t>{1, 4, 7});
  variables = {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}};
  CHECK(*shards(8) == std::vector<std::size_t>{2, 6});
  CHECK(shards(2)->empty());
  variables = {{"PMI_RANK", "2"}};
  CHECK(*shards(8) == std::vector<std::size_t>{2});
  variables = {{"PMI_RANK", "two"}};
  CHECK(shards(8).status().message().find("PMI_RANK='two'") != std::string::npos);
}

TEST_CASE("campaign.progress and collection see every copy, and clocks that are off only say so") {
  const TemporaryFolder folder;
  const CampaignFolder place(folder.file("c"));
  REQUIRE(place.make().ok());
  auto given = estimates(2);
  const auto campaign = divide("x86-64-v3", {}, given, 2, 1);
  const auto who = env();
  // Shard 0 was begun by one worker, that left a search open, and finished by another.
  std::set<std::string> uuids;
  const auto copy_of = [&](std::size_t shard, const std::string& worker,
                           const std::string& certificate, std::size_t problems) {
    auto database = Database::open("");
    for (const auto& item : campaign.items_of(shard)) {
      if (problems-- == 0) break;
      const auto trial = trial_of(item.problem, who, 1.0);
      REQUIRE(database->add_trial(trial).ok());
      REQUIRE(database->set_winner(winner_of(trial, certificate)).ok());
      uuids.insert(text(trial.uuid));
    }
    REQUIRE(database->export_snapshot(place.database(shard, worker)).ok());
  };
  copy_of(0, "aaaaaaaa", "search=unfinished", 1);
  copy_of(0, "bbbbbbbb", "search=finished", 3);
  copy_of(1, "cccccccc", "search=unfinished", 2);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  Heartbeat heartbeat;
  heartbeat.shard = 0;
  heartbeat.worker = "bbbbbbbb";
  heartbeat.campaign = campaign.id();
  heartbeat.stage = "tune";
  heartbeat.state = Heartbeat::State::done;
  heartbeat.written = (now.tv_sec + 3600) * 1'000'000'000 + now.tv_nsec;
  heartbeat.host = "node7";
  heartbeat.performance_class = "a";
  REQUIRE(replace_durably(place.heartbeat(0, "bbbbbbbb"), heartbeat.text()).ok());
  heartbeat.shard = 1;
  heartbeat.worker = "cccccccc";
  heartbeat.state = Heartbeat::State::running;
  heartbeat.written = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  heartbeat.trouble = "no space left";
  const auto failing = campaign.items_of(1)[2].problem.key();
  heartbeat.failures = {{failing, "nothing compiles"}};
  const auto running = place.heartbeat(1, "cccccccc");
  REQUIRE(replace_durably(running, heartbeat.text()).ok());
  const auto parsed = parse_heartbeat(heartbeat.text());
  REQUIRE(parsed.ok());
  CHECK(parsed->text() == heartbeat.text());
  std::ofstream(place.heartbeat(1, "dddddddd")) << "{";  // cannot be read: left out

  auto progress = progress_of(campaign, place);
  REQUIRE_MESSAGE(progress.ok(), progress.status().message());
  CHECK(progress->problems == 6);
  CHECK(progress->answered == 3);
  CHECK(progress->running == 1);
  CHECK(progress->shards[0].state == "done");
  CHECK(progress->shards[0].age < 60);
  CHECK(progress->shards[1].state == "running");
  REQUIRE(progress->failures.size() == 1);
  CHECK(progress->failures[0].reason == "nothing compiles");
  const auto noted = [&](const std::string& what) {
    return std::any_of(progress->notes.begin(), progress->notes.end(),
                       [&](const std::string& note) { return note.find(what) != note.npos; });
  };
  CHECK(noted("node7 is 3600 s ahead"));
  CHECK(noted("no space left"));
  // Five minutes old by the file system's clock.
  const timespec old[2] = {{now.tv_sec - 300, 0}, {now.tv_sec - 300, 0}};
  REQUIRE(utimensat(AT_FDCWD, running.c_str(), old, 0) == 0);
  progress = progress_of(campaign, place);
  CHECK(progress->shards[1].state == "silent");
  CHECK(progress->running == 0);

  auto whole = Database::open("");
  const auto collected = collect(campaign, place, *whole);
  REQUIRE_MESSAGE(collected.ok(), collected.status().message());
  CHECK(collected->answered == 3);
  CHECK(collected->copies == 3);
  CHECK(collected->conflicts == 0);
  CHECK(collected->trials == static_cast<std::int64_t>(uuids.size()));
  REQUIRE(collected->missing.size() == 3);
  for (const auto& missing : collected->missing)
    CHECK(missing.reason ==
          (missing.problem == failing ? "nothing compiles" : "shard 1 is not done: silent"));
  std::set<std::string> found;
  for (const auto& problem : campaign.problems) {
    const auto key = problem.item.problem.key();
    const auto trials = whole->trials(key, who->target, who->performance_class);
    for (const auto& t : *trials) found.insert(text(t.uuid));
    const auto winner = whole->winner_of(key, who->target, who->performance_class);
    const bool finished = winner.ok() && winner->has_value() && is_finished(**winner);
    CHECK(finished == (problem.shard == 0));
  }
  CHECK(found == uuids);
  // Again, and in the other order: the same.
  const auto hash = *whole->content_hash();
  REQUIRE(collect(campaign, place, *whole).ok());
  CHECK(*whole->content_hash() == hash);
  auto other = Database::open("");
  const auto copies = *place.databases();
  for (auto copy = copies.rbegin(); copy != copies.rend(); ++copy)
    REQUIRE(adopt(*other, copy->path).ok());
  REQUIRE(collect(campaign, place, *other).ok());
  CHECK(*other->content_hash() == hash);
}

TEST_CASE("campaign.packed code comes back as it was, and anything else is refused") {
  const TemporaryFolder folder;
  const auto store = folder.file("store"), other = folder.file("other"),
             file = folder.file("a.tar");
  const auto name = hex(sha256("code"));
  const auto entry = "/" + name.substr(0, 2) + "/" + name + ".so";
  std::filesystem::create_directories(store + "/" + name.substr(0, 2));
  std::filesystem::create_directories(store + "/tmp");
  const std::string bytes(1500, 'x');
  std::ofstream(store + entry) << bytes;
  std::ofstream(store + "/lock") << "not code";
  const PackedPlans plans{{"op=gemm", {"gemm=a/1{b=2}", "gemm=a/1{b=3}"}}};
  REQUIRE(pack(store, plans, file).ok());
  const auto unpacked = unpack(file, other);
  REQUIRE_MESSAGE(unpacked.ok(), unpacked.status().message());
  CHECK(*unpacked == plans);
  CHECK(read_file(other + entry) == bytes);
  CHECK(!std::filesystem::exists(other + "/lock"));
  CHECK(unpack(folder.file("none.tar"), other).status().code() == Code::miss);

  const auto archive = read_file(file);
  const auto refused = [&](const std::string& changed) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << changed;
    return unpack(file, folder.file("third")).status().code();
  };
  CHECK(refused(archive.substr(0, archive.size() - 1100)) == Code::damaged);
  auto renamed = archive;
  renamed.replace(renamed.find(name.substr(0, 2) + "/"), 3, "../");
  CHECK(refused(renamed) == Code::damaged);
  CHECK(refused(std::string(2000, 'z')) == Code::damaged);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << archive;
  std::filesystem::permissions(file, std::filesystem::perms(0666));
  CHECK(unpack(file, other).status().code() == Code::not_ours);
}

TEST_CASE("campaign.the batch script is a shell's, whatever names hold") {
  SlurmScript script;
  script.name = "tune";
  script.campaign = "/shared/it's here/a.campaign";
  script.folder = script.campaign + ".d";
  script.shards = 16;
  script.at_once = 4;
  script.gres = "gpu:1";
  script.time = "4:00:00";
  const auto text = script.text();
  CHECK(text.starts_with("#!/bin/bash\n#SBATCH --job-name=tune\n#SBATCH --array=0-15%4\n"));
  for (const auto* line : {"#SBATCH --gres=gpu:1\n", "#SBATCH --time=4:00:00\n",
                           "#SBATCH --requeue\n", "#SBATCH --signal=B:TERM@120\n",
                           "cluster work '/shared/it'\\''s here/a.campaign' --shard "})
    CHECK_MESSAGE(text.find(line) != std::string::npos, line);
  CHECK(text.find("partition") == std::string::npos);
  CHECK(text.find("{launch}") == std::string::npos);
  CHECK(text.find("{restarts}") == std::string::npos);
  const TemporaryFolder folder;
  const auto path = folder.script("job", text.substr(text.find('\n') + 1));
  CHECK(std::system(("bash -n " + path).c_str()) == 0);
  script.container = "image.sif";
  CHECK(script.text().find("apptainer exec --nv image.sif qturn cluster work") !=
        std::string::npos);
  script.stage = SlurmStage::compile;
  CHECK(script.text().find("--stage compile") != std::string::npos);
}
