// Products of the HIP families on the simulated machine, against the scalar reference. Data are
// such that every binary32 sum is exact in any order, so that results are compared bit for bit;
// copies land as early and as late as they may.
#include <cmath>

#include "tests/hip/simulated_runs.hpp"

using namespace hip_test;

namespace {

struct Shape {
  std::int64_t m, n, k;
  std::int64_t gap = 0, shift = 0;
};

std::vector<unsigned char> noise(DType type, std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  const auto size = bytes_of(type);
  std::vector<unsigned char> out(static_cast<std::size_t>(count * size));
  for (std::int64_t i = 0; i < count; ++i)
    put(type, &out[static_cast<std::size_t>(i * size)],
        static_cast<float>(static_cast<int>(random() % 64) - 32) / 8.0f);
  return out;
}

float exact_sum(const Quantized& a, const Quantized& b, std::int64_t i, std::int64_t j) {
  const double sum = reference::gemm_at(a, b, i, j).value;
  const auto rounded = static_cast<float>(sum);
  REQUIRE((std::isnan(sum) || double(rounded) == sum));
  return rounded;
}

// What is wrong under the first schedule that gives anything but the reference's bits.
std::string complaint_about(const Problem& p, const Variant& v, const Shape& s,
                            std::uint32_t seed) {
  auto a = cuda_test::random_operand(s.m, s.k, Data::forward, seed);
  auto b = cuda_test::random_operand(s.n, s.k, Data::forward, seed + 1);
  if (a.rows > 4) a.scales[static_cast<std::size_t>(3 * a.k / 32)] = 255;
  const auto& family = hip::gemm_mfma_scale();
  const OperandMemory a_memory(a, s.gap, s.shift, family.a_layout(p, v)),
      b_memory(b, s.gap, s.shift, family.b_layout(p, v));
  const auto size = bytes_of(p.d_type);
  const auto ld = s.n + (s.shift ? 3 : 0);
  const auto old = noise(p.d_type, s.m * ld, seed + 2), bias = noise(p.d_type, s.n, seed + 3);
  Memory d(old.size()), bias_memory(bias);
  qt_args args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = args.groups = 1;
  args.a = a_memory.tensor;
  args.b = b_memory.tensor;
  args.d = args.c = {d.data(), nullptr, ld, 0, 0, 0};
  args.alpha = 0.75f;
  args.beta = p.accumulate == Accumulate::accumulate ? 0.5f : 0.0f;
  args.bias = bias_memory.data();
  const Memory workspace(std::vector<unsigned char>(
      static_cast<std::size_t>(family.workspace_bytes(p, v, {s.m, s.n, s.k})), 0xff));
  args.workspace = workspace.data();
  for (const auto& schedule : kSchedules) {
    if (!old.empty()) std::memcpy(d.data(), old.data(), old.size());
    const auto fault = run_quietly(family, p, v, args, schedule);
    if (!fault.empty()) return fault;
    std::int64_t wrong = 0;
    std::string first_wrong;
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < ld; ++j) {
        const auto at = static_cast<std::size_t>((i * ld + j) * size);
        if (j >= s.n) {
          wrong += std::memcmp(d.data() + at, &old[at], static_cast<std::size_t>(size)) != 0;
          continue;
        }
        float z = args.alpha * exact_sum(a, b, i, j);
        if (args.beta != 0) z += args.beta * cuda_test::as_float(p.d_type, &old[at]);
        if (p.bias == Bias::per_column)
          z += cuda_test::as_float(p.d_type, &bias[static_cast<std::size_t>(j * size)]);
        if (same(p.d_type, d.data() + at, z)) continue;
        if (wrong++ == 0)
          first_wrong = std::to_string(i) + ", " + std::to_string(j) + ": " +
                        std::to_string(cuda_test::as_float(p.d_type, d.data() + at)) + " for " +
                        std::to_string(z);
      }
    if (wrong > 0)
      return std::to_string(wrong) + " wrong under seed " + std::to_string(schedule.seed) +
             ", first at " + first_wrong;
  }
  return {};
}

