// The GEMM families on a GPU against exact products of the same codes, on awkward shapes, with
// every epilogue; NaN blocks; and the exact stand-in for rows that do not fit their window.
#include <doctest/doctest.h>

#include "tests/cuda/device.hpp"
#include "tests/cuda/product_check.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

Device* device_or_skip() {
  std::string why;
  Device* device = Device::find(why);
  if (!device) std::cout << "SKIPPED: " << why << "\n";
  return device;
}

struct DeviceOperand {
  std::unique_ptr<Memory> data, scales;
  qt_tensor tensor;

  DeviceOperand(Device& device, const Quantized& q, Layout layout) {
    if (layout == Layout::plain) {
      // A view: 0xff between rows.
      const auto ld = q.k + 32, scale_ld = q.k / 32 + 3;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(q.rows * ld / 2), 0xff);
      std::vector<std::uint8_t> bytes(static_cast<std::size_t>(q.rows * scale_ld), 0xff);
      for (std::int64_t i = 0; i < q.rows; ++i) {
        std::copy_n(q.codes.begin() + i * q.k / 2, q.k / 2, codes.begin() + i * ld / 2);
        std::copy_n(q.scales.begin() + i * q.k / 32, q.k / 32, bytes.begin() + i * scale_ld);
      }
      data = std::make_unique<Memory>(device, codes);
      scales = std::make_unique<Memory>(device, bytes);
      tensor = {data->data(), scales->data(), ld, scale_ld, 0, 0};
    } else if (layout == Layout::permuted) {
      const auto weights = permute(q);
      data = std::make_unique<Memory>(device, weights.codes);
      scales = std::make_unique<Memory>(device, weights.scales);
      tensor = {data->data(), scales->data(), 0, 0, 0, 0};
    } else if (layout == Layout::bf16) {
      data = std::make_unique<Memory>(device, bf16_rows(q));
      tensor = {data->data(), nullptr, q.k, 0, 0, 0};
    } else {
      const auto rows = expand(q, layout);
      data = std::make_unique<Memory>(device, rows.data);
      scales = std::make_unique<Memory>(device, rows.reference);
      tensor = {data->data(), scales->data(), packed_stride(layout, q.k), 1, 0, 0};
    }
  }
};

void put_float(DType type, unsigned char* at, float x) {
  if (type == DType::f32) std::memcpy(at, &x, 4);
  const auto h = type == DType::bf16 ? reference::bf16_bits(x) : reference::f16_bits(x);
  if (type != DType::f32) std::memcpy(at, &h, 2);
}

/// Of products in bf16 with binary32 sums.
bool is_exact(const Family& family) {
  return family.name().ends_with("bf16") || family.name() == "cuda_gemm_mma";
}

struct Call {
  std::int64_t m, n, k;
  DType d_type = DType::bf16;
  Accumulate accumulate = Accumulate::overwrite;
  Bias bias = Bias::none;
  Data data = Data::forward;
  std::int64_t extra = 0;  // elements between rows of D beyond n
};

Problem problem_of(const Family& family, const Call& c) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 8192};
  p.n = {1, 8192};
  p.k = {0, 16384};
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = c.d_type;
  p.accumulate = c.accumulate;
  p.bias = c.bias;
  const bool int8 = family.name().ends_with("int8");
  p.contract = int8 || is_exact(family) ? Contract::exact : Contract::fast;
  p.spread = int8 ? Spread::narrow : Spread::any;
  return p;
}

