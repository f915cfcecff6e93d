// What a run promises: no allocation, no file, the same bits however it is called.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "tests/runtime/api.hpp"
#include "tests/runtime/interposed.hpp"

using namespace quarterturn::api;

TEST_CASE("qturn_run.allocates nothing and opens no file") {
  if (!quarterturn::test::can_count()) {
    MESSAGE("SKIPPED: the sanitizer owns malloc");
    return;
  }
  const Options options;
  const auto context = make_context(options);
  for (const bool prepared_weight : {false, true}) {
    const auto plan =
        prepare(context, linear(40, 48, 96, prepared_weight ? QTURN_MXFP4 : QTURN_F32));
    const auto a = values(40 * 96, 1), b = values(48 * 96, 2);
    const auto weight = prepared_weight ? pack(plan, f32(b)) : nullptr;
    for (const int64_t m : {40, 1, 0}) {
      Run run(plan, m, 48, a);
      if (prepared_weight)
        run.args.weight = weight.get();
      else
        run.args.b = f32(b);
      qturn_status status = QTURN_OK;
      const auto counted = quarterturn::test::least_of([&] {
        for (int i = 0; i < 20 && status == QTURN_OK; ++i)
          status = qturn_run(plan.get(), &run.args);
      });
      CHECK(status == QTURN_OK);
      CHECK(counted.allocations == 0);
      CHECK(counted.opened_files == 0);
    }
  }
  // The counters do count.
  quarterturn::test::begin_counting();
  free(malloc(10000));
  fclose(fopen("/dev/null", "r"));
  const auto counted = quarterturn::test::end_counting();
  CHECK(counted.allocations >= 1);
  CHECK(counted.opened_files >= 1);
}

TEST_CASE("qturn_run.run to run, and however the batch is split, the same bits") {
  const Options options;
  const auto context = make_context(options);
  for (const int32_t contract : {QTURN_RUN_TO_RUN, QTURN_BATCH_INVARIANT}) {
    auto problem = linear(64, 32, 128);
    problem.reproducibility = contract;
    const auto plan = prepare(context, problem);
    const auto a = values(64 * 128, 5), b = values(32 * 128, 6);
    Run whole(plan, 64, 32, a);
    whole.args.b = f32(b);
    REQUIRE(qturn_run(plan.get(), &whole.args) == QTURN_OK);
    for (int i = 0; i < 5; ++i) {
      Run again(plan, 64, 32, a);
      again.args.b = f32(b);
      REQUIRE(qturn_run(plan.get(), &again.args) == QTURN_OK);
      CHECK(again.d == whole.d);
    }
    if (contract != QTURN_BATCH_INVARIANT) continue;
    for (const int64_t rows : {1, 7, 13, 64}) {
      std::vector<float> joined;
      for (int64_t row = 0; row < 64; row += rows) {
        const auto count = std::min<int64_t>(rows, 64 - row);
        const std::vector<float> part(a.begin() + row * 128, a.begin() + (row + count) * 128);
        Run run(plan, count, 32, part);
        run.args.b = f32(b);
        REQUIRE(qturn_run(plan.get(), &run.args) == QTURN_OK);
        joined.insert(joined.end(), run.d.begin(), run.d.end());
      }
      CHECK(joined == whole.d);
    }
  }
}

TEST_CASE("qturn_run.a batch is its entries one by one, tight or strided") {
  const Options options;
  const auto context = make_context(options);
  auto problem = linear(8, 16, 64);
  problem.batch = {1, 3};
  const auto plan = prepare(context, problem);
  const auto a = values(3 * 8 * 64, 1), b = values(3 * 16 * 64, 2);
  std::vector<float> joined;
  for (std::ptrdiff_t i = 0; i < 3; ++i) {
    const std::vector<float> a_i(a.begin() + i * 512, a.begin() + (i + 1) * 512);
    const std::vector<float> b_i(b.begin() + i * 1024, b.begin() + (i + 1) * 1024);
    Run run(plan, 8, 16, a_i);
    run.args.b = f32(b_i);
    REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
    joined.insert(joined.end(), run.d.begin(), run.d.end());
  }
  Run tight(plan, 8, 3 * 16, a);
  tight.args.batch = 3;
  tight.args.b = f32(b);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &tight.args) == QTURN_OK, qturn_last_error());
  CHECK(tight.d == joined);

  std::vector<float> apart(3 * 600);
  for (std::ptrdiff_t i = 0; i < 3; ++i)
    std::copy_n(a.begin() + i * 512, 512, apart.begin() + i * 600);
  Run strided(plan, 8, 3 * 16, apart);
  strided.args.batch = 3;
  strided.args.a.batch_stride = 600;
  strided.args.b = f32(b);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &strided.args) == QTURN_OK, qturn_last_error());
  CHECK(strided.d == joined);
  strided.args.a.batch_stride = 511;
  CHECK(qturn_run(plan.get(), &strided.args) == QTURN_INVALID_ARGUMENT);
  CHECK(std::string(qturn_last_error()).find("a.batch_stride = 511") != std::string::npos);
}

