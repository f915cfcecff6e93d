// Newer answers without a restart: what changes, what stays, and what is refused.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cache/publication.hpp"
#include "tests/runtime/made_up_device.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

namespace {

// A site that publishes, and nodes that read what it publishes.
struct Site {
  Setup setup;
  std::string folder = setup.folder.file("site");
  Env env;

  Site() {
    env = setup.make()->env();
    setup.variables["QTURN_SNAPSHOTS"] = folder;
  }
  Generation publish(const std::vector<std::pair<Problem, std::size_t>>& answers,
                     const SigningKey* key = nullptr) const {
    auto database = Database::open("");
    REQUIRE(database.ok());
    for (const auto& [problem, number] : answers) {
      Winner winner;
      winner.problem = problem.key();
      winner.plan = plan_number(problem, number).text();
      winner.env = std::make_shared<Env>(env);
      REQUIRE(database->set_winner(winner).ok());
    }
    const auto made = quarterturn::publish(*database, folder, {}, key);
    REQUIRE_MESSAGE(made.ok(), made.status().message());
    return *made;
  }
};

Problem narrow() {
  Problem p = problem();
  p.n = Extent::exactly(2048);
  return p;
}

void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

}  // namespace

TEST_CASE(
    "reload.the newest generation serves what was not prepared yet, and what was keeps its plan") {
  Site site;
  site.publish({{problem(), 1}, {problem(1, 64), 1}});
  const auto node = site.setup.make();
  const auto first = *node->prepare(problem());
  const auto missed = *node->prepare(narrow());
  const auto before = node->snapshot_hash();
  site.publish({{problem(), 2}, {problem(1, 64), 2}, {narrow(), 2}, {problem(3, 3), 3}});

  const auto kept = node->reload(Reload::keep);
  REQUIRE_MESSAGE(kept.ok(), kept.status().message());
  CHECK(kept->before == before);
  CHECK(kept->after == node->snapshot_hash());
  CHECK(kept->before != kept->after);
  CHECK(kept->generation_before == 1);
  CHECK(kept->generation_after == 2);
  CHECK(kept->answers_before == 2);
  CHECK(kept->answers_after == 4);
  CHECK(kept->problems_changed == 4);
  CHECK(kept->prepared_changed == 2);
  CHECK(kept->prepared_held == 2);
  CHECK(served(**node->prepare(problem())) == plan_number(problem(), 1).text());
  CHECK(node->explain(problem()).find("\"held\":true") != std::string::npos);
  CHECK((*node->prepare(narrow()))->match() == Match::heuristic);
  CHECK(served(**node->prepare(problem(1, 64))) == plan_number(problem(1, 64), 2).text());

  // Another rank that started now prepares problem() otherwise, and its hash says so.
  CHECK(site.setup.make()->snapshot_hash() != kept->after);
  // Nothing new: nothing changes, and what is held stays held.
  const auto again = node->reload(Reload::keep);
  CHECK(again->before == again->after);
  CHECK(again->problems_changed == 0);
  CHECK(again->prepared_held == 2);

  const auto replaced = node->reload(Reload::replace);
  CHECK(replaced->problems_changed == 0);
  CHECK(replaced->prepared_changed == 2);
  CHECK(replaced->prepared_held == 0);
  CHECK(replaced->after == site.setup.make()->snapshot_hash());
  CHECK(served(**node->prepare(problem())) == plan_number(problem(), 2).text());
  CHECK((*node->prepare(narrow()))->match() == Match::exact);
  // Handles of before are as they were.
  CHECK(served(*first) == plan_number(problem(), 1).text());
  CHECK(missed->match() == Match::heuristic);
}

TEST_CASE("reload.back to an older generation, by one call of the publisher") {
  Site site;
  site.publish({{problem(), 1}});
  site.publish({{problem(), 2}});
  const auto node = site.setup.make();
  CHECK(served(**node->prepare(problem())) == plan_number(problem(), 2).text());
  REQUIRE(make_current(site.folder, 1).ok());
  const auto back = node->reload(Reload::replace);
  REQUIRE_MESSAGE(back.ok(), back.status().message());
  CHECK(back->generation_after == 1);
  CHECK(served(**node->prepare(problem())) == plan_number(problem(), 1).text());
  CHECK(back->after == site.setup.make()->snapshot_hash());
}

