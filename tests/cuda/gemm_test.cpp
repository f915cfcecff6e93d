// The GEMM families on a GPU against exact products of the same codes, on awkward shapes, with
// every epilogue; NaN blocks; batches; and the exact stand-in for rows that do not fit their
// window.
#include <doctest/doctest.h>

#include <numeric>
#include <span>

#include "tests/cuda/gemm_calls.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

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

// A few tiles each, for a simulated device; a kernel for each type of D.
const Call kSmallCalls[] = {
    {130, 264, 1312, DType::bf16, Accumulate::accumulate, Bias::per_column},
    {5, 96, 0, DType::bf16, Accumulate::accumulate, Bias::per_column},
    {1, 1, 416, DType::bf16, Accumulate::accumulate, Bias::per_column},
    {1, 5, 32, DType::f32},
    {129, 260, 96, DType::f32, Accumulate::overwrite, Bias::none, Data::forward, 3},
    {7, 130, 64, DType::f16, Accumulate::overwrite, Bias::per_column},
    {257, 72, 928, DType::f16, Accumulate::overwrite, Bias::per_column, Data::forward, 5},
    {0, 96, 64, DType::f16, Accumulate::overwrite, Bias::per_column},
};

void check_family(const Family& family) {
  Device* device = device_or_skip();
  if (!device) return;
  std::vector<std::tuple<Problem, Variant, Call>> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const Call& c : device->simulated() ? std::span<const Call>(kSmallCalls) : kCalls) {
    const auto p = problem_of(family, c);
    if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
      return;
    }
    const auto variants = some_variants(family, p, device->target());
    for (const auto& v : variants) {
      if (!family.illegal(p, device->target(), v).empty()) continue;
      // On a simulated device variants share out the types: compiling takes longest.
      const auto turn = (&v - variants.data()) + static_cast<std::ptrdiff_t>(c.d_type);
      if (device->simulated() && turn % 3 != 0) continue;
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
    const Call c{device->simulated() ? 70 : 192,
                 256,
                 device->simulated() ? 1024 : 2048,
                 DType::f32,
                 Accumulate::overwrite,
                 Bias::none,
                 Data::wide};
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
    if (device->simulated()) break;  // its sums are not cut
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

}  // namespace

TEST_CASE("gpu.gemm_mma stays within its bound") { check_family(cuda::gemm_mma()); }
TEST_CASE("gpu.gemm_e5m2 stays within its bound") { check_family(cuda::gemm_e5m2()); }
TEST_CASE("gpu.gemm_int8 stays within its bound") { check_family(cuda::gemm_int8()); }
TEST_CASE("gpu.gemm_bf16 stays within its bound") { check_family(cuda::gemm_bf16()); }

// Blocks that share a tile's K, in the same workspace from run to run: the bits of one block each
// time, for data whose sums are exact.
TEST_CASE("gpu.products share out K among blocks") {
  Device* device = device_or_skip();
  if (!device) return;
  struct Shared {
    const Family& family;
    Call call;
    std::int64_t splits;
    std::vector<std::pair<const std::string, std::int64_t>> values;
  };
  const auto adds = Accumulate::accumulate;
  const Call narrow{70, 96, 1312, DType::f32, adds},
      wide{130, 200, 2080, DType::bf16, adds, Bias::per_column};
  const Shared all[] = {
      {cuda::gemm_e5m2(), narrow, 2, {{"tile_n", 64}}},
      {cuda::gemm_e5m2(), wide, 3, {{"tile_n", 64}, {"promote", 2}, {"cluster", 2}}},
      // Parts of K that are empty: K has 1 and no steps of promotion.
      {cuda::gemm_e5m2(), {1, 5, 96, DType::f32, adds}, 2, {{"tile_n", 64}}},
      {cuda::gemm_e5m2(), {5, 9, 0, DType::f32, adds}, 2, {{"tile_n", 64}}},
      {cuda::gemm_bf16(), narrow, 16, {{"tile_n", 64}}},
      {cuda::gemm_bf16(), {257, 72, 928, DType::f32, adds}, 6, {{"tile_m", 256}, {"tile_n", 64}}},
      {cuda::gemm_int8(), narrow, 4, {{"tile_n", 96}}},
  };
  std::uint32_t seed = 400;
  for (const auto& [family, c, splits, values] : all) {
    auto p = problem_of(family, c);
    p.m = p.n = {1, 512};
    p.k = {0, 131072};
    if (const auto reason = family.refuses(p, device->target()); !reason.empty()) {
      std::cout << "SKIPPED: " << family.name() << " " << reason << "\n";
      return;
    }
    auto v = family.default_variant(p, device->target());
    for (const auto& [name, value] : values) v.values[name] = value;
    auto whole = v;
    v.values["splits"] = splits;
    const auto status = family.check(p, device->target(), v);
    REQUIRE_MESSAGE(status.ok(), status.message());
    REQUIRE(family.workspace_bytes(p, whole, {c.m, c.n, c.k, 1}) == 0);
    const auto a = random_operand(c.m, c.k, Data::forward, seed += 10),
               b = random_operand(c.n, c.k, Data::forward, seed + 1);
    std::vector<std::vector<unsigned char>> shared, alone;
    INFO(v.text(), " m=", c.m, " n=", c.n, " k=", c.k);
    const auto outcome = run(*device, family, p, v, c, a, b, seed, 24, &shared);
    INFO(outcome.where);
    CHECK(outcome.worst <= 1.0);
    // On a simulated device compiling takes longest.
    if (device->simulated() && splits < 16) continue;
    CHECK(run(*device, family, p, whole, c, a, b, seed, 24, &alone).worst <= 1.0);
    CHECK(shared == alone);
  }
}

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
    std::vector<std::pair<Call, std::vector<std::int64_t>>> calls = {
        {{256, 384, 256}, {70}},
        {{300, 1000, 576, DType::bf16, Accumulate::accumulate, Bias::per_column},
         {0, 1, 63, 64, 129, 299}},
        {{97, 130, 96, DType::f32, Accumulate::accumulate, Bias::none, Data::forward, 3}, {96}},
        {{2300, 2200, 256, DType::f16}, {5, 2047, 2048, 2100, 2101, 2102}}};
    std::vector<std::int64_t> many(150);
    std::iota(many.begin(), many.end(), 5);
    if (device->simulated())
      calls = {{{130, 136, 256}, {70, 129}},
               {{97, 130, 96, DType::f32, Accumulate::accumulate, Bias::none, Data::forward, 3},
                {0, 63, 64, 96}},
               {{230, 136, 288}, many}};  // more than are multiplied together
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
      CHECK(*kernel.counter("quarterturn_stand_ins") - *before == unfit * device->runs_of_case());
    }
  }
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