void check_product(const Problem& p, const Variant& v, const Shape& s, std::uint32_t seed) {
  INFO(v.text(), " m=", s.m, " n=", s.n, " k=", s.k, " gap=", s.gap, " shift=", s.shift);
  CHECK(complaint_about(p, v, s, seed) == "");
}

// A weight-only product; B has a row of scale 0, one of 254 and one of NaN where it has rows
// enough.
void check_weight_only(const Problem& p, const Variant& v, const Shape& s, std::uint32_t seed) {
  INFO(v.text(), " m=", s.m, " n=", s.n, " k=", s.k, " gap=", s.gap, " shift=", s.shift);
  auto b = cuda_test::random_operand(s.n, round_up(s.k, 32), Data::forward, seed);
  for (auto& scale : b.scales) scale = static_cast<std::uint8_t>(126 + scale % 3);
  const auto blocks = b.k / 32;
  for (std::int64_t k = s.k; k < b.k; ++k)
    for (std::int64_t row = 0; row < b.rows; ++row) {
      auto& byte = b.codes[static_cast<std::size_t>((row * b.k + k) / 2)];
      byte = static_cast<std::uint8_t>(k % 2 == 0 ? byte & 0xf0 : byte & 0x0f);
    }
  if (b.rows > 4 && blocks > 0) {
    std::fill_n(b.scales.begin() + blocks, blocks, std::uint8_t{0});
    std::fill_n(b.codes.begin() + 2 * b.k / 2, b.k / 2, std::uint8_t{0});
    std::fill_n(b.scales.begin() + 2 * blocks, blocks, std::uint8_t{254});
    b.codes[static_cast<std::size_t>(b.k)] = 1;  // 0.5
    b.scales[static_cast<std::size_t>(4 * blocks + blocks / 2)] = 255;
  }
  const auto a = noise(p.a_type, s.m * (s.k + s.gap) + s.shift, seed + 1);
  const auto size_a = bytes_of(p.a_type), size = bytes_of(p.d_type);
  const auto a_at = [&](std::int64_t i, std::int64_t k) {
    return double(cuda_test::as_float(
        p.a_type, &a[static_cast<std::size_t>((s.shift + i * (s.k + s.gap) + k) * size_a)]));
  };
  const OperandMemory b_memory(b, 0, 0, hip::weight_only().b_layout(p, v));
  const Memory a_memory(a);
  const auto old = noise(p.d_type, s.m * s.n, seed + 2), bias = noise(p.d_type, s.n, seed + 3);
  Memory d(old.size()), bias_memory(bias);
  qt_args args{};
  args.m = s.m;
  args.n = s.n;
  args.k = s.k;
  args.batch = args.groups = 1;
  args.a = {a_memory.data() + s.shift * size_a, nullptr, s.k + s.gap, 0, 0, 0};
  args.b = b_memory.tensor;
  args.d = args.c = {d.data(), nullptr, s.n, 0, 0, 0};
  args.alpha = 0.75f;
  args.beta = p.accumulate == Accumulate::accumulate ? 0.5f : 0.0f;
  args.bias = bias_memory.data();
  const auto parts = hip::weight_only().workspace_bytes(p, v, {s.m, s.n, s.k});
  const Memory workspace(std::vector<unsigned char>(static_cast<std::size_t>(parts), 0xff));
  args.workspace = workspace.data();
  for (const auto& schedule : kSchedules) {
    if (!old.empty()) std::memcpy(d.data(), old.data(), old.size());
    run(hip::weight_only(), p, v, args, schedule);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t j = 0; j < s.n; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < s.k; ++k) sum += a_at(i, k) * b.value(j, k);
        REQUIRE((std::isnan(sum) || std::isinf(float(sum)) || double(float(sum)) == sum));
        const auto at = static_cast<std::size_t>((i * s.n + j) * size);
        float z = args.alpha * float(sum);
        if (args.beta != 0) z += args.beta * cuda_test::as_float(p.d_type, &old[at]);
        if (p.bias == Bias::per_column)
          z += cuda_test::as_float(p.d_type, &bias[static_cast<std::size_t>(j * size)]);
        wrong += !same(p.d_type, d.data() + at, z);
      }
    CHECK(wrong == 0);
  }
}

