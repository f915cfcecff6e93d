// Quantisers, packs and simple kernels of the HIP families on the simulated machine give the scalar
// reference's bits; copies land as early and as late as they may.
#include <cmath>
#include <random>

#include "reference/column_sums.hpp"
#include "tests/hip/simulated_runs.hpp"

using namespace hip_test;

namespace {

float of_bits(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// Values that look like tensors, with one block in a few of each hard kind.
std::vector<float> awkward(std::int64_t rows, std::int64_t k, std::uint32_t seed) {
  std::mt19937 engine(seed);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  std::uint32_t kind = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) kind = random() % 20;
    float v = normal(engine);
    if (kind == 0) v = random() % 2 ? -0.0f : 0.0f;
    if (kind == 1) v = static_cast<float>(random() % 25) * 0.25f;  // ties
    if (kind == 2 && random() % 16 == 0) v = of_bits(0x7fc00000u | random() % 2 << 31);
    if (kind == 3 && random() % 16 == 0) v = of_bits(0x7f800000u | random() % 2 << 31);
    if (kind == 4) v = of_bits(random() % 0x00800000u);  // subnormal
    if (kind == 5) v = std::ldexp(v, 100);
    if (kind == 6) v = std::ldexp(v, -110);
    x[i] = v;
  }
  return x;
}

std::int64_t wrong_bytes(const Quantized& want, const Memory& codes, const Memory& scales,
                         Layout layout) {
  std::int64_t wrong = 0;
  if (layout == Layout::aiter || layout == Layout::aiter_16x16) {
    const auto expected = shuffled(want);
    const auto in_place = layout == Layout::aiter ? want.codes : panels(want);
    REQUIRE(expected.size() == scales.bytes());
    REQUIRE(in_place.size() == codes.bytes());
    for (std::size_t i = 0; i < in_place.size(); ++i) wrong += codes.data()[i] != in_place[i];
    for (std::size_t i = 0; i < expected.size(); ++i) wrong += scales.data()[i] != expected[i];
    return wrong;
  }
  for (std::size_t i = 0; i < want.codes.size(); ++i) wrong += codes.data()[i] != want.codes[i];
  for (std::size_t i = 0; i < want.scales.size(); ++i) wrong += scales.data()[i] != want.scales[i];
  return wrong;
}

struct Copy {
  Memory codes, scales;
  qt_tensor tensor;
  Copy(std::int64_t rows, std::int64_t k, Layout layout)
      : codes(static_cast<std::size_t>(operand_bytes(layout, rows, k).codes)),
        scales(static_cast<std::size_t>(operand_bytes(layout, rows, k).scales)),
        tensor{codes.data(), scales.data(), k, k / 32, 0, 0} {}
  void clear() const {
    std::memset(codes.data(), 0xff, codes.bytes());
    std::memset(scales.data(), 0xff, scales.bytes());
  }
};

void check_quantize(const Problem& p, std::int64_t m, std::int64_t k, std::int64_t gap,
                    std::uint32_t seed) {
  INFO(p.key(), " m=", m, " k=", k, " gap=", gap);
  const Family& family = *find_family(
      p.a_rounding == Rounding::sr_cvt_scalef32 ? "hip_quantize_cvt_scalef32" : "hip_quantize");
  const auto v = family.default_variant(p, kTarget);
  auto x = awkward(m, k, seed);
  const auto tight = cuda_test::stored(p.a_type, x);
  const auto size = bytes_of(p.a_type);
  // The last row ends with the memory.
  std::vector<unsigned char> strided(
      static_cast<std::size_t>(std::max<std::int64_t>(0, m * (k + gap) - gap) * size), 0xff);
  for (std::int64_t i = 0; i < m; ++i)
    std::copy_n(tight.begin() + i * k * size, k * size, strided.begin() + i * (k + gap) * size);
  const Memory in(strided);
  const auto unit = padding_unit(p);
  const Copy rows(m, round_up(k, unit), p.d_layout), columns(k, round_up(m, unit), p.d_layout);
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = args.groups = 1;
  args.a = {in.data(), nullptr, k + gap, 0, 0, 0};
  args.noise_seed = 0x1234567890abcdefull + seed;
  args.sign_seed = 77 + seed;
  for (std::uint32_t i = 0; i < 8; ++i) args.sign_mask[i] = 0x9e3779b9u * (i + 1 + seed);
  args.stream = 5;
  args.operand = seed % 2;
  const bool by_rows = p.copies != Copies::columns, by_columns = p.copies != Copies::rows;
  args.d = by_rows ? rows.tensor : columns.tensor;
  args.d2 = columns.tensor;
  const auto spec = cuda_test::spec_of(p, p.a_rounding, args);
  const auto want_rows = reference::quantize(x.data(), m, k, k, spec);
  const auto want_columns = reference::quantize_columns(x.data(), m, k, k, spec);
  for (const auto& schedule : kSchedules) {
    rows.clear();
    columns.clear();
    run(family, p, v, args, schedule);
    INFO("seed ", schedule.seed);
    if (by_rows) CHECK(wrong_bytes(want_rows, rows.codes, rows.scales, p.d_layout) == 0);
    if (by_columns)
      CHECK(wrong_bytes(want_columns, columns.codes, columns.scales, p.d_layout) == 0);
  }
}