TEST_CASE(
    "reload.a broken, unsigned, replayed or vanished generation is refused, and the old one "
    "stays") {
  Site site;
  const auto key = make_signing_key(site.setup.folder.file("key"));
  REQUIRE(key.ok());
  site.setup.variables["QTURN_SNAPSHOT_KEYS"] = key->public_hex();
  site.publish({{problem(), 1}}, &*key);
  const auto old_manifest = TemporaryFolder::read(site.folder + "/CURRENT");
  site.publish({{problem(), 2}}, &*key);
  const auto node = site.setup.make();
  const auto hash = node->snapshot_hash();
  const auto good = TemporaryFolder::read(site.folder + "/CURRENT");
  const auto check = [&](Code code, const std::string& says) {
    const auto refused = node->reload(Reload::replace);
    CHECK(refused.status().code() == code);
    CHECK_MESSAGE(refused.status().message().find(says) != std::string::npos,
                  refused.status().message());
    CHECK(node->snapshot_hash() == hash);
    CHECK(served(**node->prepare(problem())) == plan_number(problem(), 2).text());
    overwrite(site.folder + "/CURRENT", good);
  };
  overwrite(site.folder + "/CURRENT", good.substr(0, good.size() / 2));
  check(Code::damaged, "not JSON");
  overwrite(site.folder + "/CURRENT", old_manifest);  // signed, and not the newest any more
  check(Code::not_ours, "an older manifest was put back");
  site.publish({{problem(), 3}});
  check(Code::not_ours, "is not signed");
  const auto torn = site.publish({{problem(), 3}}, &*key);
  std::filesystem::resize_file(site.folder + "/" + torn.file, 8192);
  const auto damaged = node->reload(Reload::keep);
  CHECK_FALSE(damaged.ok());
  CHECK(node->snapshot_hash() == hash);
  // One command of the publisher's puts things right, without the program's being started again.
  REQUIRE(make_current(site.folder, 2, &*key).ok());
  REQUIRE(node->reload(Reload::replace).ok());
  CHECK(node->snapshot_hash() == hash);
  const auto good_again = TemporaryFolder::read(site.folder + "/CURRENT");
  std::filesystem::rename(site.folder, site.folder + ".away");
  check(Code::io_error, "site");
  CHECK(node->statistics().reloads_refused == 5);
  std::filesystem::remove_all(site.folder);
  std::filesystem::rename(site.folder + ".away", site.folder);
  overwrite(site.folder + "/CURRENT", good);  // as of before the way back
  check(Code::not_ours, "an older manifest was put back");
  overwrite(site.folder + "/CURRENT", good_again);
  CHECK(node->reload(Reload::replace).ok());
  CHECK(node->snapshot_hash() == hash);
}

TEST_CASE("reload.what is absent from the start is left out, and serves once it is there") {
  Site site;
  const auto node = site.setup.make();
  CHECK(site.setup.said(site.folder + " is left out") == 1);
  const auto nothing = node->reload(Reload::keep);
  REQUIRE_MESSAGE(nothing.ok(), nothing.status().message());
  CHECK(nothing->before == nothing->after);
  site.publish({{problem(), 1}});
  const auto something = node->reload(Reload::keep);
  CHECK(something->generation_before == 0);
  CHECK(something->generation_after == 1);
  CHECK((*node->prepare(problem()))->match() == Match::exact);
}

TEST_CASE(
    "reload.while others prepare: every answer is of one generation, and what is kept stays") {
  Site site;
  site.publish({{problem(), 1}, {problem(1, 64), 1}});
  const auto node = site.setup.make();
  const auto kept = served(**node->prepare(problem()));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0}, asked{0};
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = 0; !stop; ++i) {
        wrong += served(**node->prepare(problem())) != kept;
        const auto fresh = problem(1, 17 + t + 3 * (i % 40));  // inside 1..64 or beside it
        const auto plan = *node->prepare(fresh);
        wrong += served(*plan) != served(**node->prepare(fresh));
        plan->count_run();
        ++asked;
      }
    });
  for (std::size_t i = 0; i < 4; ++i) {
    site.publish({{problem(), 2}, {problem(1, 64), 1 + i % 3}});
    CHECK(node->reload(Reload::keep).ok());
  }
  stop = true;
  threads.clear();
  CHECK(wrong == 0);
  CHECK(asked > 0);
}

TEST_CASE("reload.what a lock file names goes on by it alone") {
  Site site;
  const auto target = *parse_target("x86-64-v4:avx512_vnni");
  const auto plan = plan_number(problem(), 1);
  const LockFile lock{
      "0.0.1", target.key(), {{problem().key(), {plan, *code_digest(problem(), target, plan)}}}};
  site.setup.variables["QTURN_LOCK"] = site.setup.folder.write("tuning.lock", lock.text());
  site.publish({{problem(), 2}});
  const auto node = site.setup.make();
  site.publish({{problem(), 3}});
  const auto reloaded = node->reload(Reload::replace);
  REQUIRE(reloaded.ok());
  CHECK(reloaded->before == reloaded->after);
  CHECK(served(**node->prepare(problem())) == plan.text());
}
