// Databases stay small: old trials go for ever, answers and what they rest on stay.
#include <doctest/doctest.h>

#include "cache/database.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

namespace {

constexpr int kTrials = 400;

// Trials of several plans, and winners that rest on those of theirs.
void fill(Database& db, std::size_t sample_count = 3) {
  std::vector<Trial> trials;
  for (int i = 0; i < kTrials; ++i) {
    trials.push_back(trial(i));
    trials.back().uuid = uuid(i + 1);
    trials.back().samples.resize(sample_count, 1.5);
  }
  REQUIRE(db.add_trials(trials).ok());
  for (int i = 0; i < 7; ++i) {
    Winner one = winner(i);
    const auto evidence = db.trials(one.problem, env()->target, env()->performance_class);
    one.evidence = static_cast<std::int64_t>(evidence->size());
    REQUIRE(db.set_winner(one).ok());
  }
  REQUIRE(db.undecided()->empty());
}

}  // namespace

TEST_CASE("prune.old trials go, winners and their trials stay, and merges do not undo it") {
  const Folder folder;
  const auto path = folder / "a.db", copy = folder / "copy.snapshot";
  auto db = Database::open(path);
  REQUIRE(db.ok());
  fill(*db);
  REQUIRE(db->export_snapshot(copy).ok());
  const auto winners = db->content_hash(Content::winners);
  PruneOptions options;
  options.before = trial(kTrials / 2).started;
  options.dry_run = true;
  const auto planned = db->prune(options);
  REQUIRE_MESSAGE(planned.ok(), planned.status().message());
  CHECK(db->info()->trials == kTrials);
  CHECK(db->info()->tombstones == 0);
  options.dry_run = false;
  const auto pruned = db->prune(options);
  REQUIRE_MESSAGE(pruned.ok(), pruned.status().message());
  CHECK(pruned->trials == planned->trials);
  CHECK(pruned->dropped == pruned->trials);
  CHECK(pruned->trials > 0);
  CHECK(pruned->bytes_after < pruned->bytes_before);
  const auto left = live_trials(*db);
  CHECK(static_cast<std::int64_t>(left.size()) == kTrials - pruned->trials);
  for (int i = 0; i < 7; ++i) {
    int own = 0;
    for (const auto& one : left)
      own += one.problem == winner(i).problem && one.plan == winner(i).plan;
    CHECK(own > 0);
  }
  for (const auto& one : left)
    if (one.started < options.before) {
      const auto answer = db->winner_of(one.problem, env()->target, env()->performance_class);
      CHECK((*answer)->plan == one.plan);
    }
  CHECK(*db->content_hash(Content::winners) == *winners);
  CHECK(db->undecided()->empty());
  CHECK(db->check()->empty());
  REQUIRE(db->merge(copy).ok());
  CHECK(live_trials(*db).size() == left.size());
  CHECK(db->undecided()->empty());
  // Rows that a merge brought along once more are dropped by the next one.
  const auto again = db->prune(options);
  REQUIRE(again.ok());
  CHECK(again->trials == 0);
  CHECK(again->dropped == pruned->trials);
  // As few files as before.
  CHECK(names_in(folder.path) ==
        std::vector<std::string>{"a.db", "a.db-shm", "a.db-wal", "a.db.lock", "copy.snapshot"});
}

TEST_CASE("prune.a size is kept, the oldest first") {
  const Folder folder;
  auto db = Database::open(folder / "a.db");
  REQUIRE(db.ok());
  fill(*db, 256);
  PruneOptions options;
  options.most_bytes = 600 * 1024;
  const auto pruned = db->prune(options);
  REQUIRE_MESSAGE(pruned.ok(), pruned.status().message());
  CHECK(pruned->bytes_before > options.most_bytes);
  CHECK(pruned->bytes_after <= options.most_bytes);
  CHECK(pruned->bytes_after > options.most_bytes / 2);
  CHECK(db->info()->winners == 7);
  // None that was kept is older than one that went, but for what answers rest on.
  std::int64_t newest_gone = 0;
  std::vector<bool> kept(kTrials, false);
  for (const auto& one : live_trials(*db)) kept[one.started - trial(0).started] = true;
  for (int i = 0; i < kTrials; ++i)
    if (!kept[static_cast<std::size_t>(i)]) newest_gone = i;
  for (const auto& one : live_trials(*db)) {
    const auto answer = db->winner_of(one.problem, env()->target, env()->performance_class);
    if ((*answer)->plan != one.plan) CHECK(one.started - trial(0).started > newest_gone);
  }
}