// The same sums by the same variant, so that codes must be those of its own binary32 D.
TEST_CASE("gpu.gemm_bf16 quantises what it computes") {
  Device* device = device_or_skip();
  if (!device) return;
  const auto& family = cuda::gemm_bf16();
  const auto first = problem_of(family, {});
  if (!family.refuses(first, device->target()).empty()) {
    std::cout << "SKIPPED: " << family.refuses(first, device->target()) << "\n";
    return;
  }
  struct Case {
    std::int64_t m, n, k;
    Epilogue epilogue;
    std::int32_t rotation;
    Rounding rounding;
    Layout layout;
  };
  const bool few = device->simulated();
  for (const auto& c : {Case{few ? 70 : 900, few ? 200 : 1000, 256, Epilogue::none, 128,
                             Rounding::sr16, Layout::plain},
                        Case{few ? 37 : 517, few ? 192 : 1536, 192, Epilogue::swiglu_split, 32,
                             Rounding::rne, Layout::scales_128x4},
                        Case{few ? 130 : 700, few ? 96 : 1056, 128, Epilogue::dswiglu, 32,
                             Rounding::sr16, Layout::plain}}) {
    Problem p;
    p.op = Op::gemm_quantize;
    p.role = Role::wgrad;
    p.m = {0, 8192};
    p.n = Extent::exactly(c.n);
    p.k = {0, 16384};
    p.a_type = p.b_type = p.d_type = DType::mxfp4;
    p.d_layout = c.layout;
    p.rotation = c.rotation;
    p.signs = Signs::per_call;
    p.d_rounding = c.rounding;
    p.epilogue = c.epilogue;
    p.bias = Bias::per_column;
    REQUIRE(validate(p).message() == "");
    REQUIRE(family.refuses(p, device->target()) == "");
    const auto v = with(family, p, device->target(), {{"tile_n", 128}});
    REQUIRE(family.check(p, device->target(), v).message() == "");
    INFO(v.text(), " ", p.key());
    const auto layout = family.a_layout(p, v);
    const DeviceOperand a(*device, random_operand(c.m, c.k, Data::forward, 1), layout),
        b(*device, random_operand(c.n, c.k, Data::forward, 2), layout);
    const auto aux_width = aux_columns(c.epilogue, c.n), columns = output_columns(c.epilogue, c.n);
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<float> addends(static_cast<std::size_t>(c.n + c.m * aux_width));
    for (auto& x : addends) x = normal(random);
    const Memory side(*device, addends);
    Memory d(*device, c.m * columns * 4);
    qt_args args{};
    args.m = c.m;
    args.n = c.n;
    args.k = c.k;
    args.batch = args.groups = 1;
    args.a = a.tensor;
    args.b = b.tensor;
    args.bias = side.data();
    args.aux = {side.data(c.n * 4), nullptr, aux_width, 0, 0, 0};
    args.d = {d.data(), nullptr, columns, 0, 0, 0};
    args.alpha = 0.125f;
    args.noise_seed = 0x1234567890abcdefull;
    args.sign_seed = 77;
    args.stream = 5;
    args.operand = 2;
    Problem alone = p;
    alone.op = Op::gemm;
    alone.d_type = DType::f32;
    alone.d_layout = Layout::plain;
    alone.d_rounding = Rounding::rne;
    device->run(family, alone, v, args);
    const auto exact = d.download<float>();
    const auto want =
        reference::quantize(exact.data(), c.m, columns, columns, spec_of(p, c.rounding, args));
    const auto want_scales = c.layout == Layout::plain ? want.scales : tiles_128x4(want);
    Memory codes(*device, static_cast<std::int64_t>(want.codes.size())),
        scales(*device, static_cast<std::int64_t>(want_scales.size()));
    args.d = {codes.data(), scales.data(), want.k, want.k / 32, 0, 0};
    for (const auto& schedule : device->schedules()) {
      codes.poison();
      scales.poison();
      device->schedule(schedule);
      device->run_as_scheduled(family, p, v, args);
      CHECK(codes.download() == want.codes);
      CHECK(scales.download() == want_scales);
    }
  }
}