Problem any_product(DType d_type) { return gemm_problem({0, 4096}, {1, 4096}, {0, 4096}, d_type); }

// z as the exact sums make it, at a row and a column of z.
float z_of(const Quantized& a, const Quantized& b, std::int64_t i, std::int64_t j, float alpha,
           DType type, const std::vector<unsigned char>& bias) {
  const float z = alpha * exact_sum(a, b, i, j);
  return z + cuda_test::as_float(type, &bias[static_cast<std::size_t>(j * bytes_of(type))]);
}

}  // namespace

TEST_CASE("simulated hip products: awkward shapes, aligned and not, in every tile shape") {
  const auto& family = hip::gemm_mfma_scale();
  const auto plain = any_product(DType::f32);
  const auto small = with(family, plain, {{"tile_m", 64}, {"tile_n", 64}, {"stages", 3}});
  for (const auto& s : {Shape{1, 1, 32}, Shape{7, 5, 64}, Shape{129, 70, 96}, Shape{65, 130, 512},
                        Shape{64, 64, 672, 96, 0}, Shape{5, 9, 160, 32, 1}, Shape{3, 4, 0}})
    check_product(plain, small, s, 11);

  auto full = any_product(DType::bf16);
  full.accumulate = Accumulate::accumulate;
  full.bias = Bias::per_column;
  const auto wide = with(family, full, {{"tile_m", 64}, {"tile_n", 128}, {"shape", 32}});
  for (const auto& s : {Shape{1, 1000, 64}, Shape{70, 131, 416}, Shape{33, 8, 256, 0, 1}})
    check_product(full, wide, s, 12);

  auto few = gemm_problem({0, 16}, {1, 4096}, {0, 4096}, DType::f16);
  const auto flat = with(family, few, {{"tile_m", 16}, {"tile_n", 64}, {"stages", 4}});
  for (const auto& s : {Shape{7, 100, 896}, Shape{16, 64, 128}, Shape{1, 1, 1024, 64, 0}})
    check_product(few, flat, s, 13);
}

TEST_CASE("simulated hip products share out K among blocks") {
  const auto& family = hip::gemm_mfma_scale();
  auto p = gemm_problem({0, 512}, {1, 512}, {0, 131072}, DType::f32);
  p.accumulate = Accumulate::accumulate;
  p.bias = Bias::per_column;
  const auto three = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"splits", 3}});
  // With whole and other last stages, unaligned, fewer stages than parts, and no K at all.
  for (const auto& s : {Shape{70, 130, 1312}, Shape{65, 7, 1024}, Shape{5, 9, 672, 32, 1},
                        Shape{3, 70, 160}, Shape{3, 4, 0}})
    check_product(p, three, s, 17);
  const auto tiles = with(family, p,
                          {{"tile_m", 32},
                           {"tile_n", 128},
                           {"shape", 32},
                           {"stages", 4},
                           {"scales", 1},
                           {"splits", 8}});
  check_product(p, tiles, {40, 100, 1184}, 18);
}

TEST_CASE("simulated hip products read scales in tiles, of both operands or of one") {
  const auto& family = hip::gemm_mfma_scale();
  auto p = any_product(DType::f32);
  const auto tiles = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"scales", 1}});
  for (const auto& s : {Shape{1, 1, 32}, Shape{70, 130, 512}, Shape{129, 66, 672},
                        Shape{40, 5, 1184, 32, 0}, Shape{9, 70, 416, 0, 1}})
    check_product(p, tiles, s, 15);
  p.a_layout = Layout::plain;
  p.b_layout = Layout::aiter;
  check_product(p, with(family, p, {{"tile_m", 64}, {"tile_n", 128}, {"shape", 32}, {"scales", 2}}),
                {33, 70, 640}, 16);
}

