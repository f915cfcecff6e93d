// Quantisers that round by sm_100a's own instruction, simulated as the documents have it: the
// reference's bits, and means that are those of eight random bits.
#include "tests/simulated/blackwell.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

const Target kChip = *parse_target("sm_100a");

Problem rounded(DType type, std::int32_t g, ScaleRule rule, Copies copies, Layout layout) {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::wgrad;  // any sizes
  p.m = p.k = {0, 4096};
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.rotation = g;
  p.signs = g > 0 ? Signs::per_call : Signs::none;
  p.scale_rule = rule;
  p.a_rounding = Rounding::sr_cvt_rs;
  p.biased = BiasedRounding::allowed;
  p.copies = copies;
  p.d_layout = layout;
  return p;
}

// Mostly ordinary values; some blocks of zeros, of the grid's values, tiny, or with a NaN.
std::vector<float> mixed(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  std::uint32_t kind = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i % 32 == 0) kind = static_cast<std::uint32_t>(random() % 12);
    out[i] = kind == 0                  ? (random() % 2 ? -0.0f : 0.0f)
             : kind == 1                ? static_cast<float>(random() % 13) * 0.5f - 3.0f
             : kind == 2                ? std::ldexp(normal(random), -120)
             : kind == 3 && i % 32 == 9 ? std::numeric_limits<float>::quiet_NaN()
                                        : normal(random);
  }
  return out;
}

struct Copied {
  Memory codes, scales;
  qt_tensor tensor;
  Copied(Device& on, std::int64_t rows, std::int64_t k, Layout layout)
      : codes(on, operand_bytes(layout, rows, k).codes),
        scales(on, operand_bytes(layout, rows, k).scales),
        tensor{codes.data(), scales.data(), k, k / 32, 0, 0} {}
  std::int64_t wrong(const Quantized& want, Layout layout) const {
    const auto got = codes.download(), bytes = scales.download();
    std::int64_t count = 0;
    for (std::size_t i = 0; i < want.codes.size(); ++i) count += got[i] != want.codes[i];
    const auto tiles = layout == Layout::plain ? want.scales : tiles_128x4(want, 0);
    for (std::int64_t row = 0; row < want.rows; ++row)
      for (std::int64_t block = 0; block < want.k / 32; ++block) {
        const auto at = layout == Layout::plain
                            ? row * (want.k / 32) + block
                            : (row / 128 * ceil_div(want.k / 32, 4) + block / 4) * 512 +
                                  row % 32 * 16 + row / 32 % 4 * 4 + block % 4;
        count += bytes[static_cast<std::size_t>(at)] != tiles[static_cast<std::size_t>(at)];
      }
    return count;
  }
};

void run_rounded(Device& on, const Problem& p, const qt_args& args) {
  const Family& family = cuda::quantize_cvt_rs();
  REQUIRE(family.refuses(p, kChip) == "");
  const auto v = family.default_variant(p, kChip);
  on.rotate_schedule();
  require(on.kernel(family.emit(p, kChip, v), family.name())
              .launch(family.launch(p, v, args, 4), args, on.stream()));
  on.synchronize();
}

qt_args arguments_of(const Memory& in, std::int64_t m, std::int64_t k) {
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = 1;
  args.a = {in.data(), nullptr, k, 0, 0, 0};
  args.noise_seed = 0x1234567890abcdefull;
  args.sign_seed = 77;
  args.stream = 5;
  args.operand = 1;
  return args;
}

}  // namespace

TEST_CASE("simulated cvt.rs quantisers give the reference's bits") {
  Device& on = sm100();
  using enum ScaleRule;
  auto squares = rounded(DType::bf16, 0, rceil, Copies::both, Layout::plain);
  squares.scale_block = ScaleBlock::b32x32;
  std::uint32_t seed = 1;
  for (const auto& p : {rounded(DType::bf16, 32, rceil, Copies::rows, Layout::scales_128x4),
                        rounded(DType::f32, 64, rceil, Copies::both, Layout::plain),
                        rounded(DType::f16, 128, ts34, Copies::columns, Layout::plain),
                        rounded(DType::f32, 0, quest, Copies::rows, Layout::plain), squares})
    for (const auto& [m, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 32}, {70, 264}, {33, 576}}) {
      INFO(p.key(), " m=", m, " k=", k);
      auto x = mixed(m * k, seed++);
      const Memory in(on, stored(p.a_type, x));
      const auto unit = padding_unit(p);
      const Copied rows(on, m, round_up(k, unit), p.d_layout),
          columns(on, k, round_up(m, unit), p.d_layout);
      auto args = arguments_of(in, m, k);
      const bool by_rows = p.copies != Copies::columns, by_columns = p.copies != Copies::rows;
      args.d = by_rows ? rows.tensor : columns.tensor;
      args.d2 = columns.tensor;
      run_rounded(on, p, args);
      const auto spec = spec_of(p, p.a_rounding, args);
      if (by_rows) CHECK(rows.wrong(reference::quantize(x.data(), m, k, k, spec), p.d_layout) == 0);
      if (by_columns)
        CHECK(columns.wrong(reference::quantize_columns(x.data(), m, k, k, spec), p.d_layout) == 0);
    }
}

