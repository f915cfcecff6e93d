// Every argument that qturn_run can refuse, with the status and the name it must give.
#include <algorithm>
#include <limits>

#include "tests/runtime/api.hpp"

using namespace quarterturn::api;

namespace {

struct Fixture {
  Options options;
  Context context = make_context(options);
  std::vector<float> a = values(8 * 64, 1), b = values(16 * 64, 2), c = values(8 * 16, 3),
                     bias = values(16, 4);

  qturn_problem problem() const {
    auto p = linear(8, 16, 64);
    p.accumulate = QTURN_ACCUMULATE;
    p.bias = QTURN_BIAS_PER_COLUMN;
    return p;
  }
  Plan plan = prepare(context, problem());

  Run good() {
    Run run(plan, 8, 16, a);
    run.args.b = f32(b);
    run.args.c = c.data();
    run.args.bias = bias.data();
    run.args.beta = 0.5f;
    return run;
  }
  void refused(qturn_status status, const std::string& name, const qturn_args& args) {
    CAPTURE(name);
    CHECK(qturn_run(plan.get(), &args) == status);
    const std::string message = qturn_last_error();
    CHECK_MESSAGE(message.find(name) != std::string::npos, message);
  }
  template <class Change>
  void refused(qturn_status status, const std::string& name, Change change) {
    auto run = good();
    change(run.args);
    refused(status, name, run.args);
  }
};

void* moved(void* pointer, int bytes) { return static_cast<char*>(pointer) + bytes; }

}  // namespace

TEST_CASE("qturn_run.places and strides that do not fit are named") {
  Fixture f;
  qturn_problem p;
  qturn_problem_init(&p);
  p.op = QTURN_OP_DEQUANTIZE;
  p.m = {8, 8};
  p.k = {64, 64};
  p.batch = {2, 2};
  p.a_type = QTURN_MXFP4;
  p.a_layout = QTURN_LAYOUT_PLAIN;
  p.d_type = QTURN_F32;
  p.rotation = 0;
  const auto plan = prepare(f.context, p);
  std::vector<unsigned char> codes(1024), scales(64, 127);
  std::vector<float> d(2 * 8 * 64);
  qturn_args args;
  qturn_args_init(&args);
  REQUIRE(qturn_plan_operand(plan.get(), QTURN_OPERAND_A, &args.a) == QTURN_OK);
  REQUIRE(qturn_plan_operand(plan.get(), QTURN_OPERAND_D, &args.d) == QTURN_OK);
  args.m = 8;
  args.a.data = codes.data();
  args.a.scales = scales.data();
  args.d.data = d.data();
  args.a.batch_stride = 8 * 64 + 2;
  CHECK_MESSAGE(qturn_run(plan.get(), &args) == QTURN_OK, qturn_last_error());
  args.a.batch_stride = 8 * 64 + 1;
  CHECK(qturn_run(plan.get(), &args) == QTURN_INVALID_ARGUMENT);
  CHECK(std::string(qturn_last_error()).find("a.batch_stride = 513") != std::string::npos);
  f.refused(QTURN_INVALID_ARGUMENT, "k_global = 64 is less than k0", [](auto& x) {
    x.k0 = std::numeric_limits<int64_t>::max() - 31;
    x.k_global = 64;
  });
}

