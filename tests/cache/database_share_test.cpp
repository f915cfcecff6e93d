// Merging is a union; snapshots are immutable, private and named by their content.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <random>

#include "cache/database.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

Trial numbered(int number) {
  Trial trial = test::trial(number);
  trial.uuid = test::uuid(number + 1);
  trial.campaign = test::uuid(number % 3 + 1000);
  trial.env = test::env("cpu units=2", number % 2 == 0 ? "gcc-12" : "gcc-13");
  if (number % 6 == 0) trial.kind = TrialKind::admission;
  return trial;
}

// All rows of the merged tables with natural keys instead of ids, in a fixed order.
std::string dump(const std::string& path) {
  const auto columns = [&](const char* table) {
    return test::raw(
        path,
        fmt::format("SELECT group_concat(quote(name), '') FROM pragma_table_info('{}')", table));
  };
  std::string out = columns("trial");
  for (const auto* sql :
       {"SELECT quote(t.uuid), p.key, l.text, quote(e.hash), quote(t.campaign), t.kind, t.status, "
        "t.median_ns, quote(t.samples), t.detail, t.checksum, char(10) FROM trial t JOIN problem p "
        "ON "
        "p.id = t.problem_id JOIN plan l ON l.id = t.plan_id JOIN env e ON e.id = t.env_id ORDER "
        "BY 1",
        "SELECT p.text, s.position, s.kind, v.text, v.family, v.revision, char(10) FROM plan_step "
        "s JOIN "
        "plan p ON p.id = s.plan_id JOIN variant v ON v.id = s.variant_id ORDER BY 1, 2",
        "SELECT quote(hash), target, class, driver, compiler, char(10) FROM env ORDER BY 1",
        "SELECT key, char(10) FROM problem ORDER BY 1",
        "SELECT text, char(10) FROM plan ORDER BY 1",
        "SELECT kind, quote(subject), at, reason, char(10) FROM tombstone ORDER BY 1, 2",
        "SELECT subject, problem, target, class, compiler, reason, count, first, last, detail, "
        "char(10) "
        "FROM quarantine ORDER BY 1, 2, 3, 4, 5, 6",
        "SELECT problem, target, class, quote(source), calls, ns, char(10) FROM miss ORDER BY 1, "
        "2, 3, 4"})
    out += test::raw(path, sql);
  return out;
}

// A file with a random part of a common pool of rows, and misses of its own.
void random_file(const std::string& path, std::mt19937& random) {
  auto db = Database::open(path);
  REQUIRE(db.ok());
  std::vector<Trial> trials;
  for (int i = 0; i < 40; ++i)
    if (random() % 2 == 0) {
      trials.push_back(numbered(i));
      if (random() % 3 == 0) trials.back().detail.clear();  // as from a snapshot
    }
  std::shuffle(trials.begin(), trials.end(), random);
  REQUIRE(db->add_trials(trials).ok());
  for (int i = 0; i < 4; ++i) {
    if (random() % 2 == 0) continue;
    const Uuid id = test::uuid(i + 1);
    REQUIRE(db->add_tombstone({TombstoneKind::trial,
                               {id.begin(), id.end()},
                               std::string(1, static_cast<char>('a' + random() % 3)),
                               static_cast<std::int64_t>(1 + random() % 2)})
                .ok());
    Quarantine entry{test::plan(i),
                     "",
                     test::env()->target,
                     "",
                     "gcc-12",
                     QuarantineReason::hung,
                     static_cast<std::int64_t>(1 + random() % 5),
                     0,
                     0,
                     std::string(1, static_cast<char>('a' + random() % 3))};
    entry.first = entry.last = static_cast<std::int64_t>(1 + random() % 9);
    REQUIRE(db->add_quarantine(entry).ok());
    REQUIRE(
        db->record_miss({test::problem(i), "t", "c", static_cast<std::int64_t>(random() % 9), 5})
            .ok());
  }
}

std::string merged(const std::string& into, std::vector<std::string> from) {
  std::filesystem::remove(into);
  auto db = Database::open(into);
  REQUIRE(db.ok());
  for (const auto& each : from) {
    const auto report = db->merge(each);
    REQUIRE_MESSAGE(report.ok(), report.status().message());
    CHECK(report->conflicts == 0);
  }
  CHECK(db->check()->empty());
  db = Database::open("");
  return dump(into);
}

}  // namespace

