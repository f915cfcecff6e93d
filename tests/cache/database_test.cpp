// What a tuning database answers, on files and in memory.
#include "cache/database.hpp"

#include <doctest/doctest.h>

#include <sys/stat.h>
#include <functional>

#include <locale>
#include <set>
#include <thread>

#include "tests/cache/support.hpp"

using namespace quarterturn;
using test::env;

namespace {

Database memory() {
  auto db = Database::open("");
  REQUIRE(db.ok());
  return std::move(*db);
}

std::vector<Trial> all(Database& db, const std::string& problem) {
  auto found = db.trials(problem, env()->target, env()->performance_class);
  REQUIRE(found.ok());
  return *std::move(found);
}

Trial of(const std::string& problem, int number) {
  Trial trial = test::trial(number);
  trial.problem = problem;
  trial.uuid = test::uuid(number);
  return trial;
}

}  // namespace

TEST_CASE("database.trials are those of one problem, target and class, in a fixed order") {
  auto db = memory();
  for (const int i : {3, 1, 2}) REQUIRE(db.add_trial(of("p", i)).ok());
  REQUIRE(db.add_trial(of("q", 4)).ok());
  Trial elsewhere = of("p", 5);
  elsewhere.env = env("cpu units=64");
  REQUIRE(db.add_trial(elsewhere).ok());
  const auto found = all(db, "p");
  REQUIRE(found.size() == 3);
  for (int i = 0; i < 3; ++i) CHECK(found[i].uuid == test::uuid(i + 1));
  CHECK(all(db, "nothing").empty());
  CHECK(db.recent_trials(env()->target, 10)->size() == 5);
  const auto newest = db.recent_trials(env()->target, 2);
  REQUIRE(newest->size() == 2);
  CHECK(newest->front().uuid == test::uuid(5));
  CHECK(db.recent_trials("sm_90a", 10)->empty());
}

TEST_CASE("database.add_trial leaves a known trial alone and gives new ones a UUID") {
  auto db = memory();
  REQUIRE(db.add_trial(of("p", 1)).ok());
  Trial other = of("p", 1);
  other.median_ns = 5;
  REQUIRE(db.add_trial(other).ok());
  CHECK(all(db, "p").size() == 1);
  CHECK(all(db, "p")[0].median_ns == 1001);
  Trial unnamed = of("p", 2);
  unnamed.uuid = {};
  REQUIRE(db.add_trial(unnamed).ok());
  REQUIRE(db.add_trial(unnamed).ok());
  CHECK(all(db, "p").size() == 3);
}

TEST_CASE("database.add_trials stores all or none") {
  auto db = memory();
  std::vector<Trial> trials{of("p", 1), of("p", 2), of("p", 3)};
  trials[2].plan = "nonsense";
  CHECK(!db.add_trials(trials).ok());
  CHECK(db.info()->trials == 0);
  trials[2].plan = test::plan();
  CHECK(db.add_trials(trials).ok());
  CHECK(db.info()->trials == 3);
}

TEST_CASE("database.trials_after gives each trial once, in the order in which they came") {
  auto db = memory();
  std::int64_t last = 0;
  CHECK(db.trials_after(last, 10)->empty());
  CHECK(last == 0);
  for (const int i : {3, 1, 2}) REQUIRE(db.add_trial(of("p", i)).ok());
  const auto first = db.trials_after(last, 2);
  REQUIRE(first->size() == 2);
  CHECK(first->front().uuid == test::uuid(3));
  const auto rest = db.trials_after(last, 2);
  REQUIRE(rest->size() == 1);
  CHECK(rest->front().uuid == test::uuid(2));
  REQUIRE(db.add_trial(of("q", 4)).ok());
  CHECK(db.trials_after(last, 2)->front().problem == "q");
  const auto end = last;
  CHECK(db.trials_after(last, 2)->empty());
  CHECK(last == end);
}