TEST_CASE("qturn_run.each bad argument is named") {
  Fixture f;
  auto run = f.good();
  REQUIRE_MESSAGE(qturn_run(f.plan.get(), &run.args) == QTURN_OK, qturn_last_error());

  const auto invalid = QTURN_INVALID_ARGUMENT;
  CHECK(qturn_run(nullptr, &run.args) == invalid);
  CHECK(qturn_run(f.plan.get(), nullptr) == invalid);
  f.refused(invalid, "struct_size", [](auto& x) { x.struct_size = 4; });
  std::uint64_t words[2] = {};
  f.refused(QTURN_MISALIGNED, "noise_seed_at",
            [&](auto& x) { x.noise_seed_at = static_cast<const std::uint64_t*>(moved(words, 4)); });
  f.refused(QTURN_MISALIGNED, "noise_stream_at", [&](auto& x) {
    x.noise_stream_at = static_cast<const std::uint32_t*>(moved(words, 2));
  });
  f.refused(invalid, "m = -1", [](auto& x) { x.m = -1; });
  f.refused(QTURN_OUT_OF_RANGE, "m = 9", [](auto& x) { x.m = 9; });
  f.refused(QTURN_OUT_OF_RANGE, "n = 15", [](auto& x) { x.n = 15; });
  f.refused(QTURN_OUT_OF_RANGE, "k = 32", [](auto& x) { x.k = 32; });
  f.refused(QTURN_OUT_OF_RANGE, "batch = 2", [](auto& x) { x.batch = 2; });
  f.refused(invalid, "a.data", [](auto& x) { x.a.data = nullptr; });
  f.refused(invalid, "b.data", [](auto& x) { x.b.data = nullptr; });
  f.refused(invalid, "d.data", [](auto& x) { x.d.data = nullptr; });
  f.refused(invalid, "c is NULL", [](auto& x) { x.c = nullptr; });
  f.refused(invalid, "bias is NULL", [](auto& x) { x.bias = nullptr; });
  f.refused(QTURN_MISALIGNED, "a.data", [](auto& x) { x.a.data = moved(x.a.data, 2); });
  f.refused(QTURN_MISALIGNED, "d.data", [](auto& x) { x.d.data = moved(x.d.data, 1); });
  f.refused(QTURN_MISALIGNED, "bias",
            [](auto& x) { x.bias = static_cast<const char*>(x.bias) + 3; });
  f.refused(invalid, "a.ld = 63", [](auto& x) { x.a.ld = 63; });
  f.refused(invalid, "b.ld = -64", [](auto& x) { x.b.ld = -64; });
  f.refused(invalid, "d.ld = 15", [](auto& x) { x.d.ld = 15; });
  f.refused(invalid, "d.ld", [](auto& x) { x.d.ld = std::numeric_limits<int64_t>::max(); });
  f.refused(invalid, "ldc = 3", [](auto& x) { x.ldc = 3; });
  f.refused(QTURN_WRONG_OPERAND, "a's type is bf16", [](auto& x) { x.a.type = QTURN_BF16; });
  f.refused(QTURN_WRONG_OPERAND, "d's type is mxfp4", [](auto& x) { x.d.type = QTURN_MXFP4; });
  f.refused(QTURN_WRONG_OPERAND, "b's type is 77", [](auto& x) { x.b.type = 77; });
  f.refused(QTURN_WORKSPACE_TOO_SMALL, "workspace_bytes", [](auto& x) { --x.workspace_bytes; });
  f.refused(invalid, "workspace is NULL", [](auto& x) { x.workspace = nullptr; });
  f.refused(invalid, "row0", [](auto& x) { x.row0 = -1; });
  f.refused(invalid, "row0_b", [](auto& x) { x.row0_b = -1; });
  f.refused(invalid, "k_global", [](auto& x) { x.k_global = 63; });
  f.refused(invalid, "noise_operand", [](auto& x) { x.noise_operand = 3; });
}

TEST_CASE("qturn_run.a result shares memory with nothing but c") {
  Fixture f;
  f.refused(QTURN_INVALID_ARGUMENT, "d.data and a.data", [](auto& x) { x.a.data = x.d.data; });
  f.refused(QTURN_INVALID_ARGUMENT, "d.data and b.data",
            [](auto& x) { x.b.data = moved(x.d.data, 508); });
  f.refused(QTURN_INVALID_ARGUMENT, "d.data and bias", [](auto& x) { x.bias = x.d.data; });
  f.refused(QTURN_INVALID_ARGUMENT, "d.data and c", [](auto& x) { x.c = moved(x.d.data, 4); });
  f.refused(QTURN_INVALID_ARGUMENT, "workspace",
            [](auto& x) { x.workspace = moved(x.d.data, -64); });
  auto in_place = f.good();
  in_place.d = f.c;
  in_place.args.d = f32(in_place.d);
  in_place.args.c = in_place.d.data();
  auto apart = f.good();
  REQUIRE(qturn_run(f.plan.get(), &in_place.args) == QTURN_OK);
  REQUIRE(qturn_run(f.plan.get(), &apart.args) == QTURN_OK);
  CHECK(in_place.d == apart.d);
}