TEST_CASE("merge is commutative, associative and idempotent") {
  std::mt19937 random(42);
  for (int round = 0; round < 8; ++round) {
    test::Folder folder;
    const auto a = folder / "a", b = folder / "b", c = folder / "c";
    for (const auto& path : {a, b, c}) random_file(path, random);
    const auto ab = folder / "ab", bc = folder / "bc";
    (void)merged(ab, {a, b});
    (void)merged(bc, {b, c});
    const auto all = merged(folder / "x", {a, b, c});
    CHECK(all.size() > 1000);
    CHECK(merged(folder / "x", {c, a, b}) == all);
    CHECK(merged(folder / "x", {ab, c}) == all);
    CHECK(merged(folder / "x", {a, bc}) == all);
    CHECK(merged(folder / "x", {a, b, c, a, ab, c, bc}) == all);
    CHECK(merged(folder / "x", {a}) == dump(a));
    // Into a file that has rows already, and with an empty one.
    auto empty = Database::open(folder / "empty");
    REQUIRE(empty.ok());
    auto db = Database::open(b);
    REQUIRE(db->merge(a).ok());
    REQUIRE(db->merge(folder / "empty").ok());
    REQUIRE(db->merge(c).ok());
    db = Database::open("");
    CHECK(dump(b) == all);
  }
}

TEST_CASE("merge reports what is new, known and in conflict") {
  test::Folder folder;
  auto a = Database::open(folder / "a");
  auto b = Database::open(folder / "b");
  for (int i = 0; i < 6; ++i) REQUIRE(a->add_trial(numbered(i)).ok());
  for (int i = 4; i < 9; ++i) REQUIRE(b->add_trial(numbered(i)).ok());
  Trial forged = numbered(3);
  forged.median_ns = 1;
  REQUIRE(b->add_trial(forged).ok());
  // b is open, with its rows still in its log.
  const auto report = a->merge(folder / "b");
  REQUIRE_MESSAGE(report.ok(), report.status().message());
  CHECK(report->trials == 3);
  CHECK(report->known == 3);
  CHECK(report->conflicts == 1);
  CHECK(a->info()->trials == 9);
  for (const auto& trial : test::live_trials(*a))
    if (trial.uuid == forged.uuid) CHECK(trial.median_ns == numbered(3).median_ns);
  CHECK(a->check()->empty());
  CHECK(a->undecided()->size() > 3);
}

TEST_CASE("merge refuses missing, foreign and damaged sources and changes nothing") {
  test::Folder folder;
  auto db = Database::open(folder / "a");
  REQUIRE(db->add_trial(numbered(1)).ok());
  CHECK(!db->merge(folder / "missing").ok());
  test::write_file(folder / "text", "hello");
  CHECK(db->merge(folder / "text").status().code() == Code::not_ours);
  {
    auto b = Database::open(folder / "b");
    for (int i = 0; i < 300; ++i) REQUIRE(b->add_trial(numbered(i)).ok());
  }
  auto bytes = test::read_file(folder / "b");
  for (std::size_t i = bytes.size() - 9000; i < bytes.size() - 100; ++i) bytes[i] = 'x';
  test::write_file(folder / "b", bytes);
  CHECK(db->merge(folder / "b").status().code() == Code::damaged);
  CHECK(test::read_file(folder / "b") == bytes);
  CHECK(db->info()->trials == 1);
  CHECK(test::raw(folder / "a", "SELECT count(*) FROM problem") == "1");
}

TEST_CASE("snapshot hash and bytes do not depend on the order of insertion") {
  std::mt19937 random(3);
  std::string first_hash, first_winners, first_bytes;
  for (int round = 0; round < 5; ++round) {
    test::Folder folder;
    auto db = Database::open(folder / "a");
    std::vector<int> order(60);
    for (int i = 0; i < 60; ++i) order[i] = i;
    if (round > 0) std::shuffle(order.begin(), order.end(), random);
    for (const int i : order) {
      REQUIRE(db->add_trial(numbered(i)).ok());
      if (i % 3 != 0) continue;
      Winner winner = test::winner(i);
      winner.decided = 1000 + round;  // when it was decided is no content
      REQUIRE(db->set_winner(winner).ok());
      if (round % 2 == 1) REQUIRE(db->record_miss({test::problem(i), "t", "c", 1, 1}).ok());
    }
    const auto hash = db->export_snapshot(folder / "s");
    REQUIRE_MESSAGE(hash.ok(), hash.status().message());
    CHECK(*hash == *db->content_hash());
    const auto winners = *db->content_hash(Content::winners);
    if (round == 0) first_hash = hex(*hash), first_winners = hex(winners);
    CHECK(hex(*hash) == first_hash);
    CHECK(hex(winners) == first_winners);
    auto snapshot = Database::open_snapshot(folder / "s");
    REQUIRE_MESSAGE(snapshot.ok(), snapshot.status().message());
    CHECK(hex(*snapshot->content_hash()) == first_hash);
    CHECK(snapshot->check()->empty());
  }
}