Problem any_quantize(DType type, std::int32_t g, Signs signs, ScaleRule rule, Rounding rounding,
                     Copies copies) {
  auto p = quantize_problem({0, 4096}, {0, 4096}, type, g, rule, rounding, copies);
  p.role = Role::wgrad;  // any sizes
  p.signs = signs;
  return p;
}

}  // namespace

TEST_CASE("simulated hip packs move every layout to every other, and back") {
  constexpr Layout layouts[] = {Layout::plain, Layout::aiter, Layout::aiter_16x16};
  for (const auto& [rows, k] :
       {std::pair<std::int64_t, std::int64_t>{1, 32}, {37, 288}, {70, 1056}})
    for (const Layout from : layouts)
      for (const Layout to : layouts) {
        INFO(name_of(from), " to ", name_of(to), " rows=", rows, " k=", k);
        const auto q = cuda_test::random_operand(rows, k, Data::wide, 71);
        Problem p;
        p.op = Op::pack;
        p.role = Role::wgrad;  // any sizes
        p.m = p.k = {0, 4096};
        p.a_type = p.d_type = DType::mxfp4;
        p.a_layout = from;
        p.d_layout = to;
        const OperandMemory given(q, 0, from == Layout::plain && rows == 37 ? 1 : 0, from);
        const OperandMemory wanted(q, 0, 0, to);
        const Copy moved(rows, k, to);
        qt_args args{};
        args.m = rows;
        args.k = k;
        args.batch = args.groups = 1;
        args.a = given.tensor;
        args.d = moved.tensor;
        moved.clear();
        run(hip::pack(), p, hip::pack().default_variant(p, kTarget), args, kSchedules[0]);
        REQUIRE(moved.codes.bytes() == wanted.codes.bytes());
        REQUIRE(moved.scales.bytes() == wanted.scales.bytes());
        CHECK(std::memcmp(moved.codes.data(), wanted.codes.data(), wanted.codes.bytes()) == 0);
        CHECK(std::memcmp(moved.scales.data(), wanted.scales.data(), wanted.scales.bytes()) == 0);
      }
}

TEST_CASE("simulated hip quantisers give the reference's bits") {
  using enum ScaleRule;
  constexpr auto rne = Rounding::rne, sr16 = Rounding::sr16;
  const auto all = {
      any_quantize(DType::bf16, 32, Signs::per_call, rceil, rne, Copies::rows),
      any_quantize(DType::f32, 64, Signs::fixed, rceil, sr16, Copies::both),
      any_quantize(DType::f16, 128, Signs::fixed, search, rne, Copies::columns),
      any_quantize(DType::bf16, 256, Signs::per_call, ts34, sr16, Copies::both),
      any_quantize(DType::bf16, 16, Signs::none, quest, rne, Copies::rows),
  };
  std::uint32_t seed = 31;
  for (const auto& p : all) {
    check_quantize(p, 70, 1000, 0, seed++);
    check_quantize(p, 7, 96, 8, seed++);
    check_quantize(p, 129, 160, 1, seed++);
  }
  auto tiles = any_quantize(DType::bf16, 32, Signs::none, rceil, rne, Copies::both);
  for (const Layout layout : {Layout::aiter, Layout::aiter_16x16}) {
    tiles.d_layout = layout;
    check_quantize(tiles, 70, 1000, 0, seed++);
    check_quantize(tiles, 7, 96, 0, seed++);
  }
  tiles.copies = Copies::rows;
  check_quantize(tiles, 81, 264, 3, seed++);
  auto squares = any_quantize(DType::bf16, 0, Signs::none, even, rne, Copies::both);
  squares.scale_block = ScaleBlock::b32x32;
  check_quantize(squares, 70, 100, 0, seed++);
  squares.d_layout = Layout::aiter_16x16;
  check_quantize(squares, 70, 100, 0, seed++);
}

