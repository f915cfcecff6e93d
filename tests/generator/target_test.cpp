// Targets name what code is legal: architecture and explicit features.
#include "generator/target.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

TEST_CASE("target.key round-trips, with features sorted and once each") {
  const auto target = parse_target("x86-64-v4:avx512_vnni,amx_int8,avx512_vnni");
  REQUIRE(target.ok());
  CHECK(target->key() == "x86-64-v4:amx_int8,avx512_vnni");
  CHECK(target->has("amx_int8"));
  CHECK_FALSE(target->has("amx"));
  CHECK(parse_target(target->key())->key() == target->key());
}

TEST_CASE("target.parse knows vendors and their limits") {
  CHECK(parse_target("sm_90a")->vendor == Vendor::nvidia);
  CHECK(parse_target("sm_90a")->shared_bytes == 227 * 1024);
  CHECK(parse_target("sm_86")->shared_bytes == 99 * 1024);
  CHECK(parse_target("gfx950")->vendor == Vendor::amd);
  CHECK(parse_target("gfx950:sramecc+,xnack-")->key() == "gfx950:sramecc+,xnack-");
  CHECK(parse_target("aarch64")->vendor == Vendor::cpu);
}

TEST_CASE("target.parse refuses what names no architecture") {
  for (const auto* text : {"", "native", "sm_", "sm_1", "pentium"})
    CHECK(parse_target(text).status().code() == Code::unknown_name);
}
