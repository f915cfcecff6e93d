// Activations, kept pre-activations, derivatives, quantised results, gradients of biases and
// prologues through the C interface: each against the same thing done in separate calls.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/runtime/api.hpp"

using namespace quarterturn::api;

namespace {

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}

// D of a problem over random operands; z too where the problem keeps it.
struct Result {
  std::vector<float> d, z;
};
Result multiply(const Context& context, qturn_problem problem, int64_t m, int64_t columns,
                const std::vector<float>& a, const std::vector<float>& b,
                const std::vector<float>* aux = nullptr) {
  const auto plan = prepare(context, problem);
  Run run(plan, m, columns, a);
  Result out;
  out.z.resize(static_cast<std::size_t>(m * problem.n.hi), std::nanf(""));
  run.args.b = f32(b);
  if (problem.pre_activation == QTURN_PRE_ACTIVATION_KEPT) run.args.z = f32(out.z);
  if (aux) run.args.aux = aux->data();
  REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
  out.d = run.d;
  return out;
}

void check_near(const std::vector<float>& now, const std::vector<double>& wanted) {
  REQUIRE(now.size() == wanted.size());
  for (std::size_t i = 0; i < now.size(); ++i)
    if (!(std::fabs(now[i] - wanted[i]) <= 1e-5 * (std::fabs(wanted[i]) + 1e-3)))
      FAIL_CHECK(i << ": " << now[i] << ", wanted " << wanted[i]);
}

qturn_status prepare_status(const Context& context, const qturn_problem& problem) {
  qturn_plan* out = nullptr;
  const auto status = qturn_prepare(context.get(), &problem, &out);
  const Plan plan(out);
  return status;
}

// MXFP4 results of one call.
struct Codes {
  std::vector<unsigned char> codes, scales;
  qturn_operand operand{};
  Codes(const Plan& plan, int32_t which) {
    REQUIRE(qturn_plan_operand(plan.get(), which, &operand) == QTURN_OK);
    codes.resize(operand.data_bytes);
    scales.resize(operand.scales_bytes);
    operand.data = codes.data();
    operand.scales = scales.data();
  }
  bool operator==(const Codes& other) const {
    return codes == other.codes && scales == other.scales;
  }
};

}  // namespace

TEST_CASE("qturn_run.activations are those of the z that is kept") {
  const Options options;
  const auto context = make_context(options);
  const auto a = values(9 * 64, 1), b = values(48 * 64, 2);
  auto problem = linear(16, 48, 64);
  const auto plain = multiply(context, problem, 9, 48, a, b).d;
  problem.pre_activation = QTURN_PRE_ACTIVATION_KEPT;
  for (const int32_t epilogue :
       {QTURN_EPILOGUE_GELU, QTURN_EPILOGUE_SWIGLU_SPLIT, QTURN_EPILOGUE_SWIGLU_INTERLEAVED}) {
    problem.epilogue = epilogue;
    const bool gated = epilogue != QTURN_EPILOGUE_GELU;
    const auto got = multiply(context, problem, 9, gated ? 24 : 48, a, b);
    CHECK(got.z == plain);
    std::vector<double> wanted;
    for (std::size_t r = 0; r < 9; ++r)
      for (std::size_t i = 0; i < (gated ? 24u : 48u); ++i) {
        const bool split = epilogue == QTURN_EPILOGUE_SWIGLU_SPLIT;
        const auto* z = got.z.data() + r * 48;
        wanted.push_back(!gated  ? gelu(z[i])
                         : split ? silu(z[i]) * z[24 + i]
                                 : silu(z[2 * i]) * z[2 * i + 1]);
      }
    check_near(got.d, wanted);
  }
}

TEST_CASE("qturn_run.derivatives multiply what reaches them") {
  const Options options;
  const auto context = make_context(options);
  const auto a = values(5 * 64, 3), b = values(20 * 64, 4), aux = values(5 * 40, 5);
  auto problem = linear(8, 20, 64);
  const auto z = multiply(context, problem, 5, 20, a, b).d;
  for (const int32_t epilogue : {QTURN_EPILOGUE_DSWIGLU, QTURN_EPILOGUE_DSWIGLU_INTERLEAVED}) {
    problem.epilogue = epilogue;
    const auto got = multiply(context, problem, 5, 40, a, b, &aux).d;
    std::vector<double> wanted(5 * 40);
    for (std::size_t r = 0; r < 5; ++r)
      for (std::size_t i = 0; i < 20; ++i) {
        const bool split = epilogue == QTURN_EPILOGUE_DSWIGLU;
        const auto gate = r * 40 + (split ? i : 2 * i), value = split ? gate + 20 : gate + 1;
        wanted[gate] = double(z[r * 20 + i]) * aux[value] * silu_slope(aux[gate]);
        wanted[value] = double(z[r * 20 + i]) * silu(aux[gate]);
      }
    check_near(got, wanted);
  }
}

