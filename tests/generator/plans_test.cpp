// Plans for real problems: which steps, in which layouts, and what they need.
#include <doctest/doctest.h>

#include "generator/family.hpp"

using namespace quarterturn;

namespace {

Target v4() { return *parse_target("x86-64-v4:avx512_vbmi,avx512_vnni"); }

Problem linear(Role role) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = role;
  p.rotation = 32;
  p.a_type = p.b_type = DType::bf16;
  p.d_type = DType::f32;
  p.m = {1, 64};
  p.n = Extent::exactly(96);
  p.k = Extent::exactly(128);
  if (role == Role::dgrad) p.b_major = Major::rows;
  if (role == Role::wgrad) {
    p.a_major = p.b_major = Major::rows;
    p.m = Extent::exactly(64);
    p.k = {0, 8191};
  }
  return p;
}

}  // namespace

TEST_CASE("plans exist for every role and check out against their own problem") {
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad}) {
    const auto p = linear(role);
    REQUIRE(validate(p).ok());
    const auto found = plans(p, v4(), 100);
    REQUIRE(!found.empty());
    CHECK(found.front() == *default_plan(p, v4()));
    for (const auto& plan : found) {
      const auto status = check_plan(p, v4(), plan);
      CHECK_MESSAGE(status.ok(), plan.text() << ": " << status.message());
      CHECK(*parse_plan(plan.text()) == plan);
    }
  }
}

TEST_CASE("plans for NVIDIA GPUs check out against their own problem, for few and many tokens") {
  const auto sm90 = *parse_target("sm_90a"), sm80 = *parse_target("sm_80");
  for (const auto& target : {sm90, sm80})
    for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad})
      for (const std::int64_t tokens : {1, 16, 64, 8192})
        for (const DType b : {DType::bf16, DType::mxfp4})
          for (const Contract contract : {Contract::exact, Contract::fast})
            for (const Spread spread : {Spread::any, Spread::narrow}) {
              if (role != Role::fprop && b == DType::mxfp4) continue;
              auto p = linear(role);
              p.contract = contract;
              p.spread = spread;
              p.b_type = b;
              p.n = Extent::exactly(4096);
              (role == Role::wgrad ? p.m : p.k) = Extent::exactly(2048);
              (role == Role::wgrad ? p.k : p.m) = {1, tokens};
              REQUIRE(validate(p).ok());
              const auto found = plans(p, target, 300);
              REQUIRE(!found.empty());
              for (const auto& plan : found) {
                const auto status = check_plan(p, target, plan);
                REQUIRE_MESSAGE(status.ok(),
                                p.key() << ": " << plan.text() << ": " << status.message());
              }
            }
}

TEST_CASE("no plan asks for more shared memory than its chip gives a block") {
  for (const auto* arch : {"sm_80", "sm_86", "sm_89", "sm_90a", "sm_120f"}) {
    const auto target = *parse_target(arch);
    for (const auto role : {Role::fprop, Role::wgrad})
      for (const Contract contract : {Contract::exact, Contract::fast})
        for (const std::int64_t width : {2048, 28672}) {
          auto p = linear(role);
          p.contract = contract;
          p.spread = Spread::narrow;
          p.rotation = 256;
          p.n = Extent::exactly(4096);
          (role == Role::wgrad ? p.m : p.k) = Extent::exactly(width);
          (role == Role::wgrad ? p.k : p.m) = {0, 8192};
          for (const auto& plan : plans(p, target, 200))
            for (const auto& step : plan.steps) {
              const auto part = step_problem(p, target, plan, step.kind);
              qt_args args{};
              args.m = part.m.hi;
              args.n = part.n.hi;
              args.k = part.k.hi;
              args.batch = args.groups = 1;
              const auto launch =
                  find_family(step.variant.family)->launch(part, step.variant, args, 132);
              REQUIRE_MESSAGE(launch.shared_bytes <= target.shared_bytes,
                              arch << ": " << step.variant.text() << " on " << part.key());
            }
        }
  }
  // Where no row fits, the family says what it can do.
  Problem long_rows;
  long_rows.op = Op::quantize;
  long_rows.m = {0, 64};
  long_rows.k = Extent::exactly(1 << 20);
  long_rows.a_type = DType::bf16;
  long_rows.d_type = DType::mxfp4;
  long_rows.d_layout = Layout::e5m2;
  const auto refused = default_plan(long_rows, *parse_target("sm_120f"));
  REQUIRE(!refused.ok());
  CHECK(refused.status().message().find("expands rows of at most") != std::string::npos);
}

