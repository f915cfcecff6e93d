// Products of gfx950's matrix cores that quantise their D where they compute it, simulated: bit by
// bit the reference's codes and scales of the same product's binary32 D.
#include "tests/hip/simulated_runs.hpp"
#include "tests/simulated/unquantized.hpp"

using namespace hip_test;

namespace {

using Values = std::initializer_list<std::pair<const std::string, std::int64_t>>;

struct Quantizing {
  std::int64_t m, n, k;
  Epilogue epilogue = Epilogue::none;
  std::int32_t rotation = 32;
  ScaleRule rule = ScaleRule::rceil;
  Rounding rounding = Rounding::rne;
  Layout layout = Layout::aiter;
  Copies copies = Copies::rows;
};

Problem quantizing_problem(const Quantizing& q) {
  auto p = gemm_problem({0, 512}, Extent::exactly(q.n), {0, 4096}, DType::mxfp4);
  p.op = Op::gemm_quantize;
  p.role = Role::wgrad;  // any sizes
  p.d_layout = q.layout;
  p.copies = q.copies;
  p.rotation = q.rotation;
  p.signs = q.rotation > 0 ? Signs::per_call : Signs::none;
  p.scale_rule = q.rule;
  p.d_rounding = q.rounding;
  p.biased = BiasedRounding::allowed;
  p.epilogue = q.epilogue;
  p.bias = Bias::per_column;
  p.accumulate = Accumulate::accumulate;
  return p;
}

std::vector<unsigned char> addends(std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> out(static_cast<std::size_t>(count * 4));
  for (std::int64_t i = 0; i < count; ++i)
    put(DType::f32, &out[static_cast<std::size_t>(i * 4)],
        static_cast<float>(static_cast<int>(random() % 64) - 32) / 8.0f);
  return out;
}

void check_quantizing(const Quantizing& q, Values values) {
  const auto& family = hip::gemm_mfma_scale();
  const Problem p = quantizing_problem(q);
  REQUIRE(validate(p).message() == "");
  const auto v = with(family, p, values);
  INFO(v.text(), " ", p.key(), " m=", q.m, " k=", q.k);
  REQUIRE(family.check(p, kTarget, v).message() == "");
  const auto a = cuda_test::random_operand(q.m, q.k, Data::forward, 1);
  const auto b = cuda_test::random_operand(q.n, q.k, Data::forward, 2);
  const OperandMemory a_memory(a, 0, 0, family.a_layout(p, v)),
      b_memory(b, 0, 0, family.b_layout(p, v));
  const auto aux_width = aux_columns(q.epilogue, q.n);
  const Memory c(addends(q.m * q.n, 3)), bias(addends(q.n, 4)), aux(addends(q.m * aux_width, 5));
  const auto columns = output_columns(q.epilogue, q.n), length = round_up(columns, padding_unit(p));
  qt_args args{};
  args.m = q.m;
  args.n = q.n;
  args.k = q.k;
  args.batch = args.groups = 1;
  args.a = a_memory.tensor;
  args.b = b_memory.tensor;
  args.c = {c.data(), nullptr, q.n, 0, 0, 0};
  args.aux = {aux.data(), nullptr, aux_width, 0, 0, 0};
  args.bias = bias.data();
  args.alpha = 0.0625f;
  args.beta = 0.5f;
  args.noise_seed = 0x1234567890abcdefull;
  args.sign_seed = 77;
  args.stream = 5;
  args.operand = 2;
  args.row0 = 32;
  const Memory workspace(std::vector<unsigned char>(
      static_cast<std::size_t>(family.workspace_bytes(p, v, {q.m, q.n, q.k})), 0xff));
  args.workspace = workspace.data();

  // D in binary32, sums being exact in any order, and what the reference makes of it.
  const auto at = [](const Memory& from, std::int64_t i) {
    return cuda_test::as_float(DType::f32, from.data() + i * 4);
  };
  std::vector<float> d;
  for (std::int64_t i = 0; i < q.m; ++i) {
    std::vector<float> z;
    for (std::int64_t j = 0; j < q.n; ++j) {
      const double sum = reference::gemm_at(a, b, i, j).value;
      REQUIRE(double(static_cast<float>(sum)) == sum);
      float x = args.alpha * static_cast<float>(sum);
      x += args.beta * at(c, i * q.n + j);
      x += at(bias, j);
      z.push_back(x);
    }
    const auto row =
        unquantized_row(q.epilogue, z, reinterpret_cast<const float*>(aux.data()) + i * aux_width);
    d.insert(d.end(), row.begin(), row.end());
  }
  auto spec = cuda_test::spec_of(p, p.d_rounding, args);
  spec.row0 = args.row0;
  const auto want = reference::quantize(d.data(), q.m, columns, columns, spec);
  REQUIRE(want.k == length);

  const auto codes_of = [&](const Quantized& of) {
    return q.layout == Layout::aiter_16x16 ? panels(of) : of.codes;
  };
  const auto scales_of = [&](const Quantized& of) {
    return q.layout == Layout::plain ? of.scales : shuffled(of);
  };
  // Beside rows, row0 is where this call's lie along the transposed copy.
  auto turned = spec;
  turned.row0 = 0;
  turned.k0 = args.row0;
  turned.k_global = q.m;
  const auto want_turned = reference::quantize_columns(d.data(), q.m, columns, columns, turned);
  const bool both = q.copies == Copies::both;
  const std::vector<unsigned char> none, want_codes = codes_of(want), want_scales = scales_of(want),
                                         want_codes2 = both ? codes_of(want_turned) : none,
                                         want_scales2 = both ? scales_of(want_turned) : none;
  const Memory codes(want_codes.size()), scales(want_scales.size()), codes2(want_codes2.size()),
      scales2(want_scales2.size());
  args.d = {codes.data(), scales.data(), length, length / 32, 0, 0};
  args.d2 = {codes2.data(), scales2.data(), want_turned.k, want_turned.k / 32, 0, 0};
  for (const auto& schedule : kSchedules) {
    for (const Memory* memory : {&codes, &scales, &codes2, &scales2})
      if (memory->bytes() > 0) std::memset(memory->data(), 0xff, memory->bytes());
    run(family, p, v, args, schedule);
    INFO("seed ", schedule.seed);
    const auto differs = [](const Memory& got, const std::vector<unsigned char>& wanted) {
      return !wanted.empty() && std::memcmp(got.data(), wanted.data(), wanted.size()) != 0;
    };
    CHECK(!differs(codes, want_codes));
    CHECK(!differs(scales, want_scales));
    CHECK(!differs(codes2, want_codes2));
    CHECK(!differs(scales2, want_scales2));
  }
}

}  // namespace

TEST_CASE("simulated hip products quantise what they compute") {
  using enum Epilogue;
  using enum ScaleRule;
  check_quantizing({40, 320, 256, none, 256, rceil, Rounding::sr16, Layout::plain},
                   {{"tile_m", 64}, {"tile_n", 256}, {"shape", 32}, {"splits", 2}});
  check_quantizing(
      {37, 192, 192, swiglu_split, 64, quest, Rounding::sr8, Layout::aiter, Copies::both},
      {{"tile_m", 64}, {"tile_n", 128}});
  // In two passes.
  check_quantizing({150, 192, 128, dswiglu, 32, even, Rounding::sr16, Layout::aiter_16x16},
                   {{"tile_m", 128}, {"tile_n", 128}});
}
