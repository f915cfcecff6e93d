// The families of packed weights on a GPU: with activations as they are, and with quantised ones,
// for few and many tokens.
#include <doctest/doctest.h>

#include <span>

#include "tests/cuda/gemm_calls.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

Problem weight_only_problem(const Family& family, const Call& c, std::int64_t most_tokens) {
  auto p = problem_of(family, c);
  p.m = {0, most_tokens};
  p.k.lo = 1;
  p.a_type = DType::bf16;
  return p;
}

// Activations of any stride and alignment, infinity among them, 0xff behind every row. On few units
// a block's work goes round its ring of stages.
void check_weight_only(Device* device, const Family& family, const Problem& p, const Variant& v,
                       const Call& c, std::int64_t ld, std::int64_t offset, std::int64_t units,
                       std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  DenseRows a{c.m, c.k, std::vector<float>(static_cast<std::size_t>(c.m * c.k))};
  for (auto& x : a.x) x = normal(random);
  if (c.m > 5) a.x[static_cast<std::size_t>(5 * c.k + 7)] = std::numeric_limits<float>::infinity();
  const auto bytes = stored(DType::bf16, a.x);
  std::vector<unsigned char> view(static_cast<std::size_t>((offset + c.m * ld) * 2), 0xff);
  for (std::int64_t i = 0; i < c.m; ++i)
    std::copy_n(bytes.begin() + i * c.k * 2, c.k * 2, view.begin() + (offset + i * ld) * 2);
  auto b = random_operand(c.n, c.k, c.data, seed + 50);
  if (c.n > 3) {
    b.scales[static_cast<std::size_t>(2 * (b.k / 32))] = 255;
    // From the smallest scale to one whose sums still fit binary32.
    for (std::int64_t block = 0; block < b.k / 32; ++block)
      b.scales[static_cast<std::size_t>(b.k / 32 + block)] =
          static_cast<std::uint8_t>(c.d_type == DType::f16 ? 120 + block % 3 : block * 31 % 235);
  }
  const auto size = bytes_of(c.d_type);
  const auto d_ld = c.n + c.extra;
  const bool adds = c.accumulate == Accumulate::accumulate;
  std::vector<unsigned char> old(static_cast<std::size_t>(c.m * d_ld * size), 0xff),
      bias(static_cast<std::size_t>(c.n * size));
  for (std::int64_t i = 0; adds && i < c.m; ++i)
    for (std::int64_t j = 0; j < c.n; ++j)
      put_float(c.d_type, &old[static_cast<std::size_t>((i * d_ld + j) * size)], normal(random));
  for (std::int64_t j = 0; j < c.n; ++j)
    put_float(c.d_type, &bias[static_cast<std::size_t>(j * size)], normal(random));
  const auto b_layout = family.b_layout(p, v);
  const DeviceOperand b_device(*device, b, b_layout);
  Memory a_device(*device, view), d(*device, old), bias_device(*device, bias),
      workspace(*device, family.workspace_bytes(p, v, {c.m, c.n, c.k, 1}));
  qt_args args{};
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.batch = 1;
  args.a = {a_device.data(offset * 2), nullptr, ld, 0, 0, 0};
  args.b = b_device.tensor;
  args.d = {d.data(), nullptr, d_ld, 0, 0, 0};
  args.c = args.d;
  args.alpha = 0.75f;
  args.beta = 0.5f;
  args.bias = bias_device.data();
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  device->run(family, p, v, args, units);
  const auto outcome =
      check_product(a, b, tensor_core_of(v),
                    {c.m, c.n, c.d_type, d_ld, args.alpha, args.beta, adds ? &old : nullptr,
                     c.bias == Bias::per_column ? &bias : nullptr},
                    d.download(), Layout::plain, b_layout);
  INFO(v.text(), " m=", c.m, " n=", c.n, " k=", c.k, " ld=", ld, " offset=", offset, " ",
       outcome.where);
  CHECK(outcome.worst <= 1.0);
}