TEST_CASE("qturn_run.gemm_quantize gives the codes of quantize over its binary32 result") {
  const Options options;
  const auto context = make_context(options);
  const auto a = values(40 * 64, 6), b = values(128 * 64, 7);
  for (const int32_t rounding : {QTURN_RNE, QTURN_SR16}) {
    auto problem = linear(64, 128, 64);
    problem.epilogue = QTURN_EPILOGUE_SWIGLU_SPLIT;
    const auto d = multiply(context, problem, 40, 64, a, b).d;

    qturn_problem quantize;
    qturn_problem_init(&quantize);
    quantize.op = QTURN_OP_QUANTIZE;
    quantize.role = QTURN_FPROP;
    quantize.m = {0, 64};
    quantize.k = {64, 64};
    quantize.a_type = QTURN_F32;
    quantize.d_type = QTURN_MXFP4;
    quantize.copies = QTURN_COPIES_BOTH;
    quantize.rotation = 32;
    quantize.a_rounding = rounding;
    const auto separate = prepare(context, quantize);
    Codes rows(separate, QTURN_OPERAND_D), columns(separate, QTURN_OPERAND_D2);
    Run apart(separate, 40, 64, d);
    apart.args.d = rows.operand;
    apart.args.d2 = columns.operand;
    apart.args.noise_seed = 11;
    apart.args.noise_operand = 2;
    REQUIRE_MESSAGE(qturn_run(separate.get(), &apart.args) == QTURN_OK, qturn_last_error());

    problem.op = QTURN_OP_GEMM_QUANTIZE;
    problem.d_type = QTURN_MXFP4;
    problem.copies = QTURN_COPIES_BOTH;
    problem.d_rounding = rounding;
    problem.pre_activation = QTURN_PRE_ACTIVATION_KEPT;
    const auto plan = prepare(context, problem);
    Codes fused_rows(plan, QTURN_OPERAND_D), fused_columns(plan, QTURN_OPERAND_D2);
    Run run(plan, 40, 64, a);
    std::vector<float> z(40 * 128, std::nanf(""));
    run.args.b = f32(b);
    run.args.d = fused_rows.operand;
    run.args.d2 = fused_columns.operand;
    run.args.z = f32(z);
    run.args.noise_seed = 11;
    REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
    CHECK(fused_rows == rows);
    CHECK(fused_columns == columns);
    CHECK(std::none_of(z.begin(), z.end(), [](float x) { return std::isnan(x); }));
  }
}

TEST_CASE("qturn_run.gradients of biases are sums over tokens, zeros for none") {
  const Options options;
  const auto context = make_context(options);
  const auto x = values(70 * 64, 8);
  const auto check = [](const std::vector<float>& sums, const std::vector<float>& rows,
                        std::size_t count, std::size_t columns) {
    for (std::size_t c = 0; c < columns; ++c) {
      double wanted = 0;
      for (std::size_t r = 0; r < count; ++r) wanted += double(rows[r * columns + c]);
      CHECK(sums[c] == doctest::Approx(wanted).epsilon(1e-5));
    }
  };
  qturn_problem quantize;
  qturn_problem_init(&quantize);
  quantize.op = QTURN_OP_QUANTIZE;
  quantize.role = QTURN_DGRAD;
  quantize.m = {0, 128};
  quantize.k = {64, 64};
  quantize.a_type = QTURN_F32;
  quantize.d_type = QTURN_MXFP4;
  quantize.bias_gradient = QTURN_BIAS_GRADIENT_F32;
  const auto plan = prepare(context, quantize);
  for (const int64_t m : {70, 1, 0}) {
    Codes codes(plan, QTURN_OPERAND_D);
    std::vector<float> sums(64, std::nanf(""));
    Run run(plan, m, 64, x);
    run.args.d = codes.operand;
    run.args.bias_gradient = sums.data();
    REQUIRE_MESSAGE(qturn_run(plan.get(), &run.args) == QTURN_OK, qturn_last_error());
    check(sums, x, static_cast<std::size_t>(m), 64);
  }
  // dW [32, 64] = dY^T X over 70 tokens.
  auto wgrad = linear(0, 64, 0);
  wgrad.role = QTURN_WGRAD;
  wgrad.m = {32, 32};
  wgrad.k = {0, 128};
  wgrad.a_major = wgrad.b_major = QTURN_MAJOR_ROWS;
  wgrad.bias_gradient = QTURN_BIAS_GRADIENT_F32;
  const auto product = prepare(context, wgrad);
  const auto dy = values(70 * 32, 9);
  for (const int64_t tokens : {70, 0}) {
    Run run(product, 32, 64, dy);
    std::vector<float> sums(32, std::nanf(""));
    run.args.m = 32;
    run.args.k = tokens;
    run.args.b = f32(x);
    run.args.bias_gradient = sums.data();
    REQUIRE_MESSAGE(qturn_run(product.get(), &run.args) == QTURN_OK, qturn_last_error());
    check(sums, dy, static_cast<std::size_t>(tokens), 32);
  }
}