TEST_CASE("database.add_tombstone takes back a trial, a campaign or a machine") {
  auto db = memory();
  for (int i = 1; i <= 6; ++i) {
    Trial trial = of("p", i);
    trial.campaign = test::uuid(i <= 3 ? 100 : 200);
    if (i == 6) trial.env = env("cpu units=2", "gcc-13");
    REQUIRE(db.add_trial(trial).ok());
  }
  const auto bytes = [](const auto& id) {
    return std::vector<unsigned char>(id.begin(), id.end());
  };
  REQUIRE(db.add_tombstone({TombstoneKind::trial, bytes(test::uuid(4)), "bad clock", 5}).ok());
  CHECK(all(db, "p").size() == 5);
  REQUIRE(db.add_tombstone({TombstoneKind::campaign, bytes(test::uuid(100)), "", 0}).ok());
  CHECK(all(db, "p").size() == 2);
  REQUIRE(db.add_tombstone({TombstoneKind::env, bytes(env("cpu units=2", "gcc-13")->hash()), "", 0})
              .ok());
  CHECK(all(db, "p").size() == 1);
  CHECK(db.recent_trials(env()->target, 10)->size() == 1);
  CHECK(db.info()->trials == 6);  // withdrawn, not deleted
  CHECK(db.add_tombstone({TombstoneKind::campaign, bytes(Uuid{}), "", 0}).code() ==
        Code::invalid_argument);
  CHECK(db.add_tombstone({TombstoneKind::env, bytes(Uuid{}), "", 0}).code() ==
        Code::invalid_argument);
}

TEST_CASE("database.has_admission knows family, revision, device and compiler") {
  auto db = memory();
  const auto other = [](const std::function<void(Env&)>& change) {
    Env out = *env();
    change(out);
    return out;
  };
  Trial trial = of("p", 1);
  trial.kind = TrialKind::admission;
  trial.status = TrialStatus::wrong;
  REQUIRE(db.add_trial(trial).ok());
  CHECK(!*db.has_admission("cpu_gemm", 3, *env()));
  trial.uuid = test::uuid(2);
  trial.status = TrialStatus::ok;
  REQUIRE(db.add_trial(trial).ok());
  CHECK(*db.has_admission("cpu_gemm", 3, *env()));
  CHECK(*db.has_admission("cpu_quantize", 1, *env()));
  CHECK(!*db.has_admission("cpu_gemm", 4, *env()));
  CHECK(!*db.has_admission("cpu_gemm", 3, other([](Env& e) { e.target = "aarch64"; })));
  CHECK(!*db.has_admission("cpu_gemm", 3, other([](Env& e) { e.performance_class += "2"; })));
  CHECK(!*db.has_admission("cpu_gemm", 3, other([](Env& e) { e.compiler += "2"; })));
  CHECK(*db.has_admission("cpu_gemm", 3, other([](Env& e) { e.library = "9.9"; })));
  REQUIRE(
      db.add_tombstone({TombstoneKind::trial, {trial.uuid.begin(), trial.uuid.end()}, "", 0}).ok());
  CHECK(!*db.has_admission("cpu_gemm", 3, *env()));
}

TEST_CASE("database.winner is one for each problem and class, and comes with its env") {
  auto db = memory();
  Winner winner = test::winner();
  winner.ties = "a\nb";
  winner.certificate = "samples=4096";
  REQUIRE(db.set_winner(winner).ok());
  winner.plan = test::plan(99);
  winner.choice = Choice::fallback;
  REQUIRE(db.set_winner(winner).ok());
  Winner borrowed = winner;
  borrowed.env = env("cpu units=64", "gcc-14");
  REQUIRE(db.set_winner(borrowed).ok());

  const auto found = db.winner_of(winner.problem, env()->target, env()->performance_class);
  REQUIRE(found.ok());
  REQUIRE(found->has_value());
  CHECK((*found)->plan == test::plan(99));
  CHECK((*found)->choice == Choice::fallback);
  CHECK((*found)->ties == "a\nb");
  CHECK((*found)->certificate == "samples=4096");
  CHECK(*(*found)->env == *env());
  CHECK(!db.winner_of("other", env()->target, env()->performance_class)->has_value());

  const auto table = db.winners(env()->target);
  REQUIRE(table->size() == 2);
  CHECK(db.winners("sm_90a")->empty());
  CHECK(compare(*table->at(0).env, *env()) != compare(*table->at(1).env, *env()));
  REQUIRE(db.remove_winner(winner.problem, env()->target, env()->performance_class).ok());
  CHECK(db.winners(env()->target)->size() == 1);
}