const Call kWeightOnlyCalls[] = {
    {1, 5, 32, DType::f32},
    {7, 1000, 64},
    {129, 1, 96, DType::f32},
    {8, 1000, 576, DType::f32, Accumulate::overwrite, Bias::per_column},
    {16, 328, 2880, DType::bf16, Accumulate::accumulate, Bias::per_column, Data::forward, 3},
    {33, 130, 1504, DType::f32, Accumulate::accumulate},
    {1, 2048, 1824, DType::bf16, Accumulate::overwrite, Bias::per_column},
    {64, 300, 1824, DType::f16, Accumulate::overwrite, Bias::none, Data::forward, 5},
    {256, 192, 4096},
    {0, 96, 64},
};

const Call kSmallWeightOnlyCalls[] = {
    {129, 1, 96, DType::f32, Accumulate::accumulate},
    {16, 72, 928, DType::bf16, Accumulate::accumulate, Bias::per_column, Data::forward, 3},
    {40, 130, 672, DType::f16, Accumulate::overwrite, Bias::none, Data::forward, 5},
    {24, 60, 2080},
};

/// Of the legal ones that take most K a stage: copies run ahead of products by the least.
Variant fewest_stages(const Family& family, const Problem& p, const Target& t, const Variant& v) {
  for (const std::int64_t stages : {3, 4, 5, 6})
    for (const std::int64_t rounds : {2, 1}) {
      auto other = v;
      other.values["stages"] = stages;
      other.values["rounds"] = rounds;
      if (family.illegal(p, t, other).empty()) return other;
    }
  return v;
}

void check_weight_only_calls(const Family& family) {
  Device* device = device_or_skip();
  if (!device) return;
  const bool few = family.name() == "cuda_gemm_packed_bf16";
  struct Case {
    Problem p;
    Variant v, other;
    Call c;
  };
  std::vector<Case> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const Call& c :
       device->simulated() ? std::span<const Call>(kSmallWeightOnlyCalls) : kWeightOnlyCalls) {
    const auto most = c.m <= 8 ? 8 : c.m <= 16 ? 16 : c.m <= 64 ? 64 : 256;
    const auto p = weight_only_problem(family, c, few ? most : 8192);
    if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
      return;
    }
    const auto v = family.default_variant(p, device->target());
    cases.push_back({p, v, few ? fewest_stages(family, p, device->target(), v) : v, c});
    for (const auto& one : {v, cases.back().other})
      sources.emplace_back(family.emit(p, device->target(), one), one.text());
  }
  compile_all(*device, sources);
  std::uint32_t seed = 1;
  for (const auto& [p, v, other, c] : cases) {
    check_weight_only(device, family, p, v, c, c.k, 0, 0, ++seed);
    // Rows apart and still aligned, at pairs of elements, or at odd places.
    if (seed % 6 == 0)
      check_weight_only(device, family, p, other, c, c.k + 24, 8, 1, ++seed);
    else if (seed % 6 == 2)
      check_weight_only(device, family, p, other, c, c.k + 6, 2, 2, ++seed);
    else
      check_weight_only(device, family, p, other, c, c.k + 3, 1, 1, ++seed);
  }
}

}  // namespace

TEST_CASE("gpu.gemm_mma takes activations in bf16 as they are") {
  check_weight_only_calls(cuda::gemm_mma());
}
TEST_CASE("gpu.gemm_packed_bf16 takes activations as they are") {
  check_weight_only_calls(cuda::gemm_packed_bf16());
}
TEST_CASE("gpu.gemm_packed_tiles_bf16 takes activations as they are") {
  check_weight_only_calls(cuda::gemm_packed_tiles_bf16());
}