TEST_CASE("snapshot hash changes with what it covers") {
  auto db = Database::open("");
  REQUIRE(db->add_trial(numbered(1)).ok());
  REQUIRE(db->set_winner(test::winner()).ok());
  auto all = *db->content_hash(), winners = *db->content_hash(Content::winners);
  const auto changed = [&](bool in_winners) {
    const auto now = *db->content_hash(), winners_now = *db->content_hash(Content::winners);
    CHECK(now != all);
    CHECK((winners_now != winners) == in_winners);
    all = now;
    winners = winners_now;
  };
  REQUIRE(db->add_trial(numbered(2)).ok());
  changed(false);
  Winner winner = test::winner();
  winner.speedup = 1.6;
  REQUIRE(db->set_winner(winner).ok());
  changed(false);
  winner.plan = test::plan(77);
  REQUIRE(db->set_winner(winner).ok());
  changed(true);
  winner.choice = Choice::fallback;
  REQUIRE(db->set_winner(winner).ok());
  changed(true);
  const Uuid id = test::uuid(2);
  REQUIRE(db->add_tombstone({TombstoneKind::trial, {id.begin(), id.end()}, "", 9}).ok());
  changed(false);
  REQUIRE(db->record_miss({"p", "t", "c", 1, 1}).ok());
  CHECK(*db->content_hash() == all);
}

TEST_CASE("snapshot holds no notes, no code index, no identity, and misses only when asked") {
  test::Folder folder;
  auto db = Database::open(folder / "a");
  Trial trial = numbered(1);
  trial.detail = "/home/somebody/secret.cpp:1: error on host node17";
  REQUIRE(db->add_trial(trial).ok());
  REQUIRE(db->record_miss({"missed-problem", "t", "c", 4, 5}).ok());
  Artifact artifact;
  artifact.log = "node17 log";
  REQUIRE(db->put_artifact(artifact).ok());
  REQUIRE(db->add_quarantine(
                {test::plan(), "", "t", "", "gcc", QuarantineReason::hung, 1, 1, 1, "node17"})
              .ok());
  const Uuid id = test::uuid(500);
  REQUIRE(db->add_tombstone({TombstoneKind::trial, {id.begin(), id.end()}, "node17", 9}).ok());
  REQUIRE(db->export_snapshot(folder / "s").ok());
  const auto bytes = test::read_file(folder / "s");
  for (const auto* secret : {"node17", "somebody", "missed-problem"})
    CHECK(bytes.find(secret) == std::string::npos);
  CHECK(bytes.find(db->info()->uuid) == std::string::npos);
  auto snapshot = Database::open_snapshot(folder / "s");
  REQUIRE(snapshot.ok());
  CHECK(snapshot->info()->trials == 1);
  CHECK(snapshot->info()->quarantined == 1);
  CHECK(snapshot->info()->artifacts == 0);
  CHECK(snapshot->info()->misses == 0);
  SnapshotOptions options;
  options.misses = MissRows::included;
  REQUIRE(db->export_snapshot(folder / "s2", options).ok());
  CHECK(Database::open_snapshot(folder / "s2")->misses("t", "c")->at(0).calls == 4);
  // A copy that becomes a local database counts its misses under a name of its own.
  auto local = Database::open(folder / "s2");
  REQUIRE(local.ok());
  REQUIRE(local->record_miss({"missed-problem", "t", "c", 1, 1}).ok());
  CHECK(local->misses("t", "c")->at(0).calls == 5);
}