TEST_CASE("simulated hip products read weights in panels of 16 rows") {
  const auto& family = hip::gemm_mfma_scale();
  const auto p = any_product(DType::f32);
  for (const std::int64_t scales : {4, 5}) {
    const auto v = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"scales", scales}});
    for (const auto& s : {Shape{1, 1, 32}, Shape{70, 130, 512}, Shape{9, 70, 416, 0, 1}})
      check_product(p, v, s, 17);
  }
  check_product(p, with(family, p, {{"tile_m", 64}, {"tile_n", 128}, {"shape", 32}, {"scales", 4}}),
                {33, 77, 672}, 18);
}

TEST_CASE("simulated hip weight-only products: awkward shapes, both types, every layout of B") {
  auto p = any_product(DType::f32);
  p.a_type = DType::bf16;
  for (const std::int64_t weights : {0, 1, 2}) {
    const auto v = with(hip::weight_only(), p,
                        {{"tile_m", 64}, {"tile_n", 64}, {"stages", 3}, {"weights", weights}});
    for (const auto& s : {Shape{1, 1, 32}, Shape{7, 5, 64}, Shape{129, 70, 96}, Shape{65, 130, 544},
                          Shape{5, 9, 160, 32, 1}, Shape{3, 4, 0}})
      check_weight_only(p, v, s, 61);
  }
  auto few = p;
  few.a_type = few.d_type = DType::f16;
  few.m = {0, 16};
  few.bias = Bias::per_column;
  few.accumulate = Accumulate::accumulate;
  const auto flat = with(hip::weight_only(), few, {{"tile_m", 16}, {"tile_n", 128}, {"stages", 4}});
  for (const auto& s : {Shape{7, 100, 896}, Shape{16, 128, 128}, Shape{1, 3, 1024, 64, 0}})
    check_weight_only(few, flat, s, 62);
  // K of A that is no multiple of a block: tokens, whose copies in B are padded.
  p.role = Role::wgrad;
  check_weight_only(p, with(hip::weight_only(), p, {{"tile_m", 32}, {"tile_n", 64}}), {33, 40, 301},
                    63);
}

TEST_CASE("simulated hip weight-only products share out K among blocks") {
  auto p = gemm_problem({0, 64}, {1, 512}, {0, 131072}, DType::f32);
  p.a_type = DType::bf16;
  p.accumulate = Accumulate::accumulate;
  const auto three =
      with(hip::weight_only(), p,
           {{"tile_m", 64}, {"tile_n", 64}, {"stages", 3}, {"weights", 1}, {"splits", 3}});
  // With whole and other last stages, unaligned, fewer stages than parts, and no K at all.
  for (const auto& s :
       {Shape{65, 70, 1312}, Shape{5, 9, 672, 8, 1}, Shape{3, 70, 160}, Shape{3, 4, 0}})
    check_weight_only(p, three, s, 64);
  const auto flat =
      with(hip::weight_only(), p, {{"tile_m", 32}, {"tile_n", 128}, {"weights", 2}, {"splits", 8}});
  check_weight_only(p, flat, {17, 130, 1184}, 65);
}

TEST_CASE("simulated hip products of large tiles with two stages") {
  const auto& family = hip::gemm_mfma_scale();
  const auto p = any_product(DType::bf16);
  check_product(p, with(family, p, {{"tile_m", 256}, {"tile_n", 256}, {"stages", 2}}),
                {300, 280, 288}, 14);
}