TEST_CASE("activations behind groups are refused, not ignored") {
  auto p = linear(Role::fprop);
  p.grouping = Grouping::m_contiguous;
  p.groups = {1, 8};
  p.b_type = DType::mxfp4;
  p.n = Extent::exactly(128);
  for (const auto& target : {v4(), *parse_target("sm_90a")}) {
    p.epilogue = Epilogue::gelu;
    CHECK(!default_plan(p, target).ok());
  }
  p.epilogue = Epilogue::none;
  CHECK(default_plan(p, v4()).ok());
  p.op = Op::gemm_quantize;
  p.a_type = p.d_type = DType::mxfp4;
  CHECK(!validate(p).ok());
}

TEST_CASE("a step's problem is an ordinary problem of its own") {
  const auto p = linear(Role::wgrad);
  const auto plan = default_plan(p, v4());
  REQUIRE(plan.ok());
  for (const auto& step : plan->steps) {
    const auto part = step_problem(p, v4(), *plan, step.kind);
    CHECK_MESSAGE(validate(part).ok(), part.key() << ": " << validate(part).message());
    CHECK(find_family(step.variant.family)->refuses(part, v4()).empty());
  }
  const auto a = step_problem(p, v4(), *plan, StepKind::quantize_a);
  CHECK(a.copies == Copies::columns);
  CHECK(a.m == p.k);
  CHECK(a.k == p.m);
}

TEST_CASE("launch.grids fit devices of any number of units") {
  // From a slice of one unit to a whole device; a grid of none would be an error of the driver.
  const auto sm90 = *parse_target("sm_90a");
  std::size_t persistent = 0;
  for (const auto role : {Role::fprop, Role::dgrad, Role::wgrad}) {
    auto p = linear(role);
    p.spread = Spread::narrow;
    (role == Role::wgrad ? p.k : p.m) = {1, 8192};
    for (const auto& plan : plans(p, sm90, 300))
      for (const auto& step : plan.steps) {
        const auto part = step_problem(p, sm90, plan, step.kind);
        qt_args args{};
        args.m = part.m.hi, args.n = part.n.hi, args.k = part.k.hi, args.batch = 1;
        const Family& family = *find_family(step.variant.family);
        const auto most = family.launch(part, step.variant, args, 1 << 20).grid[0];
        for (const std::int64_t units : {1, 36, 46, 132}) {
          const auto launch = family.launch(part, step.variant, args, units);
          CHECK_MESSAGE((launch.grid[0] >= 1 && launch.grid[1] >= 1 && launch.grid[2] >= 1),
                        step.variant.text() << " on " << units);
          CHECK(launch.grid[0] % launch.cluster[0] == 0);
          CHECK(launch.grid[0] <= most);
          persistent += launch.grid[0] < most;
        }
      }
  }
  CHECK(persistent > 100);
}

TEST_CASE("no plan mixes vendors") {
  for (const auto& plan : plans(linear(Role::fprop), v4(), 50))
    for (const auto& step : plan.steps)
      CHECK(find_family(step.variant.family)->vendor() == Vendor::cpu);
}

TEST_CASE("a foreign or altered plan is refused with a reason") {
  const auto p = linear(Role::fprop);
  const auto plan = default_plan(p, v4());
  REQUIRE(plan.ok());
  Plan wrong = *plan;
  wrong.steps.back().variant.revision += 1;
  CHECK_FALSE(check_plan(p, v4(), wrong).ok());
  wrong = *plan;
  wrong.steps.back().variant.family = "cpu_nothing";
  CHECK(check_plan(p, v4(), wrong).code() == Code::unknown_name);
  wrong = *plan;
  wrong.steps.back().variant.values.begin()->second = 12345;
  CHECK_FALSE(check_plan(p, v4(), wrong).ok());
}

TEST_CASE("workspace holds the intermediate operands side by side and grows with the sizes") {
  const auto p = linear(Role::wgrad);
  const auto plan = default_plan(p, v4());
  REQUIRE(plan.ok());
  const auto small = workspace_of(p, v4(), *plan, {64, 96, 31, 1});
  const auto large = workspace_of(p, v4(), *plan, {64, 96, 8191, 1});
  CHECK(small.bytes < large.bytes);
  CHECK(large.a_scales >= large.a_codes + 64 * 8192);
}

