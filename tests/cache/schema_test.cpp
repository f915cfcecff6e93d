// One schema however many processes make it; older files carried forward; newer ones left alone.
#include "cache/schema.hpp"

#include <doctest/doctest.h>

#include "cache/rows.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;
using sqlite::Connection;

namespace {

// Artificial later versions, as a future library would have them.
std::vector<schema::Step> later(const char* statements, std::int64_t min_reader = 1) {
  const auto known = schema::steps();
  std::vector<schema::Step> out(known.begin(), known.end());
  out.push_back({schema::version + 1, min_reader, statements});
  return out;
}

constexpr const char* add_column =
    "ALTER TABLE trial ADD COLUMN energy_mj REAL NOT NULL DEFAULT 0;"
    "INSERT INTO meta(key, value) VALUES('upgrades', '1');";

Result<Connection> connect(const std::string& path) {
  return Connection::open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                          std::chrono::milliseconds(10000));
}

}  // namespace

TEST_CASE("schema.migrate makes a sound, empty database that names itself") {
  test::Folder folder;
  auto c = connect(folder / "x.db");
  REQUIRE(c.ok());
  REQUIRE(schema::migrate(*c, schema::steps()).ok());
  REQUIRE(schema::migrate(*c, schema::steps()).ok());  // again: nothing to do
  CHECK(*c->integer("PRAGMA application_id") == schema::application_id);
  CHECK(*c->integer("PRAGMA user_version") == schema::version);
  CHECK(parse_uuid(*c->text("SELECT value FROM meta WHERE key = 'uuid'")).ok());
  CHECK(schema::check_objects(*c, "main", schema::Extras::refused).ok());
  CHECK(schema::check_tables(*c).ok());
  CHECK(*c->text("PRAGMA quick_check") == "ok");
  CHECK(schema::read_header(*c)->identity == schema::Identity::ours);
  CHECK(schema::read_header(*c)->user_version == schema::version);
}

TEST_CASE("schema.migrate carries an older file forward and keeps its rows") {
  test::Folder folder;
  const auto path = folder / "x.db";
  {
    auto db = Database::open(path);
    REQUIRE(db.ok());
    for (int i = 0; i < 10; ++i) REQUIRE(db->add_trial(test::trial(i)).ok());
    REQUIRE(db->set_winner(test::winner()).ok());
  }
  {
    auto c = connect(path);
    REQUIRE(c.ok());
    REQUIRE(schema::migrate(*c, later(add_column)).ok());
    CHECK(*c->integer("PRAGMA user_version") == schema::version + 1);
    CHECK(*c->integer("SELECT count(*) FROM trial WHERE energy_mj = 0") == 10);
  }
  // This library is now the older one: it reads, and never writes or moves the file.
  const auto before = test::read_file(path);
  auto db = Database::open(path);
  REQUIRE(db.ok());
  CHECK(db->mode() == DatabaseInfo::Mode::read_only);
  CHECK(db->info()->trials == 10);
  CHECK(db->winners(test::env()->target)->size() == 1);
  CHECK(db->add_trial(test::trial()).code() == Code::read_only);
  const auto notes = db->take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("newer Quarterturn") != std::string::npos);
  CHECK(test::read_file(path) == before);
}

TEST_CASE("schema.migrate leaves a file at its version when a step fails") {
  test::Folder folder;
  auto c = connect(folder / "x.db");
  REQUIRE(c.ok());
  REQUIRE(schema::migrate(*c, schema::steps()).ok());
  const Status status =
      schema::migrate(*c, later("CREATE TABLE extra(a) STRICT; CREATE TABLE trial(a);"));
  CHECK(!status.ok());
  CHECK(*c->integer("PRAGMA user_version") == schema::version);
  CHECK(schema::check_objects(*c, "main", schema::Extras::refused).ok());
}

TEST_CASE("schema.migrate happens once when processes of both versions open a file together") {
  test::Folder folder;
  const auto path = folder / "x.db";
  { REQUIRE(Database::open(path).ok()); }
  const auto results = test::together(12, [&](int i) -> std::string {
    if (i % 3 == 0) {  // the older library, which meets the file before, during or after
      auto db = Database::open(path);
      CHILD_OK(db);
      const Status added = db->add_trial(test::trial(i));
      CHILD_CHECK(added.ok() || added.code() == Code::read_only);
      return {};
    }
    auto c = connect(path);
    CHILD_OK(c);
    CHILD_OK(schema::migrate(*c, later(add_column)));
    return {};
  });
  for (const auto& result : results) CHECK(result == "");
  CHECK(test::raw(path, "SELECT count(*) FROM meta WHERE key = 'upgrades'") == "1");
  CHECK(test::raw(path, "PRAGMA user_version") == std::to_string(schema::version + 1));
  CHECK(test::raw(path, "PRAGMA integrity_check") == "ok");
}

TEST_CASE("schema.migrate refuses a file of another program, also under the lock") {
  test::Folder folder;
  CHECK(test::raw(folder / "a.db", "CREATE TABLE t(a)") == "");
  CHECK(test::raw(folder / "b.db", "PRAGMA application_id=77; PRAGMA user_version=0") == "");
  CHECK(test::raw(folder / "c.db", "PRAGMA user_version=1") == "");
  for (const auto* name : {"a.db", "b.db", "c.db"}) {
    const auto before = test::read_file(folder / name);
    auto c = connect(folder / name);
    REQUIRE(c.ok());
    CHECK(schema::migrate(*c, schema::steps()).code() == Code::not_ours);
    CHECK(test::read_file(folder / name) == before);
  }
}

TEST_CASE("schema.check_objects tells a hostile schema from an added index") {
  const auto made = [](const std::string& sql) {
    auto c = connect(":memory:");
    REQUIRE(c.ok());
    REQUIRE(schema::migrate(*c, schema::steps()).ok());
    REQUIRE(c->execute(sql).ok());
    return std::move(*c);
  };
  for (const auto* sql :
       {"CREATE TRIGGER x AFTER INSERT ON trial BEGIN DELETE FROM winner; END",
        "CREATE VIEW x AS SELECT * FROM trial", "CREATE TABLE x(a)",
        "CREATE VIRTUAL TABLE x USING fts5(a)", "CREATE INDEX x ON trial(rounds)"}) {
    auto c = made(sql);
    CHECK(schema::check_objects(c, "main", schema::Extras::refused).code() == Code::damaged);
    CHECK(schema::check_objects(c, "main", schema::Extras::allowed).ok());
  }
  for (const auto* sql : {"DROP TABLE tombstone", "ALTER TABLE trial RENAME COLUMN rounds TO x",
                          "DROP TABLE miss; CREATE VIEW miss AS SELECT * FROM trial"}) {
    auto c = made(sql);
    CHECK(schema::check_objects(c, "main", schema::Extras::allowed).code() == Code::damaged);
  }
}
