// Noise of stochastic rounding through the C interface: when it repeats, and when it does not.
#include "tests/runtime/api.hpp"

using namespace quarterturn;
using namespace quarterturn::api;

namespace {

struct Noise {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
};

// The product of 8 rows of A, quantised by stochastic rounding on the way, and a B of small
// integers.
std::vector<float> product(const Plan& plan, const Noise& value, const Noise* words = nullptr) {
  static const auto a = values(8 * 64, 1), b = values(16 * 64, 2);
  Run run(plan, 8, 16, a);
  run.args.b = f32(b);
  run.args.noise_seed = value.seed;
  run.args.noise_stream = value.stream;
  if (words) {
    run.args.noise_seed_at = &words->seed;
    run.args.noise_stream_at = &words->stream;
  }
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
  return run.d;
}

}  // namespace

TEST_CASE("qturn_run.noise repeats with its seed and stream, and only then") {
  const Options options;
  const auto context = make_context(options);
  auto problem = linear(16, 16, 64);
  problem.a_rounding = QTURN_SR16;
  const auto plan = prepare(context, problem);
  const auto first = product(plan, {7, 0});
  CHECK(product(plan, {7, 0}) == first);
  CHECK(product(plan, {7, 1}) != first);
  CHECK(product(plan, {8, 0}) != first);
}

TEST_CASE("qturn_run.noise words are read when the work runs") {
  const Options options;
  const auto context = make_context(options);
  auto problem = linear(16, 16, 64);
  problem.a_rounding = problem.b_rounding = QTURN_SR16;
  const auto plan = prepare(context, problem);
  Noise words{7, 0};
  const auto first = product(plan, {1, 40}, &words);
  CHECK(first == product(plan, {7, 40}));
  words = {9, 2};
  CHECK(product(plan, {1, 40}, &words) == product(plan, {9, 42}));
  words = {7, 0xffffffffu};  // the sum wraps
  CHECK(product(plan, {1, 40}, &words) == product(plan, {7, 39}));
}

TEST_CASE("context.folders may be named in any script") {
  Options options;
  const auto code = options.folder.file("José 漢字 'q'");
  const auto database = options.folder.file("données.db");
  options.c.code_cache = code.c_str();
  options.c.database = database.c_str();
  const auto context = make_context(options);
  const auto plan = prepare(context, dequantizing());
  int32_t match = -1;
  REQUIRE(qturn_plan_match(plan.get(), &match) == QTURN_OK);
  CHECK(match == QTURN_MATCH_HEURISTIC);  // compiled, not the prebuilt kernel
  CHECK(options.logged.count("compiler") == 0);
}