TEST_CASE("simulated hip quantisers by gfx950's own rounding give the reference's bits") {
  using enum ScaleRule;
  constexpr auto own = Rounding::sr_cvt_scalef32;
  std::uint32_t seed = 81;
  auto tiles = any_quantize(DType::bf16, 32, Signs::none, rceil, own, Copies::both);
  tiles.d_layout = Layout::aiter;
  check_quantize(tiles, 70, 264, 0, seed++);
  check_quantize(any_quantize(DType::f32, 64, Signs::fixed, rceil, own, Copies::rows), 37, 1000, 3,
                 seed++);
  check_quantize(any_quantize(DType::bf16, 0, Signs::none, quest, own, Copies::columns), 70, 100, 0,
                 seed++);
  check_quantize(any_quantize(DType::f16, 256, Signs::per_call, ts34, own, Copies::rows), 7, 300, 0,
                 seed++);
  auto squares = any_quantize(DType::bf16, 0, Signs::none, rceil, own, Copies::both);
  squares.scale_block = ScaleBlock::b32x32;
  check_quantize(squares, 70, 100, 0, seed++);
}

TEST_CASE("simulated hip simple kernels: dequantise, rotate, add columns up") {
  const std::int64_t m = 37, k = 160;
  Problem p;
  p.role = Role::wgrad;  // any sizes
  p.m = p.k = {0, 4096};
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = args.groups = 1;
  const auto run_all = [&](const char* name, const auto& check) {
    const Family& family = *find_family(name);
    for (const auto& schedule : kSchedules) {
      run(family, p, family.default_variant(p, kTarget), args, schedule);
      check();
    }
  };

  const auto q = cuda_test::random_operand(m, k, Data::wide, 51);
  const OperandMemory q_memory(q, 0, 0);
  const Memory d(static_cast<std::size_t>(m * k * 2));
  p.op = Op::dequantize;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_type = DType::bf16;
  args.a = q_memory.tensor;
  args.d = {d.data(), nullptr, k, 0, 0, 0};
  run_all("hip_dequantize", [&] {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < m * k; ++i)
      wrong += !same(p.d_type, d.data() + i * 2, static_cast<float>(q.value(i / k, i % k)));
    CHECK(wrong == 0);
  });

  auto x = awkward(m, k, 52);
  const Memory in(cuda_test::stored(DType::bf16, x));
  const Memory rotated(static_cast<std::size_t>(m * k * 4));
  p.op = Op::hadamard;
  p.k = Extent::exactly(k);
  p.a_type = DType::bf16;
  p.a_layout = Layout::chosen;
  p.d_type = DType::f32;
  p.rotation = 32;
  args.a = {in.data(), nullptr, k, 0, 0, 0};
  args.d = {rotated.data(), nullptr, k, 0, 0, 0};
  auto want = x;
  const auto spec = cuda_test::spec_of(p, Rounding::rne, args);
  for (std::int64_t i = 0; i < m; ++i)
    reference::rotate_row(std::span(want).subspan(static_cast<std::size_t>(i * k), k), spec);
  run_all("hip_hadamard", [&] {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < m * k; ++i)
      wrong += !same(DType::f32, rotated.data() + i * 4, want[static_cast<std::size_t>(i)]);
    CHECK(wrong == 0);
  });

  const Memory sums(static_cast<std::size_t>(k * 4));
  p.op = Op::column_sums;
  p.rotation = 0;
  args.d = {sums.data(), nullptr, k, 0, 0, 0};
  const auto want_sums = reference::column_sums(x.data(), m, k, k);
  run_all("hip_column_sums", [&] {
    std::int64_t wrong = 0;
    for (std::int64_t j = 0; j < k; ++j)
      wrong += !same(DType::f32, sums.data() + j * 4, want_sums[static_cast<std::size_t>(j)]);
    CHECK(wrong == 0);
  });
}