TEST_CASE("simulated cvt.rs quantisers round up as often as eight random bits say") {
  Device& on = sm100();
  const auto p = rounded(DType::f32, 0, ScaleRule::rceil, Copies::rows, Layout::plain);
  // 64 blocks of one value, 1 + n / 64 of a step of 0.5, under scale 1: P(up) = n / 64.
  const std::int64_t rows = 64, k = 512;
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = i % 32 == 0 ? 6.0f : 1.0f + static_cast<float>(i / k) / 128.0f;
  const Memory in(on, stored(DType::f32, x));
  const Copied out(on, rows, k, Layout::plain);
  auto args = arguments_of(in, rows, k);
  args.d = out.tensor;
  constexpr int kDraws = 8;
  std::vector<double> ups(rows, 0.0);
  for (int draw = 0; draw < kDraws; ++draw) {
    args.noise_seed = 1000 + static_cast<std::uint64_t>(draw);
    run_rounded(on, p, args);
    const auto codes = out.codes.download();
    for (std::int64_t i = 0; i < rows * k; ++i) {
      if (i % 32 == 0) continue;
      const auto byte = codes[static_cast<std::size_t>(i / 2)];
      const int code = i % 2 == 0 ? byte & 15 : byte >> 4;
      REQUIRE((code == 2 || code == 3));
      ups[static_cast<std::size_t>(i / k)] += code == 3;
    }
  }
  const double each = kDraws * k * 31 / 32;
  for (std::int64_t row = 0; row < rows; ++row) {
    const double wanted = static_cast<double>(row) / 64;
    INFO("P(up) = ", wanted);
    // Five deviations of a binomial.
    CHECK(std::fabs(ups[static_cast<std::size_t>(row)] / each - wanted) <=
          5 * std::sqrt(wanted * (1 - wanted) / each));
  }
}

TEST_CASE("roundings of hardware are of the devices that have them, and of no other family") {
  auto p = rounded(DType::bf16, 32, ScaleRule::rceil, Copies::rows, Layout::plain);
  for (const auto* name : {"sm_100a", "sm_103a"}) {
    const auto plan = default_plan(p, *parse_target(name));
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    CHECK(plan->steps.front().variant.family == "cuda_quantize_cvt_rs");
  }
  for (const auto* name : {"sm_100f", "sm_103f", "sm_120a", "sm_90a", "gfx950", "x86-64-v4"}) {
    const auto plan = default_plan(p, *parse_target(name));
    CHECK(plan.status().code() == Code::not_supported);
    CHECK_MESSAGE(plan.status().message().find("sm_100a and sm_103a") != std::string::npos,
                  plan.status().message());
    CHECK(plan.status().message().find("use sr16") != std::string::npos);
  }
  CHECK(default_plan(p, *parse_target("sm_100f")).status().message().find("QTURN_TARGET=sm_100a") !=
        std::string::npos);
  p.a_rounding = Rounding::sr_cvt_scalef32;
  CHECK(default_plan(p, *parse_target("gfx950"))->steps.front().variant.family ==
        "hip_quantize_cvt_scalef32");
  CHECK(default_plan(p, kChip).status().message().find("gfx950 alone") != std::string::npos);

  // A plan that names another family's kernel is refused, whoever wrote it down.
  p.a_rounding = Rounding::sr_cvt_rs;
  auto software = p;
  software.a_rounding = Rounding::sr16;
  const auto other = default_plan(software, kChip);
  REQUIRE(other.ok());
  CHECK(other->steps.front().variant.family == "cuda_quantize");
  CHECK(check_plan(p, kChip, *other).code() == Code::not_supported);

  // Operands of products and their results, too.
  Problem product;
  product.op = Op::gemm_quantize;
  product.role = Role::fprop;
  product.m = {1, 64};
  product.n = product.k = Extent::exactly(256);
  product.a_type = product.b_type = DType::bf16;
  product.d_type = DType::mxfp4;
  product.rotation = 32;
  product.d_rounding = product.b_rounding = Rounding::sr_cvt_rs;
  const auto plan = default_plan(product, kChip);
  REQUIRE_MESSAGE(plan.ok(), plan.status().message());
  for (const auto& step : plan->steps) {
    const bool by_instruction =
        step.kind == StepKind::quantize_b || step.kind == StepKind::quantize_d;
    CHECK((step.variant.family == "cuda_quantize_cvt_rs") == by_instruction);
  }
}
