// Admission: right plans pass in every role, planted faults are refused with their reason.
#include <doctest/doctest.h>

#include <functional>

#include "tests/tuner/real_device.hpp"
#include "tuner/trials.hpp"
#include "tuner/workload.hpp"

using namespace quarterturn;

namespace {

Problem layer(Role role, const Extent& tokens, const Recipe& recipe = {}) {
  return linear_problem({"layer", 144, 160, 1}, role, tokens, recipe);
}

// The best plan whose last step is of a family.
Plan by_family(Backend& backend, const Problem& problem, std::string_view family) {
  for (auto& plan : plans(problem, backend.device().target, 2000))
    if (plan.steps.back().variant.family == family) return plan;
  FAIL("no plan ends with " << std::string(family));
  return {};
}

Verdict admit_default(Backend& backend, const Problem& problem) {
  LocalTrials trials(backend, problem);
  return trials.admit(trials.add(
      by_family(backend, problem, problem.op == Op::quantize ? "cpu_quantize" : "cpu_gemm")));
}

}  // namespace

TEST_CASE("right plans are admitted in every role") {
  auto backend = real_device();
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad}) {
    Recipe recipe;
    recipe.accumulate = role == Role::wgrad ? Accumulate::accumulate : Accumulate::overwrite;
    const auto verdict = admit_default(*backend, layer(role, {0, 300}, recipe));
    CHECK_MESSAGE(verdict.status.ok(), name_of(role) << ": " << verdict.status.message());
    CHECK(verdict.certificate.outputs >= 4096);
    CHECK(verdict.certificate.max_error <= 1);
    CHECK(verdict.certificate.code_rows > 50);
    CHECK(verdict.certificate.repeatable == 1);
  }
}

TEST_CASE("right plans of groups are admitted, and timed") {
  auto backend = real_device();
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked}) {
    Problem p = layer(Role::fprop, {0, 300});
    p.grouping = grouping;
    p.groups = Extent::exactly(4);
    REQUIRE(validate(p).ok());
    LocalTrials trials(*backend, p);
    const auto candidate = trials.add(by_family(*backend, p, "cpu_gemm"));
    const auto verdict = trials.admit(candidate);
    CHECK_MESSAGE(verdict.status.ok(), name_of(grouping) << ": " << verdict.status.message());
    CHECK(verdict.certificate.outputs >= 4096);
    CHECK(verdict.certificate.max_error <= 1);
    CHECK(verdict.certificate.code_rows > 50);
    REQUIRE(trials.ready(candidate).ok());
    CHECK(trials.run(candidate, 0, 1).ok());
  }
}

TEST_CASE("right plans that contract each group's tokens are admitted, and timed") {
  auto backend = real_device();
  for (const auto rounding : {Rounding::rne, Rounding::sr16}) {
    Recipe recipe;
    recipe.accumulate = Accumulate::accumulate;
    Problem p = layer(Role::wgrad, {0, 900}, recipe);
    p.grouping = Grouping::k_grouped;
    p.groups = Extent::exactly(4);
    p.a_rounding = rounding;
    REQUIRE(validate(p).ok());
    LocalTrials trials(*backend, p);
    const auto candidate = trials.add(by_family(*backend, p, "cpu_gemm"));
    const auto verdict = trials.admit(candidate);
    CHECK_MESSAGE(verdict.status.ok(), name_of(rounding) << ": " << verdict.status.message());
    CHECK(verdict.certificate.outputs >= 4096);
    CHECK(verdict.certificate.all_outputs == 0);
    CHECK(verdict.certificate.max_error <= 1);
    CHECK(verdict.certificate.code_rows > 50);
    CHECK((verdict.certificate.bias_z > 0) == (rounding == Rounding::sr16));
    REQUIRE(trials.ready(candidate).ok());
    CHECK(trials.run(candidate, 0, 1).ok());
  }
}

