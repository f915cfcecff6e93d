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
  // So does a flag, and a target of another feature, however equal the text is.
  changed = one;
  changed.flags.push_back("-ffast");
  CHECK(*source_digest(changed, target) != *source_digest(one, target));
  CHECK(*source_digest(one, *parse_target("x86-64-v4:avx512_vnni")) != *source_digest(one, target));
  CHECK(*source_digest(one, *parse_target("sm_90a")) !=
        *source_digest(one, *parse_target("sm_90")));
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

TEST_CASE("a pool compiles a kernel that many plans share once, and drops what nobody wants") {
  auto real = real_device();
  const auto problem = layer({1, 24});
  std::vector<Plan> wanted;
  for (auto& plan : plans(problem, real->device().target, 20000))
    if (plan.find(StepKind::gemm) && wanted.size() < 3 &&
        (wanted.empty() ||
         plan.find(StepKind::quantize_a)->variant == wanted[0].find(StepKind::quantize_a)->variant))
      wanted.push_back(plan);
  REQUIRE(wanted.size() == 3);
  CompilePool pool(*real, 1);
  std::vector<CompilePool::Job> jobs;
  for (const auto& plan : wanted)
    jobs.push_back(pool.submit(problem, plan, CompilePool::Urgency::later));
  // Twice the same is the same kernels.
  jobs.push_back(pool.submit(problem, wanted[0], CompilePool::Urgency::now));
  pool.drop(jobs[2]);
  pool.wait({jobs[0], jobs[1], jobs[3]}, 3, {});
  CHECK(pool.is_done(jobs[0]));
  CHECK(pool.is_done(jobs[1]));
  CHECK(pool.is_done(jobs[3]));
  CHECK(!pool.is_done(jobs[2]));
  CHECK(pool.result(jobs[2]).status.code() == Code::interrupted);
  std::int64_t kernels = 0;
  for (const auto i : {0, 1, 3}) {
    const auto compiled = pool.result(jobs[static_cast<std::size_t>(i)]);
    CHECK_MESSAGE(compiled.status.ok(), compiled.status.message());
    kernels += compiled.kernels;
  }
  CHECK(kernels <= 3);  // a quantiser and two products; fewer where the store knew them
}

TEST_CASE("waiting ends when it is told to") {
  auto real = real_device();
  CompilePool pool(*real, 1);
  const auto problem = layer({1, 8});
  const auto plan = default_plan(problem, real->device().target);
  REQUIRE(plan.ok());
  const auto job = pool.submit(problem, *plan, CompilePool::Urgency::now);
  pool.wait({job}, 1, [] { return true; });  // whatever became of it by then
  pool.wait({job}, 1, {});
  CHECK(pool.is_done(job));
}
