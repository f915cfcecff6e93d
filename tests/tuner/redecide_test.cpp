#include "tuner/redecide.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

namespace {

const std::string kProblem = "op=gemm m=1..16 n=4096 k=4096 a_type=mxfp4 b_type=mxfp4 d_type=bf16";

Trial timed(int tile, double ratio, double width, int number, const char* library = "0.1.0") {
  Trial out = trial(number);
  out.uuid = uuid(number + 1);
  out.problem = kProblem;
  out.plan = plan(tile);
  auto place = *env();
  place.library = library;
  out.env = std::make_shared<const Env>(place);
  out.kind = TrialKind::timing;
  out.ratio = ratio;
  out.ratio_low = ratio * (1 - width);
  out.ratio_high = ratio * (1 + width);
  out.median_ns = 1000 / ratio;
  return out;
}

Database with(const std::vector<Trial>& trials) {
  auto db = Database::open("");
  REQUIRE(db.ok());
  REQUIRE(db->add_trials(trials).ok());
  return std::move(*db);
}

std::optional<Winner> answer(Database& db) {
  const auto out = redecide(db);
  REQUIRE_MESSAGE(out.ok(), out.status().message());
  return *db.winner_of(kProblem, env()->target, env()->performance_class);
}

}  // namespace

TEST_CASE("redecide.takes what surely beats the default, and the default otherwise") {
  auto db = with({timed(1, 1.3, 0.01, 1), timed(2, 1.1, 0.01, 2), timed(3, 2.0, 0.9, 3)});
  auto winner = answer(db);
  REQUIRE(winner);
  CHECK(winner->plan == plan(1));  // 3 is faster, but nobody knows
  CHECK(winner->choice == Choice::tuned);
  CHECK(winner->evidence == 3);
  CHECK(winner->speedup == doctest::Approx(1.3));
  CHECK(redecide(db)->problems == 0);  // decided
  // Further trials of the doubtful one settle it.
  REQUIRE(db.add_trials(std::vector{timed(3, 1.9, 0.02, 4)}).ok());
  CHECK(answer(db)->plan == plan(3));

  auto slow = with({timed(1, 0.8, 0.01, 1), timed(2, 1.004, 0.001, 2), timed(3, 1.5, 0.6, 3)});
  winner = answer(slow);
  REQUIRE(winner);
  CHECK(winner->choice == Choice::fallback);
  CHECK(winner->speedup == 1);
}

TEST_CASE("redecide.the order of merges does not matter") {
  std::vector<Trial> trials;
  std::mt19937 random(5);
  std::normal_distribution<double> draw(0, 0.02);
  for (int i = 0; i < 60; ++i)
    trials.push_back(timed(1 + i % 5, (1.1 + 0.02 * (i % 5)) * std::exp(draw(random)), 0.02, i));
  std::optional<Winner> first;
  for (int round = 0; round < 6; ++round) {
    std::shuffle(trials.begin(), trials.end(), random);
    auto db = Database::open("");
    REQUIRE(db.ok());
    for (const auto& one : trials) {
      REQUIRE(db->add_trial(one).ok());
      if (random() % 16 == 0) REQUIRE(redecide(*db).ok());
    }
    const auto now = answer(*db);
    REQUIRE(now);
    if (!first) first = now;
    CHECK(now->plan == first->plan);
    CHECK(now->speedup == doctest::Approx(first->speedup).epsilon(1e-9));
    CHECK(now->ties == first->ties);
  }
}

TEST_CASE("redecide.ranks that tune at once on noisy clocks end with one answer") {
  Folder folder;
  const auto path = folder / "x.db";
  const auto results = together(8, [&](int rank) -> std::string {
    auto db = Database::open(path);
    CHILD_OK(db);
    std::mt19937 random(static_cast<unsigned>(rank));
    std::normal_distribution<double> draw(0, 0.02);
    for (int i = 0; i < 12; ++i) {
      // Plans 1 to 3 are as good as tied.
      auto one = timed(1 + i % 4, (i % 4 == 3 ? 1.1 : 1.3) * std::exp(draw(random)), 0.03,
                       1000 * rank + i);
      CHILD_OK(db->add_trial(one));
      if (i % 4 == 3) CHILD_OK(redecide(*db));
    }
    return {};
  });
  for (const auto& result : results) CHECK(result == "");
  auto db = Database::open(path);
  const auto shared = answer(*db);
  REQUIRE(shared);
  // The same trials, met in another order on another node.
  auto trials = live_trials(*db);
  CHECK(trials.size() == 8 * 12);
  std::reverse(trials.begin(), trials.end());
  auto elsewhere = with(trials);
  CHECK(answer(elsewhere)->plan == shared->plan);
  CHECK(*elsewhere.content_hash(Content::winners) == *db->content_hash(Content::winners));
}

TEST_CASE("redecide.another default's ratios and failed trials are no evidence") {
  auto failed = timed(4, 3.0, 0.01, 9);
  failed.status = TrialStatus::wrong;
  auto db = with({timed(1, 1.5, 0.01, 1, "0.9.10"), timed(2, 9.0, 0.01, 2, "0.9.9"), failed});
  CHECK(answer(db)->plan == plan(1));
  // What is taken back counts no more.
  const auto gone = uuid(2);
  REQUIRE(db.add_tombstone({TombstoneKind::trial, {gone.begin(), gone.end()}, "hot", 1}).ok());
  const auto left = redecide(db);
  REQUIRE(left.ok());
}
