// Trials written and read back; checksums that see every field.
#include "cache/rows.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <set>

#include "cache/schema.hpp"
#include "tests/cache/support.hpp"

using namespace quarterturn;

namespace {

void fill(std::string& field, int number) { field = fmt::format("x={}\n'", number); }
void fill(double& field, int number) { field = number; }
void fill(std::int64_t& field, int number) { field = number; }
template <class Enum>
requires std::is_enum_v<Enum>
void fill(Enum& field, int number) { field = static_cast<Enum>(number); }

// A trial in which no field has its default value.
Trial full() {
  Trial out = test::trial(3);
  out.uuid = test::uuid(1);
  out.campaign = test::uuid(2);
  int number = 2;
#define X(type, name, meaning) fill(out.name, ++number);
  QTURN_TRIAL_FIELDS(X)
#undef X
  out.noise = 0.1 + 0.2;
  out.bias_z = -1e-308;
  out.started = std::numeric_limits<std::int64_t>::max();
  return out;
}

bool equal(const Trial& a, const Trial& b) {
  bool same = a.uuid == b.uuid && a.problem == b.problem && a.plan == b.plan && *a.env == *b.env &&
              a.campaign == b.campaign && a.samples == b.samples && a.detail == b.detail;
#define X(type, name, meaning) same = same && a.name == b.name;
  QTURN_TRIAL_FIELDS(X)
#undef X
  return same;
}

}  // namespace

TEST_CASE("rows.trial comes back as it was, every field") {
  auto db = Database::open("");
  REQUIRE(db.ok());
  const Trial given = full();
  REQUIRE(db->add_trial(given).ok());
  const auto back = db->trials(given.problem, given.env->target, given.env->performance_class);
  REQUIRE(back.ok());
  REQUIRE(back->size() == 1);
  CHECK(equal(back->front(), given));
  CHECK(rows::checksum(back->front()) == rows::checksum(given));
  CHECK(db->check()->empty());
}

TEST_CASE("rows.checksum sees a change of any field but the detail") {
  const Trial given = full();
  std::set<std::int64_t> seen{rows::checksum(given)};
  std::size_t fields = 0;
  const auto changed = [&](auto&& change) {
    Trial other = given;
    change(other);
    seen.insert(rows::checksum(other));
    ++fields;
  };
#define X(type, name, meaning) changed([](Trial& t) { fill(t.name, 77); });
  QTURN_TRIAL_FIELDS(X)
#undef X
  changed([](Trial& t) { t.uuid[15] ^= 1; });
  changed([](Trial& t) { t.campaign[0] ^= 1; });
  changed([](Trial& t) { t.problem += "0"; });
  changed([](Trial& t) { t.plan += "0"; });
  changed([](Trial& t) { t.env = test::env("cpu units=3"); });
  changed([](Trial& t) { t.samples.push_back(0); });
  changed([](Trial& t) { t.samples.clear(); });
  CHECK(seen.size() == fields + 1);
  Trial noted = given;
  noted.detail = "another";
  CHECK(rows::checksum(noted) == rows::checksum(given));
  Trial zero = given, minus_zero = given;
  zero.noise = 0.0;
  minus_zero.noise = -0.0;  // SQLite stores both as 0
  CHECK(rows::checksum(zero) == rows::checksum(minus_zero));
}

TEST_CASE("rows.trial_fields are columns of the table, in any order") {
  auto c = sqlite::Connection::open(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE,
                                    std::chrono::milliseconds(0));
  REQUIRE(c.ok());
  REQUIRE(schema::migrate(*c, schema::steps()).ok());
  CHECK(sqlite::Query(*c, "SELECT " + rows::trial_columns("") + " FROM trial").run().ok());
}

TEST_CASE("rows.check refuses what could not be compared later") {
  auto db = Database::open("");
  REQUIRE(db.ok());
  const auto refused = [&](auto&& change) {
    Trial trial = test::trial();
    change(trial);
    const Status status = db->add_trial(trial);
    CHECK_MESSAGE(status.code() == Code::invalid_argument, status.message());
  };
  refused([](Trial& t) { t.problem.clear(); });
  refused([](Trial& t) { t.plan = "no plan"; });
  refused([](Trial& t) { t.plan = "gemm=cpu_gemm/3{b=1,a=2}"; });  // not in canonical order
  refused([](Trial& t) { t.env = nullptr; });
  refused([](Trial& t) { t.env = test::env(""); });
  refused([](Trial& t) { t.problem += '\n'; });
  refused([](Trial& t) { t.problem = std::string(70000, 'x'); });
  refused([](Trial& t) { t.median_ns = std::numeric_limits<double>::quiet_NaN(); });
  refused([](Trial& t) { t.ratio = std::numeric_limits<double>::infinity(); });
  refused([](Trial& t) { t.samples.push_back(-std::numeric_limits<double>::infinity()); });
  Winner winner = test::winner();
  winner.speedup = std::numeric_limits<double>::quiet_NaN();
  CHECK(db->set_winner(winner).code() == Code::invalid_argument);
  CHECK(db->info()->trials == 0);
  CHECK(db->info()->problems == 0);
}