// Runs a variant, and its stand-in where it has one, as plans do.
Outcome run(Device& device, const Family& family, const Problem& p, const Variant& v, const Call& c,
            const Quantized& a, const Quantized& b, std::uint32_t seed,
            std::int64_t most_rows = 24) {
  const auto a_layout = family.a_layout(p, v), b_layout = family.b_layout(p, v);
  const DeviceOperand a_device(device, a, a_layout), b_device(device, b, b_layout);
  const auto size = bytes_of(c.d_type);
  const auto ld = c.n + c.extra;
  std::mt19937 random(seed + 2);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> old(static_cast<std::size_t>(c.m * ld * size), 0xff);
  std::vector<unsigned char> bias(static_cast<std::size_t>(c.n * size));
  const bool adds = c.accumulate == Accumulate::accumulate;
  for (std::int64_t i = 0; adds && i < c.m; ++i)
    for (std::int64_t j = 0; j < c.n; ++j)
      put_float(c.d_type, &old[static_cast<std::size_t>((i * ld + j) * size)], normal(random));
  for (std::int64_t j = 0; j < c.n; ++j)
    put_float(c.d_type, &bias[static_cast<std::size_t>(j * size)], normal(random));
  Memory d(device, old), bias_device(device, bias);
  // Left as it is, full of 0xff: kernels that need more than that prepare it themselves.
  Memory workspace(device, family.workspace_bytes(p, v, {c.m, c.n, c.k, 1}));

  qt_args args{};
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.batch = 1;
  args.a = a_device.tensor;
  args.b = b_device.tensor;
  args.d = {d.data(), nullptr, ld, 0, 0, 0};
  args.c = args.d;  // in place
  args.alpha = 0.75f;
  args.beta = 0.5f;
  args.bias = bias_device.data();
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  device.run(family, p, v, args);
  if (const auto then = family.stand_in(p, v)) {
    Problem given = p;
    given.a_layout = a_layout;
    given.b_layout = b_layout;
    device.run(cuda::stand_in(), given, *then, args);
  }
  return check_product(a, b, tensor_core_of(v),
                       {c.m, c.n, c.d_type, ld, args.alpha, args.beta, adds ? &old : nullptr,
                        c.bias == Bias::per_column ? &bias : nullptr},
                       d.download(), a_layout, b_layout, most_rows);
}

Outcome run(Device& device, const Family& family, const Problem& p, const Variant& v, const Call& c,
            std::uint32_t seed) {
  return run(device, family, p, v, c, random_operand(c.m, c.k, c.data, seed),
             random_operand(c.n, c.k, c.data, seed + 1), seed);
}

Variant with(const Family& family, const Problem& p, const Target& t,
             std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  Variant v = family.default_variant(p, t);
  for (const auto& [name, value] : values) v.values[name] = value;
  return v;
}

std::vector<Variant> some_variants(const Family& family, const Problem& p, const Target& t) {
  if (family.name() == "cuda_gemm_e5m2")
    return {with(family, p, t, {}),
            with(family, p, t, {{"tile_n", 256}, {"pieces", 2}, {"promote", 2}}),
            with(family, p, t, {{"tile_m", 256}, {"tile_n", 96}, {"cluster", 2}}),
            with(family, p, t, {{"tile_n", 160}, {"promote", 2}, {"stages", 5}, {"cluster", 2}}),
            with(family, p, t, {{"tile_n", 64}, {"stages", 8}})};
  if (family.name() == "cuda_gemm_int8" || family.name() == "cuda_gemm_bf16")
    return {with(family, p, t, {}), with(family, p, t, {{"cluster", 2}}),
            with(family, p, t, {{"tile_m", 256}, {"tile_n", 128}}),
            with(family, p, t, {{"tile_n", 96}, {"stages", 6}})};
  return {with(family, p, t, {}),
          with(family, p, t, {{"tile_m", 16}, {"tile_n", 64}, {"stages", 2}}),
          with(family, p, t, {{"tile_m", 64}})};
}

const Call kCalls[] = {
    {1, 5, 32},
    {7, 1000, 64, DType::f16},
    {129, 256, 96, DType::f32},
    {300, 1000, 576, DType::bf16, Accumulate::accumulate, Bias::per_column},
    {64, 520, 1504, DType::f32, Accumulate::accumulate, Bias::none, Data::forward, 3},
    {257, 384, 2880, DType::f16, Accumulate::overwrite, Bias::per_column, Data::forward, 5},
    {640, 1408, 1824},
    {33, 8, 4096, DType::bf16, Accumulate::accumulate},
    {5, 96, 0, DType::bf16, Accumulate::accumulate},
    {0, 96, 64},
    {8191, 5, 96, DType::f32},
    {8191, 1, 64},
    {129, 1000, 1824, DType::f16, Accumulate::overwrite, Bias::per_column},
    {1, 1, 2880},
    {7, 5, 32, DType::bf16, Accumulate::accumulate, Bias::none, Data::forward, 1},
};

