// The wrapper: binding, reuse, rollback, and what foreign schemas cannot do.
#include "cache/sqlite.hpp"

#include <doctest/doctest.h>

#include "tests/cache/support.hpp"

using namespace quarterturn;
using namespace quarterturn::sqlite;

namespace {

Connection memory() {
  auto opened = Connection::open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                                 std::chrono::milliseconds(100));
  REQUIRE(opened.ok());
  return std::move(*opened);
}

}  // namespace

TEST_CASE("sqlite.query binds every type and reads it back") {
  auto c = memory();
  REQUIRE(c.execute("CREATE TABLE t(a INTEGER, b REAL, c TEXT, d BLOB) STRICT").ok());
  const std::array<unsigned char, 3> bytes{0, 1, 255};
  const std::string sql = "INSERT INTO t VALUES(?, ?, ?, ?)";
  REQUIRE(Query(c, sql, -5, 0.25, "it's; DROP TABLE t", bytes).run().ok());
  REQUIRE(Query(c, sql, std::int64_t{1} << 62, -1.0, std::string_view(), Bytes()).run().ok());
  Query query(c, "SELECT a, b, c, d FROM t ORDER BY rowid");
  REQUIRE(query.next());
  CHECK(query.integer(0) == -5);
  CHECK(query.real(1) == 0.25);
  CHECK(query.text(2) == "it's; DROP TABLE t");
  CHECK(query.bytes(3).size() == 3);
  CHECK(query.bytes(3)[2] == 255);
  REQUIRE(query.next());
  CHECK(query.integer(0) == std::int64_t{1} << 62);
  CHECK(query.text(2).empty());
  CHECK(query.bytes(3).empty());
  CHECK(query.type(3) == SQLITE_BLOB);
  CHECK(!query.next());
  CHECK(query.status().ok());
}

TEST_CASE("sqlite.query keeps statements apart from their last values") {
  auto c = memory();
  REQUIRE(c.execute("CREATE TABLE t(a INTEGER)").ok());
  for (int i = 0; i < 3; ++i) REQUIRE(Query(c, "INSERT INTO t VALUES(?)", i).run().ok());
  {
    Query unbound(c, "INSERT INTO t VALUES(?)");
    REQUIRE(unbound.run().ok());
  }
  CHECK(*c.integer("SELECT count(*) FROM t WHERE a IS NULL") == 1);
}

TEST_CASE("sqlite.query reports what does not compile, bind or hold") {
  auto c = memory();
  CHECK(Query(c, "SELECT nothing FROM nowhere").run().code() == Code::damaged);
  REQUIRE(c.execute("CREATE TABLE t(a INTEGER NOT NULL UNIQUE) STRICT").ok());
  CHECK(Query(c, "INSERT INTO t VALUES(?)", 1, 2).run().code() == Code::internal);
  CHECK(Query(c, "INSERT INTO t VALUES(?)", "text").run().code() == Code::internal);
  CHECK(Query(c, "INSERT INTO t VALUES(?)", 1).run().ok());
  CHECK(Query(c, "INSERT INTO t VALUES(?)", 1).run().code() == Code::internal);
}

TEST_CASE("sqlite.transaction rolls back unless it is committed") {
  auto c = memory();
  REQUIRE(c.execute("CREATE TABLE t(a)").ok());
  {
    Transaction t(c, Transaction::Kind::immediate);
    REQUIRE(c.execute("INSERT INTO t VALUES(1)").ok());
  }
  CHECK(*c.integer("SELECT count(*) FROM t") == 0);
  {
    Transaction t(c, Transaction::Kind::exclusive);
    REQUIRE(c.execute("INSERT INTO t VALUES(1)").ok());
    REQUIRE(t.commit().ok());
  }
  CHECK(*c.integer("SELECT count(*) FROM t") == 1);
}

TEST_CASE("sqlite.connection waits no longer than asked") {
  test::Folder folder;
  CHECK(test::raw(folder / "x.db", "CREATE TABLE t(a)") == "");
  auto a = Connection::open(folder / "x.db", SQLITE_OPEN_READWRITE, std::chrono::milliseconds(50));
  auto b = Connection::open(folder / "x.db", SQLITE_OPEN_READWRITE, std::chrono::milliseconds(50));
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  Transaction held(*a, Transaction::Kind::exclusive);
  REQUIRE(held.status().ok());
  const auto start = std::chrono::steady_clock::now();
  Transaction second(*b, Transaction::Kind::immediate);
  CHECK(second.status().code() == Code::busy);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("sqlite.connection runs no trigger and no view of a file") {
  test::Folder folder;
  CHECK(test::raw(folder / "x.db",
                  "CREATE TABLE t(a); CREATE VIEW v AS SELECT a FROM t;"
                  "CREATE TRIGGER bad AFTER INSERT ON t BEGIN DELETE FROM t; END") == "");
  auto c = Connection::open(folder / "x.db", SQLITE_OPEN_READWRITE, std::chrono::milliseconds(50));
  REQUIRE(c.ok());
  CHECK(c->execute("INSERT INTO t VALUES(1)").ok());
  CHECK(*c->integer("SELECT count(*) FROM t") == 1);
  CHECK(!c->integer("SELECT count(*) FROM v").ok());
  CHECK(!c->execute("PRAGMA writable_schema=ON; DELETE FROM sqlite_schema").ok());
}