TEST_CASE("database.undecided lists problems whose evidence has changed") {
  auto db = memory();
  const auto keys = [&] {
    std::vector<std::string> out;
    const auto found = db.undecided();
    REQUIRE(found.ok());
    for (const auto& each : *found) out.push_back(each.problem);
    return out;
  };
  for (int i = 1; i <= 3; ++i) REQUIRE(db.add_trial(of("p", i)).ok());
  Trial admission = of("p", 4);
  admission.kind = TrialKind::admission;
  REQUIRE(db.add_trial(admission).ok());
  CHECK(keys() == std::vector<std::string>{"p"});
  Winner winner = test::winner();
  winner.problem = "p";
  winner.evidence = 3;
  REQUIRE(db.set_winner(winner).ok());
  CHECK(keys().empty());
  Trial recheck = of("p", 5);
  recheck.kind = TrialKind::recheck;
  REQUIRE(db.add_trial(recheck).ok());
  CHECK(keys() == std::vector<std::string>{"p"});
  winner.evidence = 4;
  REQUIRE(db.set_winner(winner).ok());
  CHECK(keys().empty());
  for (const int i : {1, 2, 3, 5}) {
    const Uuid id = test::uuid(i);
    REQUIRE(db.add_tombstone({TombstoneKind::trial, {id.begin(), id.end()}, "", 0}).ok());
  }
  CHECK(keys() == std::vector<std::string>{"p"});  // a winner that rests on nothing any more
}

TEST_CASE("database.quarantine holds for a plan or variant, a problem, a class and one compiler") {
  auto db = memory();
  const auto plan = parse_plan(test::plan(8));
  REQUIRE(plan.ok());
  const auto blocked = [&](const std::string& problem, const Env& here) {
    const auto found = db.quarantine_of(*plan, problem, here);
    REQUIRE(found.ok());
    return found->has_value();
  };
  Quarantine entry{"cpu_gemm/3{tile_m=8}",
                   "p",
                   env()->target,
                   "",
                   "gcc-12",
                   QuarantineReason::crashed,
                   1,
                   0,
                   0,
                   "signal 11"};
  CHECK(!blocked("p", *env()));
  REQUIRE(db.add_quarantine(entry).ok());
  CHECK(blocked("p", *env()));
  CHECK(blocked("p", *env("cpu units=64")));
  CHECK(!blocked("q", *env()));
  CHECK(!blocked("p", *env("cpu units=2", "gcc-13")));  // a new compiler is a new chance

  entry.subject = plan->text();
  entry.problem = "";
  entry.performance_class = "cpu units=64";
  REQUIRE(db.add_quarantine(entry).ok());
  CHECK(blocked("q", *env("cpu units=64")));
  CHECK(!blocked("q", *env()));

  entry.count = 2;
  REQUIRE(db.add_quarantine(entry).ok());
  const auto listed = db.quarantine();
  REQUIRE(listed->size() == 2);
  CHECK(listed->at(0).count + listed->at(1).count == 4);
  CHECK(listed->at(0).first > 0);
  CHECK(*db.expire_quarantine(env()->target, "gcc-12") == 0);
  CHECK(*db.expire_quarantine("sm_90a", "gcc-13") == 0);
  REQUIRE(db.remove_quarantine(entry).ok());
  CHECK(!blocked("q", *env("cpu units=64")));
  CHECK(*db.expire_quarantine(env()->target, "gcc-13") == 1);
  CHECK(db.quarantine()->empty());
  entry.compiler.clear();
  CHECK(db.add_quarantine(entry).code() == Code::invalid_argument);
}