void check_family(const Family& family) {
  Device* device = device_or_skip();
  if (!device) return;
  std::vector<std::tuple<Problem, Variant, Call>> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const Call& c : kCalls) {
    const auto p = problem_of(family, c);
    if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
      return;
    }
    for (const auto& v : some_variants(family, p, device->target())) {
      if (!family.illegal(p, device->target(), v).empty()) continue;
      cases.emplace_back(p, v, c);
      sources.emplace_back(family.emit(p, device->target(), v), v.text());
    }
  }
  compile_all(*device, sources);
  std::uint32_t seed = 1;
  for (const auto& [p, v, c] : cases) {
    const auto outcome = run(*device, family, p, v, c, seed += 10);
    INFO(v.text(), " m=", c.m, " n=", c.n, " k=", c.k, " ", name_of(c.d_type), " ", outcome.where);
    CHECK(outcome.worst <= 1.0);
  }
  // Gradients' spread, for families that hold it. The bound is of the worst case; errors of random
  // sign stay far below it.
  if (family.name() != "cuda_gemm_int8") {
    const Call c{192, 256, 2048, DType::f32, Accumulate::overwrite, Bias::none, Data::wide};
    const auto p = problem_of(family, c);
    const auto v = family.default_variant(p, device->target());
    const auto outcome = run(*device, family, p, v, c, 99);
    std::cout << fmt::format("{} wide: worst {:.3g} of the bound, relative {:.3g}\n", v.text(),
                             outcome.worst, outcome.relative);
    INFO(outcome.where);
    CHECK(outcome.worst <= 1.0);
    CHECK(outcome.relative <= (family.name() == "cuda_gemm_e5m2" ? 0x1p-10 : 0x1p-20));
  }
  // Common signs: sums that the tensor core would cut must not shrink.
  const Call c{128, 192, 16384, DType::f32, Accumulate::overwrite, Bias::none, Data::common_sign};
  const auto p = problem_of(family, c);
  for (const auto& v : some_variants(family, p, device->target())) {
    if (!family.illegal(p, device->target(), v).empty()) continue;
    const auto outcome = run(*device, family, p, v, c, 1234);
    std::cout << fmt::format("{} common sign: worst {:.3g} of the bound, shrink {:.3g}\n", v.text(),
                             outcome.worst, outcome.shrink);
    INFO(v.text(), " shrink ", outcome.shrink, " ", outcome.where);
    CHECK(outcome.worst <= 1.0);
    CHECK(std::abs(outcome.shrink) <= 1e-5);
  }
  // A NaN block makes all of its row's, or column's, results NaN, and no other.
  const Call nan{150, 200, 384, DType::f16, Accumulate::accumulate, Bias::per_column};
  Quantized a = random_operand(nan.m, nan.k, Data::forward, 5),
            b = random_operand(nan.n, nan.k, Data::forward, 6);
  for (const std::size_t row : {3u, 70u, 149u}) {
    a.scales[row * 12 + row % 12] = 255;
    std::fill_n(a.codes.begin() + static_cast<std::ptrdiff_t>(row * 192 + row % 12 * 16), 16, 0);
  }
  b.scales[199 * 12] = 255;
  const auto np = problem_of(family, nan);
  const auto outcome =
      run(*device, family, np, family.default_variant(np, device->target()), nan, a, b, 7, 1000);
  INFO(outcome.where);
  CHECK(outcome.worst <= 1.0);
}

// Scales from far above to far below: outside of every window.
void widen_row(Quantized& q, std::int64_t row) {
  const auto blocks = q.k / 32;
  for (std::int64_t block = 0; block < blocks; ++block) {
    q.scales[static_cast<std::size_t>(row * blocks + block)] =
        static_cast<std::uint8_t>(90 + 40 * block / std::max<std::int64_t>(1, blocks - 1));
    for (std::int64_t j = 0; j < 16; ++j)
      q.codes[static_cast<std::size_t>((row * blocks + block) * 16 + j)] =
          static_cast<std::uint8_t>(0x13 + 0x22 * ((row + j) % 5));
  }
}

}  // namespace

TEST_CASE("gpu.gemm_mma stays within its bound") { check_family(cuda::gemm_mma()); }
TEST_CASE("gpu.gemm_e5m2 stays within its bound") { check_family(cuda::gemm_e5m2()); }
TEST_CASE("gpu.gemm_int8 stays within its bound") { check_family(cuda::gemm_int8()); }
TEST_CASE("gpu.gemm_bf16 stays within its bound") { check_family(cuda::gemm_bf16()); }