TEST_CASE("qturn_run.quantize normalises first") {
  const Options options;
  const auto context = make_context(options);
  const auto x = values(6 * 128, 10), weight = values(128, 11);
  qturn_problem problem;
  qturn_problem_init(&problem);
  problem.op = QTURN_OP_QUANTIZE;
  problem.m = {0, 8};
  problem.k = {128, 128};
  problem.a_type = QTURN_F32;
  problem.d_type = QTURN_MXFP4;
  problem.rotation = 32;
  const auto plain = prepare(context, problem);
  problem.prologue = QTURN_PROLOGUE_RMSNORM;
  const auto plan = prepare(context, problem);
  // Powers of two go through a quantiser unchanged: rows of one magnitude are normalised to 1.
  const std::vector<float> ones(6 * 128, 1.0f), fours(6 * 128, 4.0f);
  Codes wanted(plain, QTURN_OPERAND_D), now(plan, QTURN_OPERAND_D);
  Run of_ones(plain, 6, 128, ones), of_fours(plan, 6, 128, fours);
  of_ones.args.d = wanted.operand;
  of_fours.args.d = now.operand;
  CHECK(qturn_run(plan.get(), &of_fours.args) == QTURN_INVALID_ARGUMENT);  // no weights
  const std::vector<float> unit(128, 1.0f);
  of_fours.args.norm_weight = unit.data();
  of_fours.args.epsilon = 0;
  REQUIRE(qturn_run(plain.get(), &of_ones.args) == QTURN_OK);
  REQUIRE_MESSAGE(qturn_run(plan.get(), &of_fours.args) == QTURN_OK, qturn_last_error());
  CHECK(now == wanted);
}

TEST_CASE("qturn_prepare.what a combination does not mean is refused") {
  const Options options;
  const auto context = make_context(options);
  const auto refused = [&](auto change) {
    auto problem = linear(8, 48, 64);
    change(problem);
    CHECK(prepare_status(context, problem) == QTURN_INVALID_PROBLEM);
    CHECK(std::strlen(qturn_last_error()) > 20);
  };
  refused([](qturn_problem& p) { p.pre_activation = QTURN_PRE_ACTIVATION_KEPT; });
  refused([](qturn_problem& p) {
    p.epilogue = QTURN_EPILOGUE_SWIGLU_SPLIT;
    p.n = {47, 47};
  });
  refused([](qturn_problem& p) { p.prologue = QTURN_PROLOGUE_RMSNORM; });
  refused([](qturn_problem& p) { p.bias_gradient = QTURN_BIAS_GRADIENT_F32; });
  refused([](qturn_problem& p) { p.d_rounding = QTURN_SR16; });
  refused([](qturn_problem& p) { p.c_type = QTURN_MXFP4; });

  // aux where nothing reads it, and none where it is needed.
  const auto a = values(4 * 64, 1), b = values(48 * 64, 2);
  auto problem = linear(8, 48, 64);
  const auto plain = prepare(context, problem);
  Run run(plain, 4, 48, a);
  run.args.b = f32(b);
  run.args.aux = a.data();
  CHECK(qturn_run(plain.get(), &run.args) == QTURN_INVALID_ARGUMENT);
  problem.epilogue = QTURN_EPILOGUE_DGELU;
  const auto derivative = prepare(context, problem);
  Run missing(derivative, 4, 48, a);
  missing.args.b = f32(b);
  CHECK(qturn_run(derivative.get(), &missing.args) == QTURN_INVALID_ARGUMENT);
}
