// Values on their way to a PostgreSQL server; tests/cluster/postgresql_test.py has a real one.
#include "cache/postgresql.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace quarterturn;

TEST_CASE("pg.an array quotes texts and keeps numbers to the last bit") {
  CHECK(pg::Array().text() == "{}");
  pg::Array texts;
  for (const char* text : {"", "a b", "NULL", "say \"x\"", "back\\slash", "{1,2}"}) texts.add(text);
  CHECK(texts.text() == R"({"","a b","NULL","say \"x\"","back\\slash","{1,2}"})");
  pg::Array numbers;
  numbers.add(std::numeric_limits<std::int64_t>::min());
  numbers.add(0.1);
  numbers.add(std::numeric_limits<double>::denorm_min());
  CHECK(numbers.text() == "{-9223372036854775808,0.1,5e-324}");
  pg::Array bytes;
  bytes.add_bytes("\x00\xff", 2);
  CHECK(bytes.text() == R"({"\\x00ff"})");
}

TEST_CASE("pg.text that a server would refuse is told, and mended") {
  for (const char* good : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    CHECK(pg::is_utf8(good));
    CHECK(pg::as_utf8(good) == good);
  }
  const std::string nul("a\0b", 3);
  CHECK(!pg::is_utf8(nul));
  CHECK(pg::as_utf8(nul) == "a?b");
  // Cut, overlong, surrogate, beyond Unicode, a stray byte.
  for (const char* bad : {"\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "x\x80y"}) {
    CHECK(!pg::is_utf8(bad));
    CHECK(pg::is_utf8(pg::as_utf8(bad)));
  }
}

TEST_CASE("pg.only PostgreSQL's URLs name a store") {
  CHECK(pg::is_url("postgresql://host/db"));
  CHECK(pg::is_url("postgres://host/db"));
  CHECK(!pg::is_url("host=x dbname=y"));
  CHECK(!pg::is_url("/var/tuned.db"));
}