TEST_CASE("gpu.exact products hold every scale byte") {
  Device* device = device_or_skip();
  if (!device) return;
  std::uint32_t seed = 1;
  for (const Family* family : {&cuda::gemm_mma(), &cuda::gemm_bf16()}) {
    const Call c{150, 264, 1504, DType::f32};
    const auto p = problem_of(*family, c);
    if (const auto reason = family->refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family->name() << " " << reason << "\n";
      continue;
    }
    const auto v = family->default_variant(p, device->target());
    // A's byte and B's add to 254, so that products are near 1: 0 by 254, ..., 254 by 0.
    Quantized a = random_operand(c.m, c.k, Data::forward, ++seed),
              b = random_operand(c.n, c.k, Data::forward, ++seed);
    const auto blocks = static_cast<std::size_t>(a.k / 32);
    for (std::size_t i = 0; i < a.scales.size(); ++i)
      a.scales[i] = static_cast<std::uint8_t>(i % blocks * 5 % 255);
    for (std::size_t i = 0; i < b.scales.size(); ++i)
      b.scales[i] = static_cast<std::uint8_t>(254 - i % blocks * 5 % 255);
    a.scales[0] = 0, b.scales[0] = 254;
    const auto outcome = run(*device, *family, p, v, c, a, b, seed, 200);
    INFO(family->name(), " ", outcome.where);
    CHECK(outcome.worst <= 1.0);
  }
}

TEST_CASE("gpu.stand_in computes the rows that do not fit, and counts them") {
  Device* device = device_or_skip();
  if (!device) return;
  for (const Family* family : {&cuda::gemm_e5m2(), &cuda::gemm_int8()}) {
    const std::vector<std::pair<Call, std::vector<std::int64_t>>> calls = {
        {{256, 384, 256}, {70}},
        {{300, 1000, 576, DType::bf16, Accumulate::accumulate, Bias::per_column},
         {0, 1, 63, 64, 129, 299}},
        {{97, 130, 96, DType::f32, Accumulate::accumulate, Bias::none, Data::forward, 3}, {96}},
        {{2300, 2200, 256, DType::f16}, {5, 2047, 2048, 2100, 2101, 2102}}};
    for (const auto& [c, rows] : calls) {
      auto p = problem_of(*family, c);
      if (const auto reason = family->refuses(p, device->target()); !reason.empty()) {
        std::cout << "SKIPPED: " << family->name() << " " << reason << "\n";
        return;
      }
      const auto v = family->default_variant(p, device->target());
      Quantized a = random_operand(c.m, c.k, Data::forward, 1),
                b = random_operand(c.n, c.k, Data::forward, 2);
      // A hundred rows of A in the largest call: more than are multiplied together.
      for (const auto row : rows) widen_row(a, row);
      if (c.m > 2000)
        for (std::int64_t row = 1000; row < 1100; ++row) widen_row(a, row);
      for (const auto row : rows)
        if (row % 2 == 0 && row < c.n) widen_row(b, row);
      p.a_layout = p.b_layout = family->a_layout(p, v);
      const auto then = *family->stand_in(p, v);
      const auto& kernel = device->kernel(cuda::stand_in(), p, then);
      const auto before = kernel.counter("quarterturn_stand_ins");
      REQUIRE_MESSAGE(before.ok(), before.status().message());
      const auto outcome = run(*device, *family, p, v, c, a, b, 3, 400);
      INFO(family->name(), " m=", c.m, " n=", c.n, " k=", c.k, " ", outcome.where);
      CHECK(outcome.worst <= 1.0);
      std::uint64_t unfit = 0;
      for (const auto* q : {&a, &b})
        for (const auto reference : expand(*q, p.a_layout).reference) unfit += reference == 255;
      CHECK(unfit > 0);
      CHECK(*kernel.counter("quarterturn_stand_ins") - *before == unfit);
    }
  }
}