TEST_CASE("database.misses add up and end with the winner") {
  auto db = memory();
  const Miss small{"p", env()->target, "c", 10, 1000}, large{"q", env()->target, "c", 1, 5000};
  REQUIRE(db.record_miss(small).ok());
  REQUIRE(db.record_misses(std::vector<Miss>{small, large}).ok());
  auto found = db.misses(env()->target, "c");
  REQUIRE(found->size() == 2);
  CHECK(found->at(0).problem == "q");
  CHECK(found->at(1).calls == 20);
  CHECK(found->at(1).ns == 2000);
  CHECK(db.misses(env()->target, "d")->empty());
  Winner winner = test::winner();
  winner.problem = "q";
  winner.env = env("c");
  REQUIRE(db.set_winner(winner).ok());
  CHECK(db.misses(env()->target, "c")->size() == 1);
  const Miss huge{"r", env()->target, "c", INT64_MAX, INT64_MAX};
  for (int i = 0; i < 3; ++i) REQUIRE(db.record_miss(huge).ok());
  found = db.misses(env()->target, "c");
  CHECK(found->at(0).calls == std::int64_t{1} << 60);
  CHECK(db.record_miss({"", env()->target, "c", 1, 1}).code() == Code::invalid_argument);
  CHECK(db.record_miss({"p", env()->target, "c", -1, 1}).code() == Code::invalid_argument);
}

TEST_CASE("database.artifact is found by its key") {
  auto db = memory();
  Artifact artifact;
  artifact.key = sha256("key");
  artifact.content = sha256("code");
  artifact.target = "sm_90a";
  artifact.log = "ptxas info";
  artifact.registers = 168;
  CHECK(!db.artifact(artifact.key)->has_value());
  REQUIRE(db.put_artifact(artifact).ok());
  artifact.registers = 170;
  REQUIRE(db.put_artifact(artifact).ok());
  const auto found = db.artifact(artifact.key);
  REQUIRE(found->has_value());
  CHECK((*found)->registers == 170);
  CHECK((*found)->content == sha256("code"));
  CHECK((*found)->last_used > 0);
  CHECK(db.info()->artifacts == 1);
}

