// The GEMM families on a GPU against products in double precision of the same codes, on awkward
// shapes, with every epilogue; and what happens to rows that do not fit their window.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/cuda/device.hpp"
#include "tests/cuda/oracle.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

enum class Data { forward, common_sign, wide };

// Codes and scales as quantisers make them: scales within `spread` binades of a row's largest.
Codes random_codes(std::int64_t rows, std::int64_t k, Data data, std::uint32_t seed) {
  std::mt19937 random(seed);
  Codes out;
  out.rows = rows;
  out.k = round_up(k, 32);
  out.code.assign(static_cast<std::size_t>(rows * out.k), 0);
  out.scale.assign(static_cast<std::size_t>(rows * out.k / 32), 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    const int high = 110 + static_cast<int>(random() % 20);
    for (std::int64_t b = 0; b < out.k / 32; ++b) {
      const unsigned spread = data == Data::wide ? 20 : data == Data::common_sign ? 1 : 4;
      // Zero blocks have scale 0 and count for nothing.
      if (random() % 16 == 0) continue;
      out.scale[static_cast<std::size_t>(i * (out.k / 32) + b)] =
          static_cast<std::uint8_t>(high - static_cast<int>(random() % spread));
      for (int j = 0; j < 32 && b * 32 + j < k; ++j)
        out.code[static_cast<std::size_t>(i * out.k + b * 32 + j)] =
            static_cast<std::uint8_t>(random() % (data == Data::common_sign ? 8 : 16));
    }
  }
  return out;
}

struct DeviceOperand {
  std::unique_ptr<Memory> data, scales;
  qt_tensor tensor(Layout layout, const Codes& codes) const {
    if (layout == Layout::plain) return {data->data(), scales->data(), codes.k, codes.k / 32, 0, 0};
    return {data->data(), scales->data(), packed_stride(layout, codes.k), 1, 0, 0};
  }
};

DeviceOperand to_device(Device& device, const Codes& codes, Layout layout) {
  DeviceOperand out;
  if (layout == Layout::plain) {
    std::vector<std::uint8_t> packed(codes.code.size() / 2);
    for (std::size_t i = 0; i < packed.size(); ++i)
      packed[i] = static_cast<std::uint8_t>(codes.code[2 * i] | codes.code[2 * i + 1] << 4);
    out.data = std::make_unique<Memory>(device, packed);
    out.scales = std::make_unique<Memory>(device, codes.scale);
  } else {
    const auto rows = expand_oracle(codes, layout == Layout::int8_rows);
    out.data = std::make_unique<Memory>(device, rows.data);
    out.scales = std::make_unique<Memory>(device, rows.reference);
  }
  return out;
}

float as_float(DType type, const unsigned char* at) {
  if (type == DType::f32) {
    float x;
    std::memcpy(&x, at, 4);
    return x;
  }
  std::uint16_t h;
  std::memcpy(&h, at, 2);
  return type == DType::bf16 ? qt::f32_from_bf16(h) : qt::f32_from_f16(h);
}
void put_float(DType type, unsigned char* at, float x) {
  if (type == DType::f32) std::memcpy(at, &x, 4);
  const auto h = type == DType::bf16 ? qt::bf16_from_f32(x) : qt::f16_from_f32(x);
  if (type != DType::f32) std::memcpy(at, &h, 2);
}

struct Call {
  std::int64_t m, n, k;
  DType d_type = DType::bf16;
  Accumulate accumulate = Accumulate::overwrite;
  Bias bias = Bias::none;
  Data data = Data::forward;
  std::int64_t extra = 0;  // elements between rows of D beyond n
};

Problem problem_of(const Family& family, const Call& c, bool any_size) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;  // any sizes
  p.m = any_size ? Extent{0, 8192} : Extent{0, c.m};
  p.n = any_size ? Extent{1, 8192} : Extent::exactly(c.n);
  p.k = any_size ? Extent{0, 16384} : Extent::exactly(c.k);
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = c.d_type;
  p.accumulate = c.accumulate;
  p.bias = c.bias;
  p.contract = family.name() == "cuda_gemm_e5m2" ? Contract::fast : Contract::exact;
  p.spread = family.name() == "cuda_gemm_int8" ? Spread::narrow : Spread::any;
  return p;
}

