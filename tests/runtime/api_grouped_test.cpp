// Grouped calls through the C interface: a group's result is that of the same product alone, and
// wrong sizes are refused by name.
#include <cstring>

#include "tests/runtime/api.hpp"

using namespace quarterturn::api;

namespace {

constexpr int64_t kN = 48, kK = 96;

qturn_problem experts(int32_t grouping, int32_t b_type) {
  auto p = linear(64, kN, kK, b_type);
  p.grouping = grouping;
  p.groups = {4, 4};
  return p;
}

std::vector<float> part(const std::vector<float>& all, int64_t first, int64_t count) {
  return {all.begin() + first, all.begin() + first + count};
}

// Rows of X times one expert's W, without any grouping.
std::vector<float> alone(const Context& context, const std::vector<float>& x,
                         const std::vector<float>& w) {
  const auto plan = prepare(context, linear(64, kN, kK));
  Run run(plan, static_cast<int64_t>(x.size()) / kK, kN, x);
  run.args.b = f32(w);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
  return run.d;
}

}  // namespace

TEST_CASE("grouped.rows of each expert are those of the product alone, prepared weights too") {
  const Options options;
  const auto context = make_context(options);
  const auto x = values(37 * kK, 1), w = values(4 * kN * kK, 2);
  const std::vector<int32_t> ends = {5, 5, 20, 30};
  for (const int32_t b_type : {QTURN_F32, QTURN_MXFP4}) {
    const auto plan = prepare(context, experts(QTURN_M_CONTIGUOUS, b_type));
    const auto weight = b_type == QTURN_MXFP4 ? pack(plan, f32(w)) : nullptr;
    Run run(plan, 37, kN, x);
    std::fill(run.d.begin(), run.d.end(), 7.0f);
    if (weight)
      run.args.weight = weight.get();
    else
      run.args.b = f32(w);
    run.args.group_ends = ends.data();
    REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
    int64_t first = 0;
    for (int64_t g = 0; g < 4; ++g) {
      const int64_t count = ends[static_cast<std::size_t>(g)] - first;
      if (count > 0)
        CHECK(part(run.d, first * kN, count * kN) ==
              alone(context, part(x, first * kK, count * kK), part(w, g * kN * kK, kN * kK)));
      first += count;
    }
    for (int64_t i = 30 * kN; i < 37 * kN; ++i) CHECK(run.d[static_cast<std::size_t>(i)] == 7.0f);
  }
}

TEST_CASE("grouped.masked groups use their first rows, and leave the others alone") {
  const Options options;
  const auto context = make_context(options);
  const auto x = values(4 * 8 * kK, 3), w = values(4 * kN * kK, 4);
  const std::vector<int32_t> counts = {8, 0, 3, 1};
  const auto plan = prepare(context, experts(QTURN_M_MASKED, QTURN_F32));
  Run run(plan, 8, kN, x);
  run.d.assign(4 * 8 * kN, 7.0f);
  run.args.d = f32(run.d);
  run.args.b = f32(w);
  run.args.group_counts = counts.data();
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
  for (int64_t g = 0; g < 4; ++g) {
    const int64_t count = counts[static_cast<std::size_t>(g)];
    if (count > 0)
      CHECK(part(run.d, g * 8 * kN, count * kN) ==
            alone(context, part(x, g * 8 * kK, count * kK), part(w, g * kN * kK, kN * kK)));
    for (int64_t i = (g * 8 + count) * kN; i < (g + 1) * 8 * kN; ++i)
      CHECK(run.d[static_cast<std::size_t>(i)] == 7.0f);
  }
}