TEST_CASE("a plan that takes the next expert's weights or tokens is refused") {
  const auto with_ends = [](const std::string& ends) {
    return "qt_args mine = *args; int ends[16]; for (int g = 0; g < args->groups; ++g) ends[g] = " +
           ends + "; mine.group_sizes = ends; REAL(&mine, part);";
  };
  const auto check = [&](Role role, Grouping grouping, const std::string& ends) {
    FaultyDevice device("qt::cpu::gemm", with_ends(ends));
    Problem p = layer(role, {0, 300});
    p.grouping = grouping;
    p.groups = Extent::exactly(4);
    LocalTrials trials(device, p);
    const auto verdict = trials.admit(trials.add(by_family(device, p, "cpu_gemm")));
    CHECK_MESSAGE(verdict.status.code() == Code::rejected, verdict.status.message());
    CHECK(verdict.status.message().find("the reference gives") != std::string::npos);
  };
  check(Role::fprop, Grouping::m_contiguous,
        "args->group_sizes[g] - (g + 1 < args->groups && args->group_sizes[g] > 0)");
  // Copies begin at multiples of 128: only that far off is it another group's.
  check(Role::wgrad, Grouping::k_grouped,
        "args->group_sizes[g < 1 || g + 1 == args->groups ? g : g - 1]");
}

namespace {

struct Fault {
  const char* name;
  const char* call;
  const char* instead;
  const char* reason;  // part of the message
};

Recipe accumulating() {
  Recipe recipe;
  recipe.out_type = DType::f32;
  recipe.accumulate = Accumulate::accumulate;
  return recipe;
}

void check_refused(const Fault& fault, const Problem& problem) {
  FaultyDevice device(fault.call, fault.instead);
  const auto verdict = admit_default(device, problem);
  CHECK_MESSAGE(verdict.status.code() == Code::rejected, std::string(fault.name)
                                                             << ": " << verdict.status.message());
  CHECK_MESSAGE(verdict.status.message().find(fault.reason) != std::string::npos,
                std::string(fault.name) << ": " << verdict.status.message());
}

}  // namespace

TEST_CASE("planted faults of products are refused, with the reason") {
  const char* gemm = "qt::cpu::gemm";
  const Fault faults[] = {
      {"ignores alpha past the first tile, and beta = 0.5 hides it", gemm,
       "qt_args mine = *args; if (part > 0) mine.alpha = 1; REAL(&mine, part);",
       "the reference gives"},
      {"ignores beta", gemm, "qt_args mine = *args; mine.beta = 1; REAL(&mine, part);",
       "the reference gives"},
      {"leaves the last part undone", gemm, "if (part == 0) REAL(args, part);",
       "the reference gives"},
      {"does the last column a little wrong", gemm,
       "REAL(args, part); if (part > 0) for (long long i = 0; i < args->m; ++i) "
       "static_cast<float*>(args->d.data)[i * args->d.ld + 143] *= 1.001f;",
       "the reference gives"},
      {"is wrong for one row of 197 in one column", gemm,
       "REAL(args, part); if (part > 0 && args->m == 197) static_cast<float*>(args->d.data)[190 * "
       "args->d.ld + 142] "
       "+= 1.0f;",
       "the reference gives"},
      {"writes behind D", gemm,
       "REAL(args, part); static_cast<float*>(args->d.data)[args->m * args->d.ld] = 0;",
       "behind D"},
      {"writes between D's rows", gemm,
       "REAL(args, part); if (args->d.ld > 144) static_cast<float*>(args->d.data)[144] = 0;",
       "beyond the last column"},
      {"writes to C", gemm, "REAL(args, part); *static_cast<float*>(args->c.data) += 1;",
       "changed its input C"},
      {"is different each time", gemm,
       "REAL(args, part); static int calls = 0; if (part == 0) *static_cast<float*>(args->d.data) "
       "*= 1 + 1e-7f * "
       "(++calls % 5);",
       "different bits"},
      {"turns NaN into numbers", gemm,
       "REAL(args, part); float* d = static_cast<float*>(args->d.data); for (long long i = 0; i < "
       "144; ++i) if (d[i] != "
       "d[i]) d[i] = 0;",
       "is 0, the reference gives nan"},
  };
  for (const auto& fault : faults)
    check_refused(fault, layer(Role::fprop, {1, 300}, accumulating()));
}

TEST_CASE("planted faults of quantisers are refused, with the reason") {
  const char* quantize = "qt::cpu::quantize";
  Recipe recipe;
  recipe.op = Op::quantize;
  const Fault faults[] = {
      {"one code is off", quantize,
       "REAL(args, part); static_cast<unsigned char*>(args->d.data)[40] ^= 1;",
       "code at row 0, k 80"},
      {"one scale is off", quantize,
       "REAL(args, part); static_cast<unsigned char*>(args->d.scales)[2] ^= 1;",
       "scale of row 0, block 2"},
  };
  for (const auto& fault : faults) check_refused(fault, layer(Role::none, {1, 300}, recipe));
  recipe.a_rounding = Rounding::sr16;
  check_refused({"ignores the seed", quantize,
                 "qt_args mine = *args; mine.noise_seed = 1; REAL(&mine, part);", "code at row"},
                layer(Role::none, {1, 300}, recipe));
}

