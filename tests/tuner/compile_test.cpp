// Compiling candidates: code is shared where it is the same, failures are one plan's.
#include <doctest/doctest.h>

#include "tests/tuner/real_device.hpp"
#include "tuner/compile.hpp"
#include "tuner/workload.hpp"

using namespace quarterturn;

namespace {

Problem layer(const Extent& tokens) {
  return linear_problem({"layer", 144, 160, 1}, Role::fprop, tokens, {});
}

Source last_source(const Problem& problem, const Target& target, const Plan& plan) {
  const Step& last = plan.steps.back();
  return find_family(last.variant.family)
      ->emit(step_problem(problem, target, plan, last.kind), target, last.variant);
}

}  // namespace

TEST_CASE("ranges of tokens that need the same code share it") {
  const auto target = *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni");
  // What is fastest may differ, so one plan is taken for both.
  const auto plan = default_plan(layer({100, 200}), target);
  REQUIRE(plan.ok());
  const auto one = last_source(layer({100, 200}), target, *plan),
             two = last_source(layer({150, 512}), target, *plan);
  CHECK(one.text != two.text);
  CHECK(*source_digest(one, target) == *source_digest(two, target));
  // Anything but a comment makes other code.
  Source changed = one;
  changed.text += "int more;\n";
  CHECK(*source_digest(changed, target) != *source_digest(one, target));
  changed = one;
  changed.text += "  // another remark\n\n";
  CHECK(*source_digest(changed, target) == *source_digest(one, target));
  changed.text = one.text + "const char* a = \"x // 1\";\n";
  Source other = one;
  other.text = one.text + "const char* a = \"x // 2\";\n";
  CHECK(*source_digest(changed, target) != *source_digest(other, target));
}

TEST_CASE(
    "plans are compiled once, failures are reported by plan, and an interruption stops the rest") {
  auto real = real_device();
  const auto problem = layer({1, 40});
  std::vector<Plan> wanted;
  for (auto& plan : plans(problem, real->device().target, 20000))
    if (plan.steps.back().variant.family == "cpu_gemm" && wanted.size() < 2) wanted.push_back(plan);
  REQUIRE(wanted.size() == 2);
  auto good = compile_plans(*real, problem, wanted, 2, {});
  REQUIRE(good.size() == 2);
  for (const auto& compiled : good) CHECK_MESSAGE(compiled.status.ok(), compiled.status.message());
  good = compile_plans(*real, problem, wanted, 2, {});
  CHECK(good[0].kernels + good[1].kernels == 0);
  FaultyDevice faulty("qt::cpu::gemm", "this does not compile;");
  const auto bad = compile_plans(faulty, problem, {wanted[0]}, 2, {});
  CHECK(bad[0].status.code() == Code::compile_failed);
  CHECK(bad[0].status.message().find("does not compile") != std::string::npos);
  const auto none = compile_plans(*real, problem, wanted, 2, [] { return true; });
  CHECK(none[1].status.code() == Code::interrupted);
}