namespace {

struct PackedCase {
  Call call;
  std::int64_t most_tokens;  // of the problem
};

// Permuted weights: rows of both operands that do not fit are the family's own to compute.
void check_packed(const Family& family, std::span<const PackedCase> all) {
  Device* device = device_or_skip();
  if (!device) return;
  const auto problem = [&family](const PackedCase& c) {
    auto p = problem_of(family, c.call);
    p.m = {0, c.most_tokens};
    p.k.lo = 1;
    return p;
  };
  device->set_rounds(family.name() == "cuda_gemm_packed" ? 5 : 1);
  std::vector<std::tuple<Problem, Variant, Call>> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const auto& c : all) {
    // In int8 the text is that of E5M2, so it has fewer kernels there.
    const auto number = static_cast<std::size_t>(&c - all.data());
    if (family.name().ends_with("int8") && is_left_out(*device, number, 2)) continue;
    const auto p = problem(c);
    if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
      return;
    }
    // The default, and in turn each other value of a parameter.
    std::vector<Variant> others;
    for (const auto& axis : family.parameters(p, device->target()))
      for (const auto value : axis.values) {
        const auto v = with(family, p, device->target(), {{axis.name, value}});
        if (value != axis.values.front() && family.illegal(p, device->target(), v).empty())
          others.push_back(v);
      }
    const auto& other = others[static_cast<std::size_t>(&c - all.data()) % others.size()];
    for (const auto& v : {family.default_variant(p, device->target()), other}) {
      if (device->simulated() && (&c - all.data()) % 2 == (v == other ? 0 : 1)) continue;
      cases.emplace_back(p, v, c.call);
      sources.emplace_back(family.emit(p, device->target(), v), v.text());
    }
  }
  compile_all(*device, sources);
  std::uint32_t seed = 1;
  for (const auto& [p, v, c] : cases) {
    Quantized a = random_operand(c.m, c.k, c.data, seed),
              b = random_operand(c.n, c.k, c.data, seed + 1);
    // Every other time: rows that do not fit, and NaN.
    if ((device->simulated() ? c.d_type != DType::bf16 : seed % 2 == 0) && c.k > 64 &&
        c.data == Data::forward) {
      widen_row(a, c.m - 1);
      for (std::int64_t row = 0; row < c.n; row += 75) widen_row(b, row);
      b.scales[static_cast<std::size_t>((c.n - 1) * (b.k / 32))] = 255;
    }
    const auto outcome = run(*device, family, p, v, c, a, b, seed);
    INFO(v.text(), " m=", c.m, " n=", c.n, " k=", c.k, " ", name_of(c.d_type), " ", outcome.where);
    CHECK(outcome.worst <= 1.0);
    if (c.data == Data::common_sign) CHECK(std::abs(outcome.shrink) <= 1e-5);
    seed += 3;
  }
  // Misses are counted, where elements have a window: a row of A, and one of the weights.
  if (is_exact(family)) return;
  const Call c{5, 200, 256};
  const auto p = problem({c, 8});
  const auto v = family.default_variant(p, device->target());
  Quantized a = random_operand(c.m, c.k, Data::forward, 5),
            b = random_operand(c.n, c.k, Data::forward, 6);
  widen_row(a, 2);
  widen_row(b, 77);
  const auto& kernel = device->kernel(family, p, v);
  const auto before = kernel.counter("quarterturn_stand_ins");
  REQUIRE_MESSAGE(before.ok(), before.status().message());
  const auto outcome = run(*device, family, p, v, c, a, b, 7);
  INFO(outcome.where);
  CHECK(outcome.worst <= 1.0);
  CHECK(*kernel.counter("quarterturn_stand_ins") - *before == 2 * device->runs_of_case());
}

}  // namespace