TEST_CASE("a quantised result and a bias's gradient are steps behind the product") {
  auto p = linear(Role::dgrad);
  p.op = Op::gemm_quantize;
  p.d_type = DType::mxfp4;
  p.copies = Copies::both;
  p.epilogue = Epilogue::dswiglu;
  p.c_type = DType::bf16;
  p.d_rounding = Rounding::sr16;
  auto wgrad = linear(Role::wgrad);
  wgrad.bias_gradient = BiasGradient::f32;
  Problem quantize;
  quantize.op = Op::quantize;
  quantize.m = {0, 64};
  quantize.k = Extent::exactly(64);
  quantize.a_type = DType::bf16;
  quantize.d_type = DType::mxfp4;
  quantize.bias_gradient = BiasGradient::f32;
  for (const auto& problem : {p, wgrad, quantize}) {
    REQUIRE(validate(problem).ok());
    const auto found = plans(problem, v4(), 20);
    REQUIRE(!found.empty());
    const bool result = problem.op == Op::gemm_quantize;
    for (const auto& plan : found) {
      CHECK(plan.steps.back().kind == (result ? StepKind::quantize_d : StepKind::bias_gradient));
      CHECK(check_plan(problem, v4(), plan).ok());
      CHECK(*parse_plan(plan.text()) == plan);
      for (const auto& step : plan.steps)
        CHECK(validate(step_problem(problem, v4(), plan, step.kind)).ok());
      Plan shorter = plan;
      shorter.steps.pop_back();
      if (!shorter.steps.empty()) CHECK_FALSE(check_plan(problem, v4(), shorter).ok());
    }
  }
  const auto plan = *default_plan(p, v4());
  const auto gemm = step_problem(p, v4(), plan, StepKind::gemm);
  CHECK(gemm.d_type == DType::f32);
  CHECK(gemm.c_type == DType::bf16);
  const auto last = step_problem(p, v4(), plan, StepKind::quantize_d);
  CHECK(last.k == Extent::exactly(192));
  CHECK(last.a_rounding == Rounding::sr16);
  const auto places = workspace_of(p, v4(), plan, {64, 96, 128, 1});
  CHECK(places.bytes >= places.result + 64 * 192 * 4);
}

namespace {

// A product whose D is the next product's operand.
Problem quantizing_product() {
  auto p = linear(Role::fprop);
  p.op = Op::gemm_quantize;
  p.d_type = DType::mxfp4;
  p.m = {1, 8192};
  p.n = p.k = Extent::exactly(1024);
  return p;
}

const std::pair<const char*, Layout> kFused[] = {
    {"sm_120f", Layout::scales_128x4}, {"sm_100f", Layout::plain}, {"gfx950", Layout::aiter}};

}  // namespace

TEST_CASE("plans.a product quantises its D itself, or a step behind it does") {
  for (const auto& [name, layout] : kFused) {
    INFO(name);
    const auto target = *parse_target(name);
    for (const auto epilogue : {Epilogue::none, Epilogue::swiglu_split, Epilogue::dswiglu}) {
      auto p = quantizing_product();
      p.d_layout = layout;
      p.epilogue = epilogue;
      p.d_rounding = Rounding::sr16;
      REQUIRE(validate(p).ok());
      std::size_t one_kernel = 0, two = 0;
      for (const auto& plan : plans(p, target, 1000)) {
        const auto status = check_plan(p, target, plan);
        REQUIRE_MESSAGE(status.ok(), plan.text() << ": " << status.message());
        CHECK(*parse_plan(plan.text()) == plan);
        const auto gemm = step_problem(p, target, plan, StepKind::gemm);
        CHECK(validate(gemm).ok());
        if (!quantizes_in_product(p, plan)) {
          CHECK(plan.steps.back().kind == StepKind::quantize_d);
          CHECK(gemm.d_type == DType::f32);
          ++two;
          continue;
        }
        ++one_kernel;
        CHECK(plan.steps.back().kind == StepKind::gemm);
        CHECK(gemm.op == Op::gemm_quantize);
        CHECK(gemm.d_layout == layout);
        CHECK(gemm.d_rounding == Rounding::sr16);
        CHECK(gemm.a_type == DType::mxfp4);
        const auto apart = with_result_step(p, target, plan);
        REQUIRE(apart.has_value());
        CHECK(check_plan(p, target, *apart).message() == "");
        const Sizes sizes{100, 1024, 1024, 1};
        CHECK(workspace_of(p, target, *apart, sizes).bytes >=
              workspace_of(p, target, plan, sizes).bytes + 100 * 512 * 4);
      }
      CHECK(one_kernel > 10);
      CHECK(two > 10);
      CHECK(quantizes_in_product(p, *default_plan(p, target)));
    }
  }
}