TEST_CASE("a quantiser on a plan's way is checked code by code") {
  Recipe recipe;
  check_refused({"one code of A is off", "qt::cpu::quantize",
                 "REAL(args, part); if (part == 0 && args->operand == 0) static_cast<signed "
                 "char*>(args->d.data)[33] += 1;",
                 "quantised A: code at row 0, k 33"},
                layer(Role::fprop, {1, 300}, recipe));
}

TEST_CASE("stochastic rounding: right plans pass the test of bias") {
  auto backend = real_device();
  Recipe recipe;
  recipe.op = Op::quantize;
  recipe.a_rounding = Rounding::sr16;
  const auto verdict = admit_default(*backend, layer(Role::none, {1, 300}, recipe));
  CHECK_MESSAGE(verdict.status.ok(), verdict.status.message());
  CHECK(verdict.certificate.bias_z > 0);
}

TEST_CASE("every scale rule, sign source and transposed copy agrees with the reference") {
  auto backend = real_device();
  Recipe recipe;
  recipe.op = Op::quantize;
  recipe.rotation = 16;
  recipe.signs = Signs::per_call;
  recipe.scale_rule = ScaleRule::ts34;
  auto problem = layer(Role::none, {32, 300}, recipe);
  problem.copies = Copies::both;
  const auto verdict = admit_default(*backend, problem);
  CHECK_MESSAGE(verdict.status.ok(), verdict.status.message());
}

TEST_CASE("a plan that the reference's samples missed is disproved by the next one") {
  // The first plan errs where nobody looks: neither sampled row nor column.
  FaultyDevice device("qt::cpu::gemm",
                      "REAL(args, part); if (args->m == 197 && Config::tile_m != 1) "
                      "for (int i = 20; i < 180; ++i) static_cast<float*>(args->d.data)[i * "
                      "args->d.ld + 100] *= 2;");
  const auto problem =
      linear_problem({"layer", 4096, 160, 1}, Role::fprop, {1, 300}, accumulating());
  const Plan first = by_family(device, problem, "cpu_gemm");
  Plan other = first;
  other.steps.back().variant.values["tile_m"] = 1;
  REQUIRE(first != other);
  REQUIRE(check_plan(problem, device.device().target, other).ok());
  LocalTrials trials(device, problem);
  const auto wrong = trials.admit(trials.add(first));
  const auto right = trials.admit(trials.add(other));
  if (!wrong.status.ok()) return;  // a sample hit it: even better
  CHECK_MESSAGE(right.status.ok(), right.status.message());
  CHECK(trials.disproved() == first.text());
}

namespace {

// Problems whose plans have more than a product or a quantiser.
Problem beyond(Role role, Op op, const std::function<void(Recipe&)>& change) {
  Recipe recipe;
  recipe.op = op;
  change(recipe);
  return linear_problem({"layer", 160, 96, 1}, role, {0, 200}, recipe);
}

Verdict admit_first(Backend& backend, const Problem& problem) {
  LocalTrials trials(backend, problem);
  const auto found = plans(problem, backend.device().target, 1);
  REQUIRE_MESSAGE(!found.empty(), problem.key());
  return trials.admit(trials.add(found.front()));
}

}  // namespace

TEST_CASE("activations, quantised results, sums and prologues are admitted") {
  auto backend = real_device();
  auto both =
      beyond(Role::fprop, Op::gemm_quantize, [](Recipe& r) { r.epilogue = Epilogue::gelu; });
  both.copies = Copies::both;
  both.d_rounding = Rounding::sr16;
  auto columns =
      beyond(Role::none, Op::quantize, [](Recipe& r) { r.prologue = Prologue::swiglu_split; });
  columns.copies = Copies::both;
  columns.role = Role::fprop;
  for (const auto& problem :
       {beyond(Role::fprop, Op::hadamard_gemm,
               [](Recipe& r) {
                 r.epilogue = Epilogue::swiglu_split;
                 r.pre_activation = PreActivation::kept;
                 r.bias = Bias::per_column;
               }),
        beyond(Role::dgrad, Op::hadamard_gemm,
               [](Recipe& r) { r.epilogue = Epilogue::dswiglu_interleaved; }),
        beyond(Role::wgrad, Op::hadamard_gemm,
               [](Recipe& r) { r.bias_gradient = BiasGradient::f32; }),
        beyond(Role::none, Op::quantize, [](Recipe& r) { r.prologue = Prologue::rmsnorm; }), both,
        columns}) {
    REQUIRE_MESSAGE(validate(problem).ok(), validate(problem).message());
    const auto verdict = admit_first(*backend, problem);
    CHECK_MESSAGE(verdict.status.ok(), problem.key() << ": " << verdict.status.message());
    CHECK(verdict.certificate.outputs > 0);
  }
}

