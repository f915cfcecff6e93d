// UUIDs and names.
#include "cache/records.hpp"

#include <doctest/doctest.h>

#include <set>

#include "tests/cache/support.hpp"

using namespace quarterturn;

TEST_CASE("records.uuid prints and parses") {
  const Uuid uuid = random_uuid();
  const auto back = parse_uuid(text(uuid));
  REQUIRE(back.ok());
  CHECK(*back == uuid);
  CHECK(text(Uuid{}) == "00000000-0000-0000-0000-000000000000");
  CHECK((uuid[6] >> 4) == 4);
  CHECK((uuid[8] >> 6) == 2);
  for (const auto* bad :
       {"", "0", "00000000-0000-0000-0000-00000000000", "g0000000-0000-0000-0000-000000000000",
        "000000000000-0000-0000-0000-00000000", "00000000-0000-0000-0000-0000000000000"})
    CHECK_MESSAGE(!parse_uuid(bad).ok(), bad);
}

TEST_CASE("records.uuid differs between parent and child of a fork") {
  std::set<std::string> seen;
  for (const auto& result : test::together(8, [](int) { return text(random_uuid()); })) {
    CHECK(result.size() == 36);
    seen.insert(result);
  }
  seen.insert(text(random_uuid()));
  CHECK(seen.size() == 9);
}

TEST_CASE("records.names are there for every stored number") {
  CHECK(trial_status_name(TrialStatus::ok) == "ok");
  CHECK(trial_status_name(TrialStatus::rejected) == "rejected");
  CHECK(trial_status_name(static_cast<TrialStatus>(99)) == "unknown");
  CHECK(trial_kind_name(TrialKind::control) == "control");
  CHECK(trial_kind_name(static_cast<TrialKind>(-1)) == "unknown");
  CHECK(quarantine_reason_name(QuarantineReason::launch_failed) == "launch_failed");
}