TEST_CASE("plans.what no product quantises itself a step does, and says why") {
  for (const auto& [name, layout] : kFused) {
    INFO(name);
    const auto target = *parse_target(name);
    auto given = quantizing_product();
    given.d_layout = layout;
    const auto fused = *default_plan(given, target);
    REQUIRE(quantizes_in_product(given, fused));
    const auto refused = [&](auto change, std::string_view word) {
      auto p = given;
      change(p);
      REQUIRE_MESSAGE(validate(p).ok(), validate(p).message());
      for (const auto& plan : plans(p, target, 500)) CHECK(!quantizes_in_product(p, plan));
      const auto plan = default_plan(p, target);
      REQUIRE_MESSAGE(plan.ok(), plan.status().message());
      CHECK(plan->find(StepKind::quantize_d));
      CHECK(!check_plan(p, target, fused).ok());
      const auto reason = find_family(fused.find(StepKind::gemm)->variant.family)
                              ->refuses(step_problem(p, target, fused, StepKind::gemm), target);
      CHECK_MESSAGE(reason.find(word) != std::string::npos, reason);
    };
    if (std::string_view(name) == "sm_100f") {
      refused([](Problem& p) { p.copies = Copies::both; }, "copies = both: quantises rows of D");
      refused([](Problem& p) { p.copies = Copies::columns; }, "copies = columns");
    } else {
      auto both = given;
      both.copies = Copies::both;
      both.rotation = 256;
      for (const auto& plan : plans(both, target, 1000))
        if (quantizes_in_product(both, plan))
          CHECK(plan.find(StepKind::gemm)->variant.value("tile_m") == 256);
      both.rotation = 64;
      CHECK(quantizes_in_product(both, *default_plan(both, target)));
    }
    refused(
        [](Problem& p) {
          p.rotation = 0;
          p.scale_block = ScaleBlock::b32x32;
        },
        "scale_block = 32x32");
    refused(
        [](Problem& p) {
          p.epilogue = Epilogue::dswiglu;
          p.rotation = 128;
          p.n = Extent::exactly(64 * 9);
        },
        "amid a block of 128");

    // Steps that do not go together.
    Plan wrong = *with_result_step(given, target, fused);
    wrong.steps.push_back(wrong.steps.back());
    CHECK(!check_plan(given, target, wrong).ok());
    auto ready = given;
    const Variant& gemm = fused.find(StepKind::gemm)->variant;
    ready.a_type = ready.b_type = DType::mxfp4;
    ready.a_layout = find_family(gemm.family)->a_layout(given, gemm);
    ready.b_layout = find_family(gemm.family)->b_layout(given, gemm);
    CHECK(check_plan(ready, target, Plan{{{StepKind::gemm, gemm}}}).message() == "");
    CHECK(check_plan(ready, target, Plan{{{StepKind::whole, gemm}}})
              .message()
              .find("no step 'gemm'") != std::string::npos);
    // A tile whose columns are no whole rotation segments.
    auto wide = given;
    wide.rotation = 256;
    std::size_t whole = 0;
    for (const auto& plan : plans(wide, target, 2000)) {
      if (!quantizes_in_product(wide, plan)) continue;
      CHECK(plan.find(StepKind::gemm)->variant.value("tile_n") == 256);
      ++whole;
    }
    CHECK(whole > 0);
  }
}

TEST_CASE("plans.on Hopper products quantise their D where tuners say so, or where it was faster") {
  const auto target = *parse_target("sm_90a");
  auto p = quantizing_product();
  p.epilogue = Epilogue::swiglu_interleaved;
  std::size_t one_kernel = 0;
  for (const auto& plan : plans(p, target, 5000)) {
    REQUIRE(check_plan(p, target, plan).message() == "");
    one_kernel += quantizes_in_product(p, plan);
  }
  CHECK(one_kernel > 10);
  CHECK(!quantizes_in_product(p, *default_plan(p, target)));
  auto plain = p;
  plain.epilogue = Epilogue::none;
  CHECK(quantizes_in_product(plain, *default_plan(plain, target)));
  for (const auto& plan : plans(plain, target, 5000))
    REQUIRE(check_plan(plain, target, plan).message() == "");
  // Rows out of a window are another kernel's.
  auto alone = p;
  alone.a_type = alone.b_type = DType::mxfp4;
  alone.contract = Contract::fast;
  CHECK(find_family("cuda_gemm_e5m2")->refuses(alone, target).find("out of its window") !=
        std::string::npos);
}
