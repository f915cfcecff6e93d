// Families that have not run on a device are proved before they serve: by a program in a child
// process, here scripts that say, crash or hang as a test wants.
#include "runtime/proofs.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/runtime/made_up_device.hpp"

using namespace quarterturn;
using test::MadeUp;
using test::Setup;

namespace {

constexpr const char* kOpened = R"(echo '{"opened":true,"code":0}')";
constexpr const char* kRight =
    R"(echo '{"code":0,"outputs":4096,"max_error":0.25,"repeatable":1}')";
constexpr const char* kWrong = R"(echo '{"code":302,"message":"D[3, 4] is 5"}')";

/// A made-up GPU that this project has not run on, and a program that proves for it.
struct Unproven : Setup {
  /// `lines` of sh, after the line that counts its starts. $2 is the request.
  void prover(const std::string& lines) {
    const auto path = folder.file("prover");
    std::ofstream(path) << "#!/bin/sh\necho \"$2\" >>" << folder.file("asked") << "\n"
                        << lines << "\n";
    std::filesystem::permissions(path, std::filesystem::perms(0755));
    variables["QTURN_PROVER"] = path;
  }
  std::shared_ptr<Context> open(const std::string& compiler = "made-up 1.0") {
    return make([&](MadeUp& made) {
      made.info.target = *parse_target("sm_120f");
      made.info.performance_class = "nvidia model=sm_120f units=170";
      made.info.compiler = compiler;
      made.has_prebuilt = false;
    });
  }
  std::vector<std::string> asked() const {
    std::ifstream in(folder.file("asked"));
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
};

Problem unproven_problem() {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::fprop;
  p.m = {1, 16};
  p.n = Extent::exactly(256);
  p.k = Extent::exactly(256);
  p.a_type = p.b_type = DType::bf16;
  p.d_type = DType::bf16;
  p.rotation = 32;
  return p;
}

std::string product_of(const PreparedPlan& plan) {
  return plan.executable().plan().main_step().variant.family;
}

std::string product_of(Context& context) {
  const auto plan = context.prepare(unproven_problem());
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  return product_of(**plan);
}

// Lines that answer with kRight but where the request's first task is a plan around a family.
std::string right_but(const std::string& family, const std::string& lines) {
  // The quantisers are a task before the product's, once.
  return std::string(kOpened) + "\ncase \"$2\" in *'whole=cuda_quantize'*) " + kRight +
         ";; esac\ncase \"$2\" in *'gemm=" + family + "'*) " + lines + ";; *) " + kRight +
         ";; esac";
}

}  // namespace

TEST_CASE("proofs.a family is proved once for a device, a compiler and a revision") {
  Unproven setup;
  setup.prover(std::string(kOpened) + "\n" + kRight + "\n" + kRight);
  {
    const auto context = setup.open();
    const auto before = context->explain(unproven_problem());
    CHECK(before.find(R"("state":"unproven")") != std::string::npos);
    CHECK(context->choose(unproven_problem()).ok());
    CHECK(setup.asked().empty());
    CHECK(product_of(*context) == "cuda_gemm_sm120");
    REQUIRE(setup.asked().size() == 1);
    const auto request = setup.asked().front();
    CHECK(request.find("whole=cuda_quantize/") != std::string::npos);
    CHECK(request.find("gemm=cuda_gemm_sm120/") != std::string::npos);
    CHECK(request.find(R"("backend":"cuda")") != std::string::npos);
    CHECK(request.find(setup.folder.file("code")) != std::string::npos);
    CHECK(context->explain(unproven_problem()).find(R"("state":"proven here")") !=
          std::string::npos);
    CHECK(product_of(*context) == "cuda_gemm_sm120");
    // Other problems of the same families need no proof of their own.
    auto other = unproven_problem();
    other.k = Extent::exactly(512);
    CHECK(context->prepare(other).ok());
    CHECK(setup.asked().size() == 1);
  }
  CHECK(product_of(*setup.open()) == "cuda_gemm_sm120");
  CHECK(setup.asked().size() == 1);
  CHECK(product_of(*setup.open("made-up 2.0")) == "cuda_gemm_sm120");
  CHECK(setup.asked().size() == 2);
  CHECK(setup.said("quarantine") == 0);
}

TEST_CASE("proofs.one that is wrong, crashes or hangs is put in quarantine, and the next serves") {
  const std::pair<std::string, std::string> ends[] = {
      {kWrong, "wrong"},
      {"kill -SEGV $$", "crashed"},
      {"exec sleep 60", "hung"},
      {R"(echo '{"code":207,"lost":true,"message":"an illegal address"}')", "crashed"}};
  for (const auto& [lines, reason] : ends) {
    INFO(reason, ": ", lines);
    Unproven setup;
    setup.variables["QTURN_PROOF_SECONDS"] = "1";
    setup.prover(right_but("cuda_gemm_sm120", lines));
    const auto context = setup.open();
    CHECK(product_of(*context) == "cuda_gemm_mma");
    CHECK(setup.said("cuda_gemm_sm120/1 failed its proof on this device") == 1);
    const auto held = context->database().quarantine();
    REQUIRE(held->size() == 1);
    CHECK(held->front().subject == "cuda_gemm_sm120/1");
    CHECK(quarantine_reason_name(held->front().reason) == reason);
    const auto explained = context->explain(unproven_problem());
    CHECK(explained.find(R"("held_back":{"plan":")") != std::string::npos);
    CHECK(explained.find(R"("state":"failed")") != std::string::npos);
    // Neither this context nor another tries it again, until the entry is lifted.
    const auto asked = setup.asked().size();
    CHECK(product_of(*context) == "cuda_gemm_mma");
    const auto second = setup.open();
    CHECK(product_of(*second) == "cuda_gemm_mma");
    CHECK(setup.asked().size() == asked);
    REQUIRE(second->database().remove_quarantine(held->front()).ok());
    setup.prover(std::string(kOpened) + "\n" + kRight + "\n" + kRight);
    REQUIRE(second->reload(Reload::replace).ok());
    CHECK(product_of(*second) == "cuda_gemm_sm120");
  }
}

TEST_CASE("proofs.what says nothing of a family puts nothing in quarantine, and refuses it") {
  const std::pair<std::string, std::string> ends[] = {
      {R"(echo '{"opened":true,"code":203,"message":"no memory for a context"}')", "no memory"},
      {"exit 3", "before it had opened the device"},
      {std::string(kOpened) + R"(; echo '{"code":203,"message":"no memory for B"}')", "for B"}};
  for (const auto& [lines, reason] : ends) {
    INFO(reason);
    Unproven setup;
    setup.prover(lines);
    const auto context = setup.open();
    const auto plan = context->prepare(unproven_problem());
    REQUIRE(!plan.ok());
    CHECK(plan.status().code() == Code::unproven);
    CHECK_MESSAGE(plan.status().message().find(reason) != std::string::npos,
                  plan.status().message());
    CHECK(context->database().quarantine()->empty());
    // Not again before a reload.
    const auto asked = setup.asked().size();
    CHECK(!context->prepare(unproven_problem()).ok());
    CHECK(setup.asked().size() == asked);
    setup.prover(std::string(kOpened) + "\n" + kRight + "\n" + kRight);
    REQUIRE(context->reload(Reload::replace).ok());
    CHECK(product_of(*context) == "cuda_gemm_sm120");
  }
}

TEST_CASE("proofs.without a child, families that are on record serve, and others are refused") {
  Unproven setup;
  const std::map<std::string, std::map<std::string, std::string>> lacks = {
      {"QTURN_PROVER", {{"QTURN_PROVER", "/nonexistent/quarterturn-trial"}}},
      {"QTURN_UNPROVEN is refuse", {{"QTURN_UNPROVEN", "refuse"}}},
      {"no_jit", {{"QTURN_NO_JIT", "1"}}}};
  for (const auto& [words, variables] : lacks) {
    INFO(words);
    setup.variables = variables;
    const auto context = setup.open();
    CHECK(context->supports(unproven_problem()).code() == Code::unproven);
    const auto plan = context->prepare(unproven_problem());
    CHECK(plan.status().code() == Code::unproven);
    CHECK_MESSAGE(plan.status().message().find(words) != std::string::npos,
                  plan.status().message());
    CHECK(plan.status().message().find("QTURN_UNPROVEN=serve") != std::string::npos);
  }
  // What a tuner, or another process, admitted on such a device.
  setup.variables = {};
  const auto context = setup.open();
  Trial trial;
  trial.problem = unproven_problem().key();
  for (const auto& plan : plans(unproven_problem(), context->backend().device().target, 2000))
    if (plan.main_step().variant.family == "cuda_gemm_mma") trial.plan = plan.text();
  trial.env = std::make_shared<Env>(context->env());
  trial.kind = TrialKind::admission;
  REQUIRE(context->database().add_trial(trial).ok());
  setup.variables = lacks.at("no_jit");
  CHECK(product_of(*setup.open()) == "cuda_gemm_mma");
  // A snapshot's word counts as much.
  REQUIRE(context->database().export_snapshot(setup.folder.file("snapshot")).ok());
  Unproven elsewhere;
  elsewhere.variables = lacks.at("no_jit");
  CHECK(!elsewhere.open()->prepare(unproven_problem()).ok());
  elsewhere.variables["QTURN_SNAPSHOTS"] = setup.folder.file("snapshot");
  CHECK(product_of(*elsewhere.open()) == "cuda_gemm_mma");
  setup.variables = {{"QTURN_UNPROVEN", "serve"}};
  CHECK(product_of(*setup.open()) == "cuda_gemm_sm120");
  CHECK(setup.asked().empty());
}