TEST_CASE("database.info counts rows and names the file") {
  test::Folder folder;
  const auto path = folder / "deep/er/tuning.db";
  auto db = Database::open(path);
  REQUIRE(db.ok());
  for (int i = 0; i < 9; ++i) REQUIRE(db->add_trial(test::trial(i)).ok());
  const auto info = db->info();
  REQUIRE(info.ok());
  CHECK(info->path == path);
  CHECK(info->mode == DatabaseInfo::Mode::read_write);
  CHECK(info->journal == "wal");
  CHECK(info->trials == 9);
  CHECK(info->problems == 7);
  CHECK(info->plans == 5);
  CHECK(info->variants == 6);
  CHECK(info->envs == 1);
  CHECK(info->bytes > 4096);
  CHECK(info->schema_version == 1);
  CHECK(parse_uuid(info->uuid).ok());
  struct stat status {};
  REQUIRE(stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(stat((path + "-wal").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  REQUIRE(stat((folder / "deep/er").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0700);
  CHECK(db->take_notes().empty());
}

TEST_CASE("database.open of one file twice in a process keeps both sound") {
  test::Folder folder;
  auto a = Database::open(folder / "x.db");
  REQUIRE(a.ok());
  REQUIRE(a->add_trial(of("p", 1)).ok());
  {
    auto b = Database::open(folder / "x.db");
    REQUIRE(b.ok());
    REQUIRE(b->add_trial(of("p", 2)).ok());
    REQUIRE(a->add_trial(of("p", 3)).ok());
  }
  REQUIRE(a->add_trial(of("p", 4)).ok());
  CHECK(all(*a, "p").size() == 4);
  CHECK(a->check()->empty());
}

TEST_CASE("database is used by many threads at once") {
  test::Folder folder;
  auto db = Database::open(folder / "x.db");
  REQUIRE(db.ok());
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&, i] {
      for (int j = 0; j < 25; ++j) {
        if (!db->add_trial(of("p", 100 * i + j + 1)).ok()) ++failed;
        if (!db->trials("p", env()->target, env()->performance_class).ok()) ++failed;
        if (!db->record_miss({"p", "t", "c", 1, 1}).ok()) ++failed;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  CHECK(all(*db, "p").size() == 100);
  CHECK(db->misses("t", "c")->at(0).calls == 100);
}

TEST_CASE("database.open survives a change of the working folder") {
  test::Folder folder;
  CHECK(test::Child([&]() -> std::string {
          CHILD_CHECK(chdir(folder.path.c_str()) == 0);
          auto db = Database::open("x.db");
          CHILD_OK(db);
          CHILD_CHECK(chdir("/") == 0);
          CHILD_OK(db->add_trial(test::trial()));
          std::filesystem::remove(folder / "x.db");  // somebody empties the cache meanwhile
          CHILD_OK(db->add_trial(test::trial()));
          CHILD_CHECK(db->info()->trials == 1);
          CHILD_CHECK(std::filesystem::exists(folder / "x.db"));
          return {};
        }).wait() == "");
}

TEST_CASE("database.versions that nobody knew are replaced by the next decision, known ones kept") {
  auto db = Database::open("");
  const auto unknown = test::env("cpu units=2", "unknown");
  Winner winner = test::winner();
  winner.env = unknown;
  Trial trial = test::trial();
  trial.env = unknown;
  REQUIRE(db->set_winner(winner).ok());
  REQUIRE(db->add_trial(trial).ok());
  // Usable, and never the last word.
  CHECK(compare(*db->winners(unknown->target)->at(0).env, *test::env()) == Validity::stale);
  CHECK(compare(*db->winners(unknown->target)->at(0).env, *unknown) == Validity::stale);
  winner.env = test::env();
  REQUIRE(db->set_winner(winner).ok());
  REQUIRE(db->winners(unknown->target)->size() == 1);
  CHECK(db->winners(unknown->target)->at(0).env->compiler == "gcc-12");
  // What was measured under another compiler stays as it was measured.
  trial.env = test::env("cpu units=2", "gcc-13");
  trial.uuid = {};
  REQUIRE(db->add_trial(trial).ok());
  std::set<std::string> compilers;
  for (const auto& one : test::live_trials(*db)) compilers.insert(one.env->compiler);
  CHECK(compilers == std::set<std::string>{"unknown", "gcc-13"});
}

TEST_CASE("database.a clock that is set back loses and reorders nothing that matters") {
  auto db = Database::open("");
  for (int i = 0; i < 5; ++i) {
    Trial trial = test::trial(7 * i);  // of one problem
    trial.started = 1'700'000'000'000'000'000 - i * 3'600'000'000'000;
    REQUIRE(db->add_trial(trial).ok());
  }
  CHECK(db->trials(test::problem(), test::env()->target, test::env()->performance_class)->size() ==
        5);
  // The latest by arrival, not by a clock that lies.
  CHECK(db->recent_trials(test::env()->target, 1)->at(0).median_ns == 1028);
  Winner winner = test::winner();
  winner.decided = 1000;
  REQUIRE(db->set_winner(winner).ok());
  winner.plan = test::plan(3);
  winner.decided = 500;
  REQUIRE(db->set_winner(winner).ok());
  CHECK(db->winners(winner.env->target)->at(0).plan == test::plan(3));
  Quarantine entry;
  entry.subject = test::plan(), entry.target = "t", entry.compiler = "c";
  entry.last = 1000;
  REQUIRE(db->add_quarantine(entry).ok());
  entry.last = 400;
  REQUIRE(db->add_quarantine(entry).ok());
  CHECK(db->quarantine()->at(0).first == 400);
  CHECK(db->quarantine()->at(0).last == 1000);
  CHECK(db->quarantine()->at(0).count == 2);
}

TEST_CASE("database.what one locale writes another finds") {
  // A comma for the decimal point and groups of digits, as the host program may have set them.
  struct Commas : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  test::Folder folder;
  const auto path = folder / "x.db";
  test::Child child([&]() -> std::string {
    std::locale::global(std::locale(std::locale::classic(), new Commas));
    auto db = Database::open(path);
    CHILD_OK(db);
    auto trial = test::trial();
    trial.problem = test::problem(1234567);
    trial.plan = test::plan(4096);
    trial.noise = -0.0;
    trial.ratio = 1234.5;
    CHILD_OK(db->add_trial(trial));
    Winner winner = test::winner();
    winner.problem = trial.problem;
    CHILD_OK(db->set_winner(winner));
    return {};
  });
  CHECK(child.wait() == "");
  auto db = Database::open(path);
  const Env where = *test::env();
  const auto found = db->trials(test::problem(1234567), where.target, where.performance_class);
  REQUIRE(found->size() == 1);
  CHECK(found->at(0).plan == test::plan(4096));
  CHECK(found->at(0).ratio == 1234.5);
  CHECK(*db->winner_of(test::problem(1234567), where.target, where.performance_class));
  CHECK(db->check()->empty());  // checksums, too
}