TEST_CASE("planted faults beside a product's result are refused, with the reason") {
  const auto refused = [](const char* call, const char* instead, const char* reason,
                          const Problem& problem) {
    FaultyDevice device(call, instead);
    const auto verdict = admit_first(device, problem);
    CHECK_MESSAGE(verdict.status.code() == Code::rejected, verdict.status.message());
    CHECK_MESSAGE(verdict.status.message().find(reason) != std::string::npos,
                  verdict.status.message());
  };
  const auto gated = beyond(Role::fprop, Op::hadamard_gemm, [](Recipe& r) {
    r.epilogue = Epilogue::swiglu_split;
    r.pre_activation = PreActivation::kept;
    r.out_type = DType::f32;
  });
  refused("qt::cpu::gemm",
          "REAL(args, part); if (part == 0) static_cast<float*>(args->z.data)[3] += 0.5f;",
          "z[0, 3]", gated);
  refused("qt::cpu::gemm",
          "REAL(args, part); if (part == 0) static_cast<float*>(args->d.data)[2] *= 1.01f;",
          "D[0, 2]", gated);
  refused("qt::cpu::column_sums",
          "REAL(args, part); if (part == 0) static_cast<float*>(args->d.data)[1] += 1;",
          "the sum of column 1", beyond(Role::wgrad, Op::hadamard_gemm, [](Recipe& r) {
            r.bias_gradient = BiasGradient::f32;
          }));
}

TEST_CASE("of large results rows are sampled first, and all is read of what may win") {
  auto backend = real_device();
  // More than 8 million outputs of few operations.
  const auto problem =
      linear_problem({"large", 2112, 32, 1}, Role::fprop, Extent::exactly(4096), {});
  LocalTrials trials(*backend, problem);
  const auto first = trials.add(by_family(*backend, problem, "cpu_gemm"));
  const auto whole = trials.admit(first, Depth::whole);
  REQUIRE_MESSAGE(whole.status.ok(), whole.status.message());
  CHECK(whole.certificate.whole);
  CHECK(whole.certificate.repeatable == 1);
  const auto second = trials.add(by_family(*backend, problem, "cpu_hadamard_gemm"));
  const auto sampled = trials.admit(second, Depth::sampled);
  REQUIRE_MESSAGE(sampled.status.ok(), sampled.status.message());
  CHECK(!sampled.certificate.whole);
  CHECK(sampled.certificate.repeatable == -1);
  CHECK(sampled.certificate.outputs >= 4096);
  CHECK(sampled.certificate.all_outputs == 0);
  const auto all = trials.admit(second, Depth::whole);
  REQUIRE_MESSAGE(all.status.ok(), all.status.message());
  CHECK(all.certificate.whole);
  CHECK(all.certificate.all_outputs == 4096 * 2112);
  // The same inputs serve the timing.
  const double before = trials.data_seconds();
  CHECK(trials.ready(first).ok());
  CHECK(trials.run(first, 0, 1).ok());
  CHECK(trials.data_seconds() >= before);
}

TEST_CASE("a fault at the edge of a tile of large results is seen by sampling") {
  FaultyDevice faulty("qt::cpu::gemm",
                      "REAL(args, part); if (part == 0) "
                      "static_cast<unsigned short*>(args->d.data)[16] ^= 0x4000;");
  const auto problem =
      linear_problem({"large", 2112, 32, 1}, Role::fprop, Extent::exactly(4096), {});
  LocalTrials trials(faulty, problem);
  const auto verdict =
      trials.admit(trials.add(by_family(faulty, problem, "cpu_gemm")), Depth::sampled);
  CHECK(verdict.status.code() == Code::rejected);
}