TEST_CASE("qturn_run.what the problem does not have is refused, not ignored") {
  Fixture f;
  const auto plain = prepare(f.context, linear(8, 16, 64));
  auto run = f.good();
  run.args.bias = nullptr;
  run.args.beta = 0;
  CHECK(qturn_run(plain.get(), &run.args) == QTURN_OK);
  run.args.beta = 1;
  CHECK(qturn_run(plain.get(), &run.args) == QTURN_INVALID_ARGUMENT);
  CHECK(std::string(qturn_last_error()).find("beta = 1") != std::string::npos);
  run.args.beta = 0;
  run.args.bias = f.bias.data();
  CHECK(qturn_run(plain.get(), &run.args) == QTURN_INVALID_ARGUMENT);
}

TEST_CASE("qturn_run.beta 0 does not read c") {
  Fixture f;
  auto run = f.good();
  run.args.beta = 0;
  run.args.c = nullptr;
  REQUIRE(qturn_run(f.plan.get(), &run.args) == QTURN_OK);
  for (const float value : run.d) CHECK(std::isfinite(value));
}

TEST_CASE("qturn_run.nothing to do needs no pointers") {
  Fixture f;
  qturn_args args;
  qturn_args_init(&args);
  args.m = 0;
  CHECK(qturn_run(f.plan.get(), &args) == QTURN_OK);
}

TEST_CASE("qturn_run.strides longer than a row are followed") {
  Fixture f;
  auto tight = f.good();
  REQUIRE(qturn_run(f.plan.get(), &tight.args) == QTURN_OK);
  std::vector<float> wide_a(8 * 70), wide_c(8 * 19), wide_d(8 * 21, 7.0f);
  for (std::size_t i = 0; i < 8; ++i) {
    std::copy_n(&f.a[i * 64], 64, &wide_a[i * 70]);
    std::copy_n(&f.c[i * 16], 16, &wide_c[i * 19]);
  }
  auto run = f.good();
  run.args.a.data = wide_a.data();
  run.args.a.ld = 70;
  run.args.c = wide_c.data();
  run.args.ldc = 19;
  run.args.d.data = wide_d.data();
  run.args.d.ld = 21;
  REQUIRE(qturn_run(f.plan.get(), &run.args) == QTURN_OK);
  for (std::size_t i = 0; i < 8; ++i)
    for (std::size_t j = 0; j < 21; ++j)
      CHECK(wide_d[i * 21 + j] == (j < 16 ? tight.d[i * 16 + j] : 7.0f));
}