struct Outcome {
  double worst = 0;   // |d - ref| in units of the bound
  double shrink = 0;  // mean of error * sign(ref) over mean |ref|, before rounding to D
  std::int64_t checked = 0;
};

Outcome run(Device& device, const Family& family, const Problem& p, const Variant& v, const Call& c,
            std::uint32_t seed) {
  const auto layout = family.a_layout(p, v);
  const Codes a = random_codes(c.m, c.k, c.data, seed),
              b = random_codes(c.n, c.k, c.data, seed + 1);
  const auto a_device = to_device(device, a, layout), b_device = to_device(device, b, layout);
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
  const Sizes sizes{c.m, c.n, c.k, 1};
  Memory workspace(device, std::max<std::int64_t>(family.workspace_bytes(p, v, sizes), 4));

  qt_args args{};
  args.m = c.m;
  args.n = c.n;
  args.k = c.k;
  args.batch = 1;
  args.a = a_device.tensor(layout, a);
  args.b = b_device.tensor(layout, b);
  args.d = {d.data(), nullptr, ld, 0, 0, 0};
  args.c = args.d;  // in place
  args.alpha = 0.75f;
  args.beta = 0.5f;
  args.bias = bias_device.data();
  args.workspace = workspace.data();
  args.workspace_bytes = workspace.bytes();
  device.run(family, p, v, args);
  const auto result = d.download();
  if (c.m == 0) return {};

  // Rows are sampled where there are many; columns never.
  Outcome out;
  const double unit = c.d_type == DType::f32 ? 0x1p-23 : c.d_type == DType::bf16 ? 0x1p-8 : 0x1p-11;
  const double fast = p.contract == Contract::fast ? 0x1p-10 : 0x1p-21;
  double errors = 0, sizes_of = 0;
  std::vector<double> a_row(static_cast<std::size_t>(a.k)), b_row(a_row.size());
  std::vector<double> b_all(static_cast<std::size_t>(c.n * a.k));
  for (std::int64_t j = 0; j < c.n; ++j)
    for (std::int64_t k = 0; k < a.k; ++k)
      b_all[static_cast<std::size_t>(j * a.k + k)] = b.value(j, k);
  const auto step = std::max<std::int64_t>(1, c.m / 24);
  for (std::int64_t i = 0; i < c.m; i += (i + step < c.m ? step : 1)) {
    for (std::int64_t k = 0; k < a.k; ++k) a_row[static_cast<std::size_t>(k)] = a.value(i, k);
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0, all = 0;
      for (std::int64_t k = 0; k < a.k; ++k) {
        const double product =
            a_row[static_cast<std::size_t>(k)] * b_all[static_cast<std::size_t>(j * a.k + k)];
        sum += product;
        all += std::abs(product);
      }
      double want = double(args.alpha) * sum;
      double slack = fast * double(args.alpha) * all;
      if (adds) {
        const double before =
            as_float(c.d_type, &old[static_cast<std::size_t>((i * ld + j) * size)]);
        want += double(args.beta) * before;
        slack += std::abs(before) * 0x1p-23;
      }
      if (c.bias == Bias::per_column) {
        const double added = as_float(c.d_type, &bias[static_cast<std::size_t>(j * size)]);
        want += added;
        slack += std::abs(added) * 0x1p-23;
      }
      const double got = as_float(c.d_type, &result[static_cast<std::size_t>((i * ld + j) * size)]);
      const double bound = slack + std::abs(want) * unit + 1e-37;
      const double error = std::isnan(got) ? 1e30 : std::abs(got - want);
      out.worst = std::max(out.worst, error / bound);
      errors += (got - want) * (want < 0 ? -1 : 1);
      sizes_of += std::abs(want);
      ++out.checked;
    }
    for (std::int64_t j = c.n; j < ld; ++j)  // between rows
      for (std::int64_t e = 0; e < size; ++e)
        if (result[static_cast<std::size_t>((i * ld + j) * size + e)] != 0xff && !adds)
          out.worst = 1e30;
    if (i + 1 == c.m) break;
  }
  out.shrink = errors / sizes_of;
  return out;
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
  if (family.name() == "cuda_gemm_int8")
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
};

