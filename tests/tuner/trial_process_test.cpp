// Candidates that crash, hang or lie cost themselves only, and the process that tries them is
// replaced.
#include <doctest/doctest.h>
#include <signal.h>

#include "tests/tuner/real_device.hpp"
#include "tuner/trial_process.hpp"
#include "tuner/workload.hpp"

using namespace quarterturn;

namespace {

Problem problem() {
  Recipe recipe;
  recipe.out_type = DType::f32;
  return linear_problem({"layer", 144, 160, 1}, Role::fprop, {1, 40}, recipe);
}

// Plans that differ in their GEMM's rows of a tile, so that a compiler can single them out.
Plan with_tile(Backend& backend, std::int64_t tile_m) {
  for (auto& plan : plans(problem(), backend.device().target, 20000)) {
    const Step* gemm = plan.find(StepKind::gemm);
    if (gemm && gemm->variant.family == "cpu_gemm" && gemm->variant.value("tile_m") == tile_m &&
        plan.steps.size() == 2)
      return plan;
  }
  FAIL("no plan has tile_m = " << tile_m);
  return {};
}

// Inside qturn_kernel, before its text is called, where the variant has this many rows in a tile.
std::string plant(std::int64_t tile_m, const std::string& what) {
  return "s|^  qt::cpu::gemm(Config{}, args, part);|  if (Config::tile_m == " +
         std::to_string(tile_m) + ") { " + what + " } qt::cpu::gemm(Config{}, args, part);|";
}

TrialProcessOptions options_with(const TemporaryFolder& folder, const std::string& compiler) {
  TrialProcessOptions options;
  options.program = QTURN_TRIAL;
  options.settings = {{"backend", "cpu"},
                      {"threads", "2"},
                      {"code_cache", (folder / "code").string()},
                      {"cxx", compiler},
                      {"worker", QTURN_WORKER}};
  return options;
}

}  // namespace

TEST_CASE("a crash costs one candidate, and the others are admitted and timed") {
  auto backend = real_device();
  const TemporaryFolder folder;
  auto options = options_with(
      folder, compiler_with(folder, "planting-cxx", plant(2, "*(volatile int*)0 = 1;")));
  TrialProcess process(problem(), options);
  const auto good = process.add(with_tile(*backend, 1));
  const auto crashing = process.add(with_tile(*backend, 2));

  const auto first = process.admit(good);
  CHECK_MESSAGE(first.status.ok(), first.status.message());
  CHECK(first.certificate.outputs > 0);

  const auto crashed = process.admit(crashing);
  CHECK(!crashed.status.ok());
  CHECK(process.loss(crashing) == Loss::crashed);
  CHECK(crashed.status.message().find("signal 11") != std::string::npos);

  const auto again = process.admit(good);
  CHECK_MESSAGE(again.status.ok(), again.status.message());
  REQUIRE(process.ready(good).ok());
  const auto seconds = process.run(good, 0, 3);
  REQUIRE(seconds.ok());
  CHECK(*seconds > 0);
  CHECK(!process.rotation().empty());
}

TEST_CASE("a hang ends at the time limit") {
  auto backend = real_device();
  const TemporaryFolder folder;
  auto options = options_with(
      folder, compiler_with(folder, "planting-cxx", plant(4, "for (;;) asm volatile(\"\");")));
  options.admission_limit =
      std::chrono::seconds(30);  // the compiler and the inputs need some of it
  TrialProcess process(problem(), options);
  const auto hanging = process.add(with_tile(*backend, 4));
  const double before = SteadyClock().now();
  const auto verdict = process.admit(hanging);
  CHECK(!verdict.status.ok());
  CHECK(process.loss(hanging) == Loss::hung);
  CHECK(SteadyClock().now() - before < 45);
}

TEST_CASE("an interruption ends the wait at once") {
  auto backend = real_device();
  const TemporaryFolder folder;
  auto options = options_with(
      folder, compiler_with(folder, "planting-cxx", plant(4, "for (;;) asm volatile(\"\");")));
  const double begun = SteadyClock().now();
  options.interrupted = [&] { return SteadyClock().now() > begun + 1; };
  TrialProcess process(problem(), options);
  const auto verdict = process.admit(process.add(with_tile(*backend, 4)));
  CHECK(verdict.status.code() == Code::interrupted);
  CHECK(SteadyClock().now() - begun < 5);
}

TEST_CASE("a trial program that is missing or is another program is an error with a reason") {
  TrialProcessOptions options;
  options.program = "/nowhere/quarterturn-trial";
  TrialProcess missing(problem(), options);
  const auto verdict = missing.admit(missing.add(Plan{}));
  CHECK(verdict.status.code() == Code::io_error);
  CHECK(verdict.status.message().find("/nowhere/quarterturn-trial") != std::string::npos);
  options.program = "/bin/true";
  TrialProcess other(problem(), options);
  const auto index = other.add(Plan{});
  CHECK(!other.admit(index).status.ok());
  CHECK(other.loss(index) == Loss::crashed);
  // Whoever ends a job tells all its processes: that is no candidate's crash.
  const TemporaryFolder folder;
  options.program = (folder / "ended").string();
  std::ofstream(options.program) << "#!/bin/sh\nkill -TERM $$\n";
  chmod(options.program.c_str(), 0755);
  TrialProcess ended(problem(), options);
  const auto last = ended.add(Plan{});
  CHECK(ended.admit(last).status.code() == Code::interrupted);
  CHECK(ended.loss(last) == Loss::none);
}

TEST_CASE("one process serves a second problem, and what was said of the first is forgotten") {
  auto backend = real_device();
  const TemporaryFolder folder;
  auto options = options_with(folder, "g++");
  options.settings["code_cache"] = QTURN_CODE_FOLDER;
  TrialProcess process(problem(), options);
  REQUIRE(process.admit(process.add(with_tile(*backend, 1))).status.ok());
  CHECK(process.take_data_seconds() > 0);
  Recipe recipe;
  recipe.out_type = DType::f32;
  const auto other = linear_problem({"other", 96, 160, 1}, Role::fprop, {1, 8}, recipe);
  process.change(other);
  CHECK(process.take_data_seconds() == 0);
  const auto plan = default_plan(other, backend->device().target);
  REQUIRE(plan.ok());
  const auto index = process.add(*plan);
  CHECK(index == 0);
  const auto verdict = process.admit(index);
  CHECK_MESSAGE(verdict.status.ok(), verdict.status.message());
  REQUIRE(process.ready(index).ok());
  CHECK(process.run(index, 0, 1).ok());
}