namespace {

constexpr PackedCase kFewTokens[] = {
    {{1, 5, 32}, 8},
    {{1, 1, 2880}, 8},
    {{7, 1000, 64, DType::f16}, 8},
    {{8, 1000, 1504, DType::f32, Accumulate::overwrite, Bias::per_column}, 8},
    {{1, 4096, 1824}, 8},
    {{16, 328, 2880, DType::bf16, Accumulate::overwrite, Bias::per_column, Data::forward, 3}, 16},
    {{13, 64, 16384, DType::f32, Accumulate::overwrite, Bias::none, Data::common_sign}, 16},
    {{32, 1408, 576, DType::bf16, Accumulate::accumulate}, 32},
    {{64, 1000, 1824, DType::f32}, 64},
    {{129, 520, 96, DType::f32, Accumulate::accumulate, Bias::per_column, Data::wide, 5}, 256},
    {{256, 192, 4096, DType::f16}, 256},
    {{0, 96, 64}, 16}};

constexpr PackedCase kFewTokensSmall[] = {
    {{1, 5, 32}, 8},
    {{9, 72, 12320, DType::bf16, Accumulate::overwrite, Bias::per_column, Data::forward, 3}, 16},
    {{60, 72, 1312, DType::f32}, 64},
    {{129, 136, 96, DType::f16, Accumulate::accumulate, Bias::per_column, Data::wide, 5}, 256},
    {{0, 96, 64}, 8}};

constexpr PackedCase kManyTokens[] = {
    {{1, 5, 32}, 8192},
    {{7, 1000, 64, DType::f16}, 8192},
    {{8191, 5, 96, DType::f32}, 8192},
    {{8191, 64, 32}, 8192},
    {{129, 1, 2880}, 8192},
    {{300, 1000, 576, DType::bf16, Accumulate::accumulate, Bias::per_column}, 8192},
    {{70, 1000, 96, DType::f32, Accumulate::accumulate, Bias::none, Data::forward, 1}, 8192},
    {{2000, 520, 1504, DType::f16, Accumulate::overwrite, Bias::per_column, Data::forward, 3},
     8192},
    {{257, 384, 1824, DType::f32, Accumulate::overwrite, Bias::per_column, Data::forward, 5}, 8192},
    {{128, 192, 16384, DType::f32, Accumulate::overwrite, Bias::none, Data::common_sign}, 8192},
    {{193, 256, 2048, DType::f32, Accumulate::overwrite, Bias::none, Data::wide}, 8192},
    {{0, 96, 64}, 8192}};

constexpr PackedCase kManyTokensSmall[] = {
    {{1, 5, 32}, 8192},
    {{130, 130, 576, DType::bf16, Accumulate::accumulate, Bias::per_column, Data::forward, 6},
     8192},
    {{65, 136, 1312, DType::f32, Accumulate::overwrite, Bias::none, Data::wide}, 8192},
    {{700, 72, 416, DType::f16, Accumulate::overwrite, Bias::per_column, Data::forward, 3}, 8192},
    {{0, 96, 64}, 8192}};

bool on_simulated_device() {
  std::string why;
  const Device* device = Device::find(why);
  return device && device->simulated();
}

void check_few_tokens(const Family& family) {
  check_packed(family,
               on_simulated_device() ? std::span<const PackedCase>(kFewTokensSmall) : kFewTokens);
}

void check_many_tokens(const Family& family) {
  check_packed(family,
               on_simulated_device() ? std::span<const PackedCase>(kManyTokensSmall) : kManyTokens);
}

}  // namespace

TEST_CASE("gpu.gemm_packed stays within its bound, and computes what does not fit") {
  check_few_tokens(cuda::gemm_packed());
}
TEST_CASE("gpu.gemm_packed_int8 stays within its bound, and computes what does not fit") {
  check_few_tokens(cuda::gemm_packed_int8());
}
TEST_CASE("gpu.gemm_packed_bf16 stays within its bound") {
  check_few_tokens(cuda::gemm_packed_bf16());
}
TEST_CASE("gpu.gemm_packed_tiles_bf16 stays within its bound") {
  check_many_tokens(cuda::gemm_packed_tiles_bf16());
}
TEST_CASE("gpu.gemm_packed_tiles stays within its bound, and computes what does not fit") {
  check_many_tokens(cuda::gemm_packed_tiles());
}
TEST_CASE("gpu.gemm_packed_tiles_int8 stays within its bound, and computes what does not fit") {
  check_many_tokens(cuda::gemm_packed_tiles_int8());
}