namespace {

Problem weight_only_problem(const Family& family, const Call& c, std::int64_t most_tokens) {
  auto p = problem_of(family, c);
  p.m = {0, most_tokens};
  p.k.lo = 1;
  p.a_type = DType::bf16;
  return p;
}

// Activations of any stride and alignment, infinity among them, 0xff behind every row.
void check_weight_only(Device* device, const Family& family, const Problem& p, const Call& c,
                       std::int64_t ld, std::int64_t offset, std::uint32_t seed) {
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
  const auto v = family.default_variant(p, device->target());
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
  device->run(family, p, v, args);
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

void check_weight_only_calls(const Family& family) {
  Device* device = device_or_skip();
  if (!device) return;
  const bool few = family.name() == "cuda_gemm_packed_bf16";
  std::vector<std::pair<Problem, Call>> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const Call& c : kWeightOnlyCalls) {
    const auto most = c.m <= 8 ? 8 : c.m <= 16 ? 16 : c.m <= 64 ? 64 : 256;
    const auto p = weight_only_problem(family, c, few ? most : 8192);
    if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
      return;
    }
    const auto v = family.default_variant(p, device->target());
    cases.emplace_back(p, c);
    sources.emplace_back(family.emit(p, device->target(), v), v.text());
  }
  compile_all(*device, sources);
  std::uint32_t seed = 1;
  for (const auto& [p, c] : cases) {
    check_weight_only(device, family, p, c, c.k, 0, ++seed);
    // Rows apart and still aligned, or at odd places.
    if (seed % 4 == 0)
      check_weight_only(device, family, p, c, c.k + 24, 8, ++seed);
    else
      check_weight_only(device, family, p, c, c.k + 3, 1, ++seed);
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

TEST_CASE("gpu.gemm of a batch reads and writes entries where their strides say") {
  Device* device = device_or_skip();
  if (!device) return;
  constexpr std::int64_t batch = 3, m = 70, n = 130, k = 96;
  for (const Family* family :
       {&cuda::gemm_mma(), &cuda::gemm_e5m2(), &cuda::gemm_int8(), &cuda::gemm_bf16()}) {
    auto p = problem_of(*family, {m, n, k, DType::f32});
    p.batch = {1, 4};
    if (const auto reason = family->refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family->name() << " " << reason << "\n";
      continue;
    }
    const auto v = family->default_variant(p, device->target());
    const auto layout = family->a_layout(p, v);
    const bool plain = layout == Layout::plain, wide = layout == Layout::bf16;
    std::vector<Quantized> a, b;
    for (std::uint32_t i = 0; i < batch; ++i) {
      a.push_back(random_operand(m, k, Data::forward, 10 + i));
      b.push_back(random_operand(n, k, Data::forward, 20 + i));
      if (i == 1) widen_row(a.back(), 7);
      if (i == 2) widen_row(b.back(), 100);
    }
    // One after the other, 0xff in between.
    std::vector<std::unique_ptr<Memory>> kept;
    const auto place = [&](const std::vector<Quantized>& all) {
      std::vector<std::uint8_t> data, scales;
      std::int64_t stride = 0, scale_stride = 0;
      for (const auto& q : all) {
        auto rows = plain || wide ? ExpandedOperand{} : expand(q, layout);
        if (wide) {
          const auto elements = bf16_rows(q);
          rows.data.resize(elements.size() * 2);
          std::memcpy(rows.data.data(), elements.data(), rows.data.size());
        }
        const auto& codes = plain ? q.codes : rows.data;
        const auto& bytes = plain ? q.scales : rows.reference;
        data.insert(data.end(), codes.begin(), codes.end());
        data.insert(data.end(), 64, 0xff);
        scales.insert(scales.end(), bytes.begin(), bytes.end());
        scales.insert(scales.end(), 5, 0xff);
        stride = static_cast<std::int64_t>(codes.size() + 64) * 8 / bits_per_element(layout);
        scale_stride = static_cast<std::int64_t>(bytes.size() + 5);
      }
      kept.push_back(std::make_unique<Memory>(*device, data));
      kept.push_back(std::make_unique<Memory>(*device, scales));
      return qt_tensor{
          kept[kept.size() - 2]->data(), kept.back()->data(), k, k / 32, stride, scale_stride};
    };
    const std::int64_t ld = n + 2, d_stride = m * ld + 10;
    Memory d(*device, batch * d_stride * 4),
        workspace(*device, family->workspace_bytes(p, v, {m, n, k, batch}));
    qt_args args{};
    args.m = m;
    args.n = n;
    args.k = k;
    args.batch = batch;
    args.a = place(a);
    args.b = place(b);
    args.d = {d.data(), nullptr, ld, 0, d_stride, 0};
    args.alpha = 1;
    args.workspace = workspace.data();
    device->run(*family, p, v, args);
    if (const auto then = family->stand_in(p, v)) {
      p.a_layout = p.b_layout = layout;
      device->run(cuda::stand_in(), p, *then, args);
    }
    const auto all = d.download();
    for (std::size_t i = 0; i < batch; ++i) {
      const auto from = all.begin() + static_cast<std::ptrdiff_t>(i) * d_stride * 4;
      const auto outcome =
          check_product(a[i], b[i], tensor_core_of(v), {m, n, p.d_type, ld, 1, 0, nullptr, nullptr},
                        std::vector<unsigned char>(from, from + d_stride * 4), layout, layout, 100);
      INFO(v.text(), " entry ", i, " ", outcome.where);
      CHECK(outcome.worst <= 1.0);
    }
  }
}

namespace {

struct PackedCase {
  Call call;
  std::int64_t most_tokens;  // of the problem
};

// Permuted weights: rows of both operands that do not fit are the family's own to compute.
void check_packed(const Family& family, std::initializer_list<PackedCase> all) {
  Device* device = device_or_skip();
  if (!device) return;
  const auto problem = [&family](const PackedCase& c) {
    auto p = problem_of(family, c.call);
    p.m = {0, c.most_tokens};
    p.k.lo = 1;
    return p;
  };
  std::vector<std::tuple<Problem, Variant, Call>> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const auto& c : all) {
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
    const auto& other = others[sources.size() / 2 % others.size()];
    for (const auto& v : {family.default_variant(p, device->target()), other}) {
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
    if (seed % 2 == 0 && c.k > 64 && c.data == Data::forward) {
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
  CHECK(*kernel.counter("quarterturn_stand_ins") - *before == 2);
}

}  // namespace

namespace {

void check_few_tokens(const Family& family) {
  check_packed(
      family,
      {{{1, 5, 32}, 8},
       {{1, 1, 2880}, 8},
       {{7, 1000, 64, DType::f16}, 8},
       {{8, 1000, 1504, DType::f32, Accumulate::overwrite, Bias::per_column}, 8},
       {{1, 4096, 1824}, 8},
       {{16, 328, 2880, DType::bf16, Accumulate::overwrite, Bias::per_column, Data::forward, 3},
        16},
       {{13, 64, 16384, DType::f32, Accumulate::overwrite, Bias::none, Data::common_sign}, 16},
       {{32, 1408, 576, DType::bf16, Accumulate::accumulate}, 32},
       {{64, 1000, 1824, DType::f32}, 64},
       {{129, 520, 96, DType::f32, Accumulate::accumulate, Bias::per_column, Data::wide, 5}, 256},
       {{256, 192, 4096, DType::f16}, 256},
       {{0, 96, 64}, 16}});
}

void check_many_tokens(const Family& family) {
  check_packed(
      family,
      {{{1, 5, 32}, 8192},
       {{7, 1000, 64, DType::f16}, 8192},
       {{8191, 5, 96, DType::f32}, 8192},
       {{8191, 64, 32}, 8192},
       {{129, 1, 2880}, 8192},
       {{300, 1000, 576, DType::bf16, Accumulate::accumulate, Bias::per_column}, 8192},
       {{70, 1000, 96, DType::f32, Accumulate::accumulate, Bias::none, Data::forward, 1}, 8192},
       {{2000, 520, 1504, DType::f16, Accumulate::overwrite, Bias::per_column, Data::forward, 3},
        8192},
       {{257, 384, 1824, DType::f32, Accumulate::overwrite, Bias::per_column, Data::forward, 5},
        8192},
       {{128, 192, 16384, DType::f32, Accumulate::overwrite, Bias::none, Data::common_sign}, 8192},
       {{193, 256, 2048, DType::f32, Accumulate::overwrite, Bias::none, Data::wide}, 8192},
       {{0, 96, 64}, 8192}});
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