TEST_CASE("snapshot without trials keeps admissions, and withdrawn trials stay at home") {
  test::Folder folder;
  auto db = Database::open(folder / "a");
  for (int i = 0; i < 12; ++i) REQUIRE(db->add_trial(numbered(i)).ok());
  const Uuid id = test::uuid(6 + 1);
  REQUIRE(db->add_tombstone({TombstoneKind::trial, {id.begin(), id.end()}, "", 9}).ok());
  REQUIRE(db->set_winner(test::winner()).ok());
  SnapshotOptions options;
  options.trials = TrialRows::left_out;
  REQUIRE(db->export_snapshot(folder / "s", options).ok());
  auto snapshot = Database::open_snapshot(folder / "s");
  REQUIRE(snapshot.ok());
  CHECK(snapshot->info()->trials == 1);  // 0 and 6 are admissions, 6 was taken back
  CHECK(snapshot->info()->winners == 1);
  CHECK(*snapshot->has_admission("cpu_gemm", 3, *test::env()));
  REQUIRE(db->export_snapshot(folder / "t").ok());
  CHECK(Database::open_snapshot(folder / "t")->info()->trials == 11);
}

TEST_CASE("snapshot is read where nothing can be written, and changed by nobody") {
  test::Folder folder;
  {
    auto db = Database::open("");  // also from a database in memory
    for (int i = 0; i < 10; ++i) REQUIRE(db->add_trial(numbered(i)).ok());
    REQUIRE(db->set_winner(test::winner()).ok());
    REQUIRE(db->export_snapshot(folder / "s").ok());
    REQUIRE(db->export_snapshot(folder / "s").ok());  // replaced by rename
    CHECK(db->export_snapshot(folder / "no/such/folder/s").status().code() == Code::io_error);
    CHECK(db->export_snapshot("s3://b/s").status().code() == Code::invalid_argument);
  }
  CHECK(test::names_in(folder.path) == std::vector<std::string>{"s"});
  struct stat info {};
  REQUIRE(stat((folder / "s").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0644);
  const auto bytes = test::read_file(folder / "s");
  auto snapshot = Database::open_snapshot(folder / "s");
  REQUIRE(snapshot.ok());
  CHECK(snapshot->mode() == DatabaseInfo::Mode::snapshot);
  CHECK(snapshot->winners(test::env()->target)->size() == 1);
  CHECK(snapshot->add_trial(numbered(99)).code() == Code::read_only);
  CHECK(snapshot->merge(folder / "s").status().code() == Code::read_only);
  CHECK(test::names_in(folder.path) == std::vector<std::string>{"s"});
  CHECK(test::read_file(folder / "s") == bytes);
  REQUIRE(snapshot->export_snapshot(folder / "t").ok());  // and can be passed on
  CHECK(*Database::open_snapshot(folder / "t")->content_hash() == *snapshot->content_hash());
}

TEST_CASE("snapshot never replaces a database, its own or another, nor is put beside a log") {
  const test::Folder folder;
  auto db = Database::open(folder / "a");
  REQUIRE(db->add_trial(numbered(1)).ok());
  REQUIRE(Database::open(folder / "b")->add_trial(numbered(2)).ok());
  std::filesystem::create_hard_link(folder / "b", folder / "link");
  test::write_file(folder / "c-wal", "a log whose database is gone");
  const auto other = test::read_file(folder / "b");
  for (const char* to : {"a", "b", "link", "c"}) {
    const auto refused = db->export_snapshot(folder / to);
    CHECK_MESSAGE(refused.status().code() == Code::invalid_argument, to);
    CHECK(refused.status().message().find(folder / to) != std::string::npos);
  }
  CHECK(db->info()->trials == 1);
  CHECK(test::read_file(folder / "b") == other);
  CHECK(!std::filesystem::exists(folder / "c"));
}

TEST_CASE("snapshot whose rows do not fit its hash is refused") {
  test::Folder folder;
  {
    auto db = Database::open("");
    for (int i = 0; i < 10; ++i) REQUIRE(db->add_trial(numbered(i)).ok());
    REQUIRE(db->set_winner(test::winner()).ok());
    REQUIRE(db->export_snapshot(folder / "s").ok());
  }
  std::filesystem::copy_file(folder / "s", folder / "t");
  CHECK(test::raw(folder / "s", "UPDATE winner SET plan_id = (SELECT max(id) FROM plan)") == "");
  CHECK(Database::open_snapshot(folder / "s").status().code() == Code::damaged);
  auto trusting = Database::open_snapshot(folder / "s", Verify::nothing);
  REQUIRE(trusting.ok());
  CHECK(trusting->check()->size() == 1);
  CHECK(test::raw(folder / "t", "UPDATE trial SET median_ns = 1 WHERE rowid = 1") == "");
  auto snapshot = Database::open_snapshot(folder / "t");  // the winners are as published
  REQUIRE(snapshot.ok());
  CHECK(snapshot->check()->size() == 2);  // the row's checksum and the content hash
}