TEST_CASE("simulated hip products pair a SwiGLU's columns, keep z, and follow groups of rows") {
  const auto& family = hip::gemm_mfma_scale();
  auto p = any_product(DType::f32);
  p.epilogue = Epilogue::swiglu_split;
  p.pre_activation = PreActivation::kept;
  p.bias = Bias::per_column;
  const std::int64_t m = 37, n = 74, k = 288;
  const auto a = cuda_test::random_operand(m, k, Data::forward, 21);
  const auto b = cuda_test::random_operand(n, k, Data::forward, 22);
  const OperandMemory a_memory(a, 0, 0), b_memory(b, 0, 0);
  const auto bias = noise(DType::f32, n, 23);
  const Memory d(static_cast<std::size_t>(m * n / 2 * 4)), z(static_cast<std::size_t>(m * n * 4)),
      bias_memory(bias);
  qt_args args{};
  args.m = m;
  args.n = n;
  args.k = k;
  args.batch = args.groups = 1;
  args.a = a_memory.tensor;
  args.b = b_memory.tensor;
  args.d = {d.data(), nullptr, n / 2, 0, 0, 0};
  args.z = {z.data(), nullptr, n, 0, 0, 0};
  args.alpha = 0.0625f;
  args.bias = bias_memory.data();
  const auto v = with(family, p, {{"tile_m", 64}, {"tile_n", 64}, {"stages", 2}});
  for (const auto& schedule : kSchedules) {
    std::memset(z.data(), 0xff, z.bytes());
    std::memset(d.data(), 0xff, d.bytes());
    run(family, p, v, args, schedule);
    std::int64_t wrong = 0, wrong_outputs = 0;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const float want = z_of(a, b, i, j, args.alpha, DType::f32, bias);
        wrong += !same(DType::f32, z.data() + (i * n + j) * 4, want);
        if (j >= n / 2) continue;
        const double value = z_of(a, b, i, j + n / 2, args.alpha, DType::f32, bias);
        const double output = double(want) / (1 + std::exp(-double(want))) * value;
        const float got = cuda_test::as_float(DType::f32, d.data() + (i * n / 2 + j) * 4);
        wrong_outputs += !(std::fabs(got - output) <= 1e-6 * std::fabs(output) + 1e-30);
      }
    CHECK(wrong == 0);
    CHECK(wrong_outputs == 0);
  }

  auto grouped = any_product(DType::f32);
  grouped.grouping = Grouping::m_contiguous;
  grouped.groups = {1, 8};
  const std::int64_t groups = 4, each = 30;
  const auto weights = cuda_test::random_operand(groups * each, k, Data::forward, 24);
  const OperandMemory weights_memory(weights, 0, 0);
  const std::vector<int> ends = {5, 5, 30, 34};  // rows behind the last belong to nobody
  std::vector<unsigned char> bytes(ends.size() * 4);
  std::memcpy(bytes.data(), ends.data(), bytes.size());
  const Memory sizes(bytes), rows(static_cast<std::size_t>(m * each * 4));
  args.n = each;
  args.groups = groups;
  args.group_sizes = reinterpret_cast<const int*>(sizes.data());
  args.b = weights_memory.tensor;
  args.b.batch_stride = each * weights.k;
  args.b.scale_batch_stride = each * weights.k / 32;
  args.d = {rows.data(), nullptr, each, 0, 0, 0};
  args.bias = nullptr;
  std::memset(rows.data(), 0xff, rows.bytes());
  run(family, grouped, with(family, grouped, {{"tile_m", 32}, {"tile_n", 64}}), args,
      kSchedules[0]);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < each; ++j) {
      std::size_t group = 0;
      while (group < ends.size() && i >= ends[group]) ++group;
      const auto* got = rows.data() + (i * each + j) * 4;
      const auto column = static_cast<std::int64_t>(group) * each + j;
      wrong += group == ends.size()
                   ? std::memcmp(got, "\xff\xff\xff\xff", 4) != 0
                   : !same(DType::f32, got, args.alpha * exact_sum(a, weights, i, column));
    }
  CHECK(wrong == 0);
}
