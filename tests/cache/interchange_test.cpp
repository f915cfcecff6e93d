#include "cache/interchange.hpp"

#include <doctest/doctest.h>

#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace quarterturn::test;

namespace {

Database open(const std::string& path) {
  auto db = Database::open(path);
  REQUIRE(db.ok());
  return std::move(*db);
}

void fill(Database& db) {
  for (int i = 0; i < 20; ++i) {
    auto one = trial(i);
    one.uuid = uuid(i + 1);
    REQUIRE(db.add_trial(one).ok());
  }
  for (int i = 0; i < 3; ++i) REQUIRE(db.set_winner(winner(i)).ok());
  Quarantine entry;
  entry.subject = plan(3);
  entry.target = env()->target;
  entry.compiler = "gcc-12";
  entry.first = entry.last = 7;
  REQUIRE(db.add_quarantine(entry).ok());
  const auto dead = uuid(20);
  REQUIRE(db.add_tombstone({TombstoneKind::trial, {dead.begin(), dead.end()}, "warm", 9}).ok());
}

}  // namespace

TEST_CASE("interchange.what is exported is imported whole, and again changes nothing") {
  const Folder folder;
  auto from = open(folder / "a.db"), to = open(folder / "b.db");
  fill(from);
  const auto text = to_json(from);
  REQUIRE_MESSAGE(text.ok(), text.status().message());
  CHECK(text->find("trial 3") == std::string::npos);  // details stay at home
  for (int i = 0; i < 2; ++i) {
    const auto report = import_json(to, *text, Winners::keep_ours);
    REQUIRE_MESSAGE(report.ok(), report.status().message());
    CHECK(report->trials == 19);  // one was taken back
    CHECK(report->winners == 3);
    CHECK(report->kept == (i == 0 ? 0 : 3));
    CHECK(*to_json(to) == *text);
  }
  CHECK(*from.content_hash(Content::winners) == *to.content_hash(Content::winners));
  CHECK(to.quarantine()->front().count == 1);
}

TEST_CASE("interchange.text is the same for equal content, one row a line") {
  const Folder folder;
  auto a = open(folder / "a.db"), b = open(folder / "b.db");
  fill(a);
  for (int i = 19; i >= 0; --i) {
    auto one = trial(i);
    one.uuid = uuid(i + 1);
    REQUIRE(b.add_trial(one).ok());
  }
  const auto without = [](const Result<std::string>& text) {
    REQUIRE(text.ok());
    return text->substr(text->find("\"trials\""));
  };
  auto fewer = without(to_json(b));
  CHECK(std::count(fewer.begin(), fewer.end(), '\n') == 23);
  const auto left_out = to_json(a, TrialRows::left_out);
  REQUIRE(left_out.ok());
  CHECK(left_out->find("\"uuid\"") == std::string::npos);
  CHECK(left_out->find("\"winners\"") != std::string::npos);
}

TEST_CASE("interchange.a conflict is settled as the caller says") {
  const Folder folder;
  auto ours = open(folder / "a.db"), theirs = open(folder / "b.db");
  auto mine = winner(1), other = winner(1);
  other.plan = plan(4);
  REQUIRE(ours.set_winner(mine).ok());
  REQUIRE(theirs.set_winner(other).ok());
  const auto text = *to_json(theirs);
  const auto served = [&] {
    return (*ours.winner_of(mine.problem, env()->target, env()->performance_class))->plan;
  };
  REQUIRE(import_json(ours, text, Winners::keep_ours)->kept == 1);
  CHECK(served() == mine.plan);
  REQUIRE(import_json(ours, text, Winners::take_theirs)->kept == 0);
  CHECK(served() == other.plan);
}

TEST_CASE("interchange.malformed text is refused with its row, and nothing is written") {
  const Folder folder;
  auto from = open(folder / "a.db"), to = open(folder / "b.db");
  fill(from);
  const auto text = *to_json(from);
  const auto before = *to.content_hash(Content::all);
  const auto after = [&](const std::string& find, const std::string& replace) {
    auto changed = text;
    const auto at = changed.find(find);
    REQUIRE(at != std::string::npos);
    changed.replace(at, find.size(), replace);
    const auto report = import_json(to, changed, Winners::keep_ours);
    CHECK(!report.ok());
    CHECK(*to.content_hash(Content::all) == before);
    return report.status();
  };
  CHECK(after("\"quarterturn_database\": 1", "\"quarterturn_database\": 2").code() ==
        Code::newer_version);
  CHECK(after("\"quarterturn_database\"", "\"another\"").code() == Code::not_ours);
  CHECK(after("\"median_ns\"", "\"median\"").message().find("winners[0]: 'median_ns' is missing") !=
        std::string::npos);
  CHECK(after("\"class\":\"cpu", "\"class\":\"gpu").message().find("envs[0]") != std::string::npos);
  CHECK(after("\"kind\":\"timing\"", "\"kind\":\"guess\"").message().find("'guess'") !=
        std::string::npos);
  CHECK(after("\"median_ns\":1000.0", "\"median_ns\":\"fast\"").code() == Code::invalid_argument);
  CHECK(after("\"plan\":\"quantize_a", "\"plan\":\"}{").code() != Code::ok);
  for (std::size_t length = 0; length + 3 < text.size(); length += 97)
    CHECK(!import_json(to, text.substr(0, length), Winners::keep_ours).ok());
  CHECK(*to.content_hash(Content::all) == before);
}

TEST_CASE("database.recover saves what can be read of a damaged file, and leaves that as it is") {
  const Folder folder;
  {
    auto db = open(folder / "a.db");
    fill(db);
    for (int i = 0; i < 2000; ++i) REQUIRE(db.add_trial(trial(i)).ok());
  }
  auto bytes = read_file(folder / "a.db");
  REQUIRE(bytes.size() > 400000);
  for (std::size_t i = bytes.size() / 2; i < bytes.size() / 2 + 4096; ++i) bytes[i] = '\x5a';
  write_file(folder / "a.db", bytes);
  const auto report = Database::recover(folder / "a.db", folder / "b.db");
  REQUIRE_MESSAGE(report.ok(), report.status().message());
  CHECK(report->trials > 500);
  CHECK(report->winners == 3);
  CHECK(read_file(folder / "a.db") == bytes);
  auto saved = open(folder / "b.db");
  CHECK(saved.check()->empty());
  CHECK(Database::recover(folder / "a.db", folder / "b.db").status().code() ==
        Code::invalid_argument);
  write_file(folder / "c.db", std::string(50000, 'x'));
  CHECK(Database::recover(folder / "c.db", folder / "d.db").status().code() == Code::miss);
  for (const auto& name : names_in(folder.path)) CHECK_MESSAGE(!name.starts_with("d.db"), name);
  CHECK(!std::filesystem::exists(folder / "d.db"));
}

TEST_CASE("interchange.text that is not UTF-8 is refused, not thrown") {
  auto db = Database::open("");
  Winner winner = test::winner();
  winner.certificate = "max_error=\xFF";
  REQUIRE(db->set_winner(winner).ok());
  CHECK(to_json(*db).status().code() == Code::damaged);
}