void check_family(const Family& family) {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return;
  }
  std::vector<std::tuple<Problem, Variant, Call>> cases;
  std::vector<std::pair<Source, std::string>> sources;
  for (const Call& c : kCalls) {
    const auto p = problem_of(family, c, true);
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
    INFO(v.text(), " m=", c.m, " n=", c.n, " k=", c.k, " ", name_of(c.d_type));
    CHECK(outcome.worst <= 1.0);
  }
  // Gradients' spread, for families that hold it.
  if (family.name() != "cuda_gemm_int8") {
    const Call c{192, 256, 2048, DType::f32, Accumulate::overwrite, Bias::none, Data::wide};
    const auto p = problem_of(family, c, true);
    CHECK(run(*device, family, p, family.default_variant(p, device->target()), c, 99).worst <= 1.0);
  }
  // Common signs: sums that the tensor core would cut must not shrink.
  const Call c{128, 192, 16384, DType::f32, Accumulate::overwrite, Bias::none, Data::common_sign};
  const auto p = problem_of(family, c, true);
  for (const auto& v : some_variants(family, p, device->target())) {
    if (!family.illegal(p, device->target(), v).empty()) continue;
    const auto outcome = run(*device, family, p, v, c, 1234);
    INFO(v.text(), " shrink ", outcome.shrink);
    CHECK(outcome.worst <= 1.0);
    CHECK(std::abs(outcome.shrink) <= 1e-5);
  }
}

}  // namespace

TEST_CASE("gpu.gemm_mma stays within its bound") { check_family(cuda::gemm_mma()); }
TEST_CASE("gpu.gemm_e5m2 stays within its bound") { check_family(cuda::gemm_e5m2()); }
TEST_CASE("gpu.gemm_int8 stays within its bound") { check_family(cuda::gemm_int8()); }

TEST_CASE("gpu.gemm leaves units with rows beyond the window alone and says so") {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return;
  }
  for (const Family* family : {&cuda::gemm_e5m2(), &cuda::gemm_int8()}) {
    const Call c{256, 384, 256, DType::bf16};
    const auto p = problem_of(*family, c, true);
    if (!family->refuses(p, device->target()).empty()) return;
    const auto v = family->default_variant(p, device->target());
    const auto layout = family->a_layout(p, v);
    Codes a = random_codes(c.m, c.k, Data::forward, 1),
          b = random_codes(c.n, c.k, Data::forward, 2);
    // Row 70 of A: group 1 of the first tile.
    for (std::size_t block = 0; block < 8; ++block) {
      a.scale[70 * 8 + block] = static_cast<std::uint8_t>(60 + 10 * block);
      for (std::size_t j = 0; j < 32; ++j) a.code[70 * 256 + 32 * block + j] = 3;
    }
    const auto a_device = to_device(*device, a, layout), b_device = to_device(*device, b, layout);
    Memory d(*device, c.m * c.n * 2);
    Memory workspace(*device, family->workspace_bytes(p, v, {c.m, c.n, c.k, 1}));
    qt_args args{};
    args.m = c.m;
    args.n = c.n;
    args.k = c.k;
    args.batch = 1;
    args.a = a_device.tensor(layout, a);
    args.b = b_device.tensor(layout, b);
    args.d = {d.data(), nullptr, c.n, 0, 0, 0};
    args.alpha = 1;
    args.workspace = workspace.data();
    device->run(*family, p, v, args);
    const auto out = d.download<std::uint16_t>();
    const auto flags = workspace.download<std::uint32_t>();
    const auto across = ceil_div(c.n, v.value("tile_n"));
    for (std::int64_t row = 0; row < c.m; ++row)
      for (std::int64_t column = 0; column < c.n; ++column) {
        const bool left_alone = row >= 64 && row < 128;
        const bool poison = out[static_cast<std::size_t>(row * c.n + column)] == 0xffff;
        if (poison != left_alone) FAIL(family->name() << " row " << row << " column " << column);
      }
    for (std::size_t unit = 0; unit < flags.size(); ++unit)
      CHECK(flags[unit] == std::uint32_t(unit / static_cast<std::size_t>(across) == 1));
  }
}