TEST_CASE("grouped.gradients contract each expert's tokens, whose copies a call may give") {
  const Options options;
  const auto context = make_context(options);
  const int64_t tokens = 300;
  const auto dy = values(tokens * kN, 5), x = values(tokens * kK, 6);
  const std::vector<int32_t> ends = {0, 131, 131, 290};
  auto problem = linear(64, kN, kK);
  problem.role = QTURN_WGRAD;
  problem.m = {kN, kN};
  problem.n = {kK, kK};
  problem.k = {0, 512};
  problem.a_major = problem.b_major = QTURN_MAJOR_ROWS;
  auto wgrad = problem;
  wgrad.grouping = QTURN_K_GROUPED;
  wgrad.groups = {1, 8};
  const auto plan = prepare(context, wgrad);
  Run run(plan, kN, kK, dy);
  run.d.assign(4 * kN * kK, 7.0f);
  run.args.d = f32(run.d);
  run.args.b = f32(x);
  run.args.k = tokens;
  run.args.groups = 4;
  run.args.group_ends = ends.data();
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());

  const auto one = prepare(context, problem);
  int64_t first = 0;
  for (int64_t g = 0; g < 4; ++g) {
    const int64_t count = ends[static_cast<std::size_t>(g)] - first;
    const auto a = part(dy, first * kN, count * kN), b = part(x, first * kK, count * kK);
    Run want(one, kN, kK, a);
    want.args.k = count;
    want.args.b = f32(b);
    REQUIRE_MESSAGE(qturn_run(one.get(), &want.args) == QTURN_OK, qturn_last_error());
    CHECK(part(run.d, g * kN * kK, kN * kK) == want.d);
    first += count;
  }

  // X's copy from an earlier call of quantize serves as B.
  qturn_problem quantize;
  qturn_problem_init(&quantize);
  quantize.op = QTURN_OP_QUANTIZE;
  quantize.m = {0, 512};
  quantize.k = {kK, kK};
  quantize.a_type = QTURN_F32;
  quantize.d_type = QTURN_MXFP4;
  quantize.copies = QTURN_COPIES_COLUMNS;
  quantize.rotation = 32;
  quantize.grouping = QTURN_K_GROUPED;
  quantize.groups = {1, 8};
  const auto quantizer = prepare(context, quantize);
  qturn_operand copy;
  REQUIRE(qturn_plan_operand(quantizer.get(), QTURN_OPERAND_D, &copy) == QTURN_OK);
  std::vector<unsigned char> codes(copy.data_bytes), scales(copy.scales_bytes);
  copy.data = codes.data();
  copy.scales = scales.data();
  Run fill(quantizer, tokens, kK, x);
  fill.args.d = copy;
  fill.args.groups = 4;
  fill.args.group_ends = ends.data();
  REQUIRE_MESSAGE(qturn_run(quantizer.get(), &fill.args) == QTURN_OK, qturn_last_error());
  auto prepared = wgrad;
  prepared.b_type = QTURN_MXFP4;
  prepared.b_layout = QTURN_LAYOUT_PLAIN;
  const auto from_copy = prepare(context, prepared);
  Run again(from_copy, kN, kK, dy);
  again.d.assign(4 * kN * kK, 7.0f);
  again.args.d = f32(again.d);
  again.args.b = copy;
  again.args.k = tokens;
  again.args.groups = 4;
  again.args.group_ends = ends.data();
  REQUIRE_MESSAGE(qturn_run(from_copy.get(), &again.args) == QTURN_OK, qturn_last_error());
  CHECK(again.d == run.d);
}

TEST_CASE("grouped.wrong sizes and pointers are refused by name") {
  const Options options;
  const auto context = make_context(options);
  const auto x = values(37 * kK, 1), w = values(4 * kN * kK, 2);
  std::vector<int32_t> sizes = {5, 5, 20, 30};
  const auto plan = prepare(context, experts(QTURN_M_CONTIGUOUS, QTURN_F32));
  const auto refused = [&](qturn_status status, const std::string& name, auto change) {
    Run run(plan, 37, kN, x);
    run.args.b = f32(w);
    run.args.group_ends = sizes.data();
    change(run.args);
    CHECK(qturn_run(plan.get(), &run.args) == status);
    const std::string message = qturn_last_error();
    CHECK_MESSAGE(message.find(name) != std::string::npos, message);
    for (const float value : run.d) CHECK(std::isnan(value));
  };
  const auto bad = QTURN_INVALID_ARGUMENT;
  refused(bad, "group_ends is NULL", [](auto& a) { a.group_ends = nullptr; });
  refused(bad, "give group_ends", [&](auto& a) { a.group_counts = sizes.data(); });
  refused(QTURN_OUT_OF_RANGE, "groups = 5", [](auto& a) { a.groups = 5; });
  refused(QTURN_MISALIGNED, "group_ends", [&](auto& a) {
    a.group_ends =
        reinterpret_cast<const int32_t*>(reinterpret_cast<const char*>(sizes.data()) + 1);
  });
  sizes = {5, 4, 20, 30};
  refused(bad, "group_ends[1] = 4: 5 to 37", [](auto&) {});
  sizes = {5, 5, 20, 38};
  refused(bad, "group_ends[3] = 38: 20 to 37", [](auto&) {});
  sizes = {-1, 5, 20, 30};
  refused(bad, "group_ends[0] = -1", [](auto&) {});
  const auto plain = prepare(context, linear(64, kN, kK));
  Run run(plain, 37, kN, x);
  run.args.b = f32(w);
  run.args.group_ends = sizes.data();
  CHECK(qturn_run(plain.get(), &run.args) == bad);
  CHECK(std::string(qturn_last_error()).find("grouping is none") != std::string::npos);
  // Weights of another number of experts.
  auto three = experts(QTURN_M_CONTIGUOUS, QTURN_MXFP4);
  three.groups = {3, 3};
  const auto weight = pack(prepare(context, three), f32(w));
  const auto four = prepare(context, experts(QTURN_M_CONTIGUOUS, QTURN_MXFP4));
  Run other(four, 37, kN, x);
  other.args.weight = weight.get();
  sizes = {5, 5, 20, 30};
  other.args.group_ends = sizes.data();
  CHECK(qturn_run(four.get(), &other.args) == QTURN_WRONG_OPERAND);
}