TEST_CASE("qturn_prepare.bad problems are refused by name") {
  Fixture f;
  qturn_plan* out = nullptr;
  const auto refused = [&](qturn_status status, const std::string& name, qturn_problem p) {
    CAPTURE(name);
    CHECK(qturn_prepare(f.context.get(), &p, &out) == status);
    CHECK(out == nullptr);
    const std::string message = qturn_last_error();
    CHECK_MESSAGE(message.find(name) != std::string::npos, message);
    CHECK(qturn_supports(f.context.get(), &p) == status);
  };
  const auto with = [](auto change) {
    auto p = linear(8, 16, 64);
    change(p);
    return p;
  };
  CHECK(qturn_prepare(nullptr, nullptr, &out) == QTURN_INVALID_ARGUMENT);
  CHECK(qturn_prepare(f.context.get(), nullptr, &out) == QTURN_INVALID_ARGUMENT);
  const auto bad = QTURN_INVALID_ARGUMENT;
  refused(bad, "struct_size", with([](auto& p) { p.struct_size = 0; }));
  refused(bad, "op = 99", with([](auto& p) { p.op = 99; }));
  refused(bad, "a_type = -1", with([](auto& p) { p.a_type = -1; }));
  refused(bad, "scale_rule = 8", with([](auto& p) { p.scale_rule = 8; }));
  refused(bad, "reproducibility = 3", with([](auto& p) { p.reproducibility = 3; }));
  refused(bad, "m = -1..8", with([](auto& p) { p.m.lo = -1; }));
  refused(bad, "n = 16..15", with([](auto& p) { p.n.hi = 15; }));
  refused(bad, "k = 64", with([](auto& p) { p.k.hi = int64_t{1} << 50; }));
  refused(bad, "elements", with([](auto& p) {
            p.m = {int64_t{1} << 39, int64_t{1} << 39};
            p.k = {int64_t{1} << 39, int64_t{1} << 39};
          }));
  refused(QTURN_INVALID_PROBLEM, "k = 65", with([](auto& p) { p.k = {65, 65}; }));
  refused(QTURN_INVALID_PROBLEM, "rotation = 48", with([](auto& p) { p.rotation = 48; }));
  refused(QTURN_INVALID_PROBLEM, "biased", with([](auto& p) {
            p.scale_rule = QTURN_SCALE_FLOOR;
            p.a_rounding = QTURN_SR16;
          }));
  refused(QTURN_INVALID_PROBLEM, "leave batch at 1", with([](auto& p) {
            p.grouping = QTURN_M_MASKED;
            p.batch = {2, 2};
          }));
  refused(QTURN_INVALID_PROBLEM, "grouping = none", with([](auto& p) { p.groups = {1, 8}; }));
  refused(QTURN_NOT_SUPPORTED, "cpu_gemm", with([](auto& p) { p.d_layout = QTURN_LAYOUT_128X4; }));
}

TEST_CASE("qturn_context_create.bad options are refused by name") {
  const auto refused = [](const std::string& name, auto change) {
    Options options;
    change(options.c);
    qturn_context* out = nullptr;
    CHECK(qturn_context_create(&options.c, &out) == QTURN_INVALID_ARGUMENT);
    CHECK(out == nullptr);
    const std::string message = qturn_last_error();
    CHECK_MESSAGE(message.find(name) != std::string::npos, message);
  };
  refused("struct_size", [](auto& c) { c.struct_size = 3; });
  refused("backend = 9", [](auto& c) { c.backend = 9; });
  refused("threads = -1", [](auto& c) { c.threads = -1; });
  refused("miss_policy", [](auto& c) { c.miss_policy = 5; });
  refused("snapshots", [](auto& c) { c.snapshot_count = 1; });
  CHECK(qturn_context_create(nullptr, nullptr) == QTURN_INVALID_ARGUMENT);
}

TEST_CASE("qturn_*_init.NULL is taken, and structs of older headers too") {
  qturn_problem_init(nullptr);
  qturn_args_init(nullptr);
  qturn_operand_init(nullptr);
  qturn_context_options_init(nullptr);
  qturn_context_destroy(nullptr);
  qturn_plan_destroy(nullptr);
  qturn_weight_destroy(nullptr);
  Fixture f;
  // A caller of a newer header whose new members are all at their default.
  struct Newer {
    qturn_problem old;
    int32_t added[4];
  } newer{linear(8, 16, 64), {}};
  newer.old.struct_size = sizeof newer;
  CHECK(qturn_supports(f.context.get(), &newer.old) == QTURN_OK);
  newer.added[2] = 1;
  CHECK(qturn_supports(f.context.get(), &newer.old) == QTURN_NOT_SUPPORTED);
  auto run = f.good();
  struct NewerArgs {
    qturn_args old;
    int64_t added[2];
  } more{run.args, {}};
  more.old.struct_size = sizeof more;
  CHECK(qturn_run(f.plan.get(), &more.old) == QTURN_OK);
  more.added[1] = 1;
  CHECK(qturn_run(f.plan.get(), &more.old) == QTURN_NOT_SUPPORTED);
  qturn_stats stats{};
  CHECK(qturn_get_stats(f.context.get(), &stats) == QTURN_INVALID_ARGUMENT);
  stats.struct_size = sizeof stats;
  CHECK(qturn_get_stats(f.context.get(), &stats) == QTURN_OK);
  CHECK(stats.struct_size == sizeof stats);
}