TEST_CASE("qturn_run.quantised copies round-trip through every op that reads them") {
  // quantize -> dequantize, and quantize -> pack -> gemm equals hadamard_gemm.
  const Options options;
  const auto context = make_context(options);
  const auto a = values(8 * 64, 1), b = values(16 * 64, 2);
  const auto quantized = [&](const std::vector<float>& x, int64_t rows, std::vector<char>& codes,
                             std::vector<char>& scales) {
    auto p = linear(16, 0, 64);
    p.op = QTURN_OP_QUANTIZE;
    p.n = {0, 0};
    p.b_type = QTURN_TYPE_NONE;
    p.d_type = QTURN_MXFP4;
    const auto plan = prepare(context, p);
    qturn_args args;
    qturn_args_init(&args);
    args.m = rows;
    args.a = f32(x);
    REQUIRE(qturn_plan_operand(plan.get(), QTURN_OPERAND_D, &args.d) == QTURN_OK);
    codes.resize(args.d.data_bytes);
    scales.resize(args.d.scales_bytes);
    args.d.data = codes.data();
    args.d.scales = scales.data();
    REQUIRE_MESSAGE(qturn_run(plan.get(), &args) == QTURN_OK, qturn_last_error());
    return args.d;
  };
  std::vector<char> a_codes, a_scales, b_codes, b_scales;
  const auto qa = quantized(a, 8, a_codes, a_scales), qb = quantized(b, 16, b_codes, b_scales);

  const auto whole = prepare(context, linear(16, 16, 64));
  Run expected(whole, 8, 16, a);
  expected.args.b = f32(b);
  REQUIRE(qturn_run(whole.get(), &expected.args) == QTURN_OK);

  auto p = linear(16, 16, 64, QTURN_MXFP4);
  p.op = QTURN_OP_GEMM;
  p.a_type = QTURN_MXFP4;
  p.a_layout = p.b_layout = QTURN_LAYOUT_PLAIN;
  const auto plan = prepare(context, p);
  Run run(plan, 8, 16, a);
  run.args.a = qa;
  run.args.b = qb;
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
  CHECK(run.d == expected.d);

  // The same B as a weight: packed from its plain codes.
  const auto by_weight = prepare(context, linear(16, 16, 64, QTURN_MXFP4));
  const auto weight = pack(by_weight, qb);
  Run third(by_weight, 8, 16, a);
  third.args.weight = weight.get();
  REQUIRE(qturn_run(by_weight.get(), &third.args) == QTURN_OK);
  CHECK(third.d == expected.d);
}

