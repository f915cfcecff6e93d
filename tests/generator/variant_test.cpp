// Variants and plans are their text: what a database holds is what runs.
#include "generator/variant.hpp"

#include <doctest/doctest.h>

using namespace quarterturn;

TEST_CASE("variant.text round-trips in canonical order") {
  const Variant v{"cpu_gemm", 2, {{"tile_n", 32}, {"isa", 512}}};
  CHECK(v.text() == "cpu_gemm/2{isa=512,tile_n=32}");
  CHECK(*parse_variant("cpu_gemm/2{tile_n=32,isa=512}") == v);
  CHECK(parse_variant("f/1{}")->values.empty());
  CHECK(v.value("isa") == 512);
  CHECK(v.value("missing", -1) == -1);
}

TEST_CASE("variant.parse refuses malformed text") {
  for (const auto* text :
       {"", "f", "f/1", "f/x{}", "/1{}", "f/1{a}", "f/1{a=}", "f/1{=1}", "f/1{a=1", "f{}/1"})
    CHECK_FALSE(parse_variant(text).ok());
}

TEST_CASE("plan.text round-trips with its steps in order") {
  const Plan plan{
      {{StepKind::quantize_a, {"q", 1, {{"rows", 4}}}}, {StepKind::gemm, {"g", 3, {}}}}};
  CHECK(plan.text() == "quantize_a=q/1{rows=4};gemm=g/3{}");
  CHECK(*parse_plan(plan.text()) == plan);
  CHECK(plan.find(StepKind::gemm)->variant.family == "g");
  CHECK(plan.find(StepKind::pack_b) == nullptr);
  for (const auto* text : {"", "gemm", "nonsense=g/1{}", "gemm=g"})
    CHECK_FALSE(parse_plan(text).ok());
}