TEST_CASE("qturn_run.many threads share a plan, and another context serves beside") {
  const Options one, two;
  const auto context = make_context(one), other = make_context(two);
  const auto plan = prepare(context, linear(24, 32, 64)),
             beside = prepare(other, linear(24, 32, 64));
  const auto a = values(24 * 64, 7), b = values(32 * 64, 8);
  Run expected(plan, 24, 32, a);
  expected.args.b = f32(b);
  REQUIRE(qturn_run(plan.get(), &expected.args) == QTURN_OK);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto& mine = t % 2 ? plan : beside;
        std::vector<float> d(24 * 32);
        std::vector<char> workspace(expected.workspace.size());
        qturn_args args = expected.args;
        args.d.data = d.data();
        args.workspace = workspace.data();
        wrong += qturn_run(mine.get(), &args) != QTURN_OK || d != expected.d;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("qturn_run.a forked child may use its parent's context") {
  const Options options;
  auto context = make_context(options);
  auto plan = prepare(context, linear(24, 32, 64));
  const auto a = values(24 * 64, 7), b = values(32 * 64, 8);
  Run expected(plan, 24, 32, a);
  expected.args.b = f32(b);
  REQUIRE(qturn_run(plan.get(), &expected.args) == QTURN_OK);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    Run run(plan, 24, 32, a);
    run.args.b = f32(b);
    bool right = qturn_run(plan.get(), &run.args) == QTURN_OK && run.d == expected.d;
    // Also what reads the database, and the end of everything.
    qturn_plan* again = nullptr;
    const auto problem = linear(24, 32, 64);
    right = right && qturn_prepare(context.get(), &problem, &again) == QTURN_OK;
    qturn_plan_destroy(again);
    plan.reset();
    context.reset();
    _exit(right ? 7 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  CHECK(qturn_run(plan.get(), &expected.args) == QTURN_OK);
}

TEST_CASE("qturn_run.a plan outlives the handle of its context") {
  const Options options;
  auto context = make_context(options);
  const auto plan = prepare(context, linear(24, 32, 64));
  context.reset();
  const auto a = values(24 * 64, 7), b = values(32 * 64, 8);
  Run run(plan, 24, 32, a);
  run.args.b = f32(b);
  CHECK(qturn_run(plan.get(), &run.args) == QTURN_OK);
}

TEST_CASE("qturn_run.Wgrad takes any number of tokens without another compile") {
  const Options options;
  const auto context = make_context(options);
  auto p = linear(0, 20, 0);
  p.role = QTURN_WGRAD;
  p.m = {32, 32};
  p.k = {0, 8192};
  p.a_major = p.b_major = QTURN_MAJOR_ROWS;
  const auto plan = prepare(context, p);
  qturn_stats before{}, after{};
  before.struct_size = after.struct_size = sizeof before;
  REQUIRE(qturn_get_stats(context.get(), &before) == QTURN_OK);
  for (const int64_t tokens : {0, 1, 31, 33, 8191}) {
    const auto a = values(32 * tokens, 1), b = values(20 * tokens, 2);
    Run run(plan, 32, 20, a);
    run.args.k = tokens;
    run.args.b = f32(b);
    REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
    double worst = 0;
    for (std::size_t i = 0; i < 32; ++i)
      for (std::size_t j = 0; j < 20; ++j) {
        double exact = 0, size = 0;
        for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
          exact += double{a[t * 32 + i]} * double{b[t * 20 + j]};
          size += std::abs(double{a[t * 32 + i]} * double{b[t * 20 + j]});
        }
        worst = std::max(worst, std::abs(double{run.d[i * 20 + j]} - exact) / (size + 1e-30));
      }
    // MXFP4 rounds each factor by at most a quarter or so; what is wrong altogether is far off.
    CHECK(worst < (tokens > 30 ? 0.25 : 1.0));
    if (tokens == 0) CHECK(run.d == std::vector<float>(run.d.size(), 0.0f));
  }
  REQUIRE(qturn_get_stats(context.get(), &after) == QTURN_OK);
  CHECK(after.compiles == before.compiles);
  CHECK(after.runs == before.runs + 5);
}

TEST_CASE("qturn_run.at debug level each distinct call is logged once") {
  Options options;
  options.c.log_level = QTURN_LOG_DEBUG;
  const auto context = make_context(options);
  const auto plan = prepare(context, linear(24, 32, 64));
  const auto a = values(24 * 64, 7), b = values(32 * 64, 8);
  for (const int64_t m : {3, 5, 3, 5, 3}) {
    Run run(plan, m, 32, a);
    run.args.b = f32(b);
    REQUIRE(qturn_run(plan.get(), &run.args) == QTURN_OK);
  }
  CHECK(options.logged.count("qturn bench --problem '") == 2);
  CHECK(options.logged.count(" m=3 n=32 k=64 ") == 1);
  CHECK(options.logged.count(" m=5 n=32 k=64 ") == 1);
}
