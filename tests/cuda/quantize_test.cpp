// cuda_quantize on a GPU: every mode's bits are those of the scalar reference, for every layout, on
// awkward shapes, strided and misaligned views, with NaN, Inf, zeros, subnormals and ties.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/cuda/device.hpp"
#include "tests/cuda/oracle.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

std::uint32_t bits(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
}
float of_bits(std::uint32_t u) {
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

// Values that look like tensors, with one block in a few of each hard kind.
std::vector<float> awkward(std::int64_t rows, std::int64_t k, std::uint32_t seed, bool extremes) {
  std::mt19937 engine(seed);
  const auto random = [&engine] { return static_cast<std::uint32_t>(engine()); };
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(rows * k));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < k; j += 32) {
      const auto kind = extremes ? random() % 24 : 23;
      const float scale = std::ldexp(1.0f, static_cast<int>(random() % 7) - 3);
      for (std::int64_t e = j; e < std::min(k, j + 32); ++e) {
        float v = normal(engine) * scale;
        if (kind == 0) v = 0.0f;
        if (kind == 1) v = (random() % 2) ? -0.0f : 0.0f;
        // Ties of the codes under a scale of 1, and their neighbours in binary32.
        if (kind == 2 || kind == 3) {
          v = static_cast<float>(random() % 25) * 0.25f;
          v = of_bits(bits(v) + random() % 3 - (v > 0 ? 1 : 0));
          if (random() % 2) v = -v;
          if (e == j) v = 6.0f;
        }
        if (kind == 4 && random() % 16 == 0) v = of_bits(0x7fc00000u | random() % 2 << 31);
        if (kind == 5 && random() % 16 == 0) v = of_bits(0x7f800000u | random() % 2 << 31);
        if (kind == 6) v = of_bits(random() % 0x00800000u);  // subnormal
        if (kind == 7) v = std::ldexp(v, 100);
        if (kind == 8) v = std::ldexp(v, -110);
        if (kind == 9) v = of_bits(0x7f000000u + random() % 0x7fffffu);  // close to the largest
        x[static_cast<std::size_t>(i * k + e)] = v;
      }
    }
  return x;
}

struct Shape {
  std::int64_t m, k;
  std::int64_t extra = 0;   // elements between rows beyond k
  std::int64_t offset = 0;  // elements before the first
  std::int64_t batch = 1;
};

// Bytes of the result that differ from the oracle's, packed as the layout says.
std::int64_t wrong_bytes(const Quantized& want, Layout layout,
                         const std::vector<unsigned char>& codes,
                         const std::vector<unsigned char>& scales, std::int64_t ld,
                         std::int64_t scale_ld) {
  std::int64_t wrong = 0;
  const auto blocks = want.k / 32;
  for (std::int64_t i = 0; i < want.rows; ++i) {
    for (std::int64_t j = 0; j < want.k / 2; ++j)
      wrong += codes[static_cast<std::size_t>(i * ld / 2 + j)] !=
               want.codes[static_cast<std::size_t>(i * want.k / 2 + j)];
    for (std::int64_t b = 0; b < blocks; ++b) {
      const auto at =
          layout == Layout::scales_128x4
              ? (i / 128 * ceil_div(blocks, 4) + b / 4) * 512 + i % 32 * 16 + i / 32 % 4 * 4 + b % 4
              : i * scale_ld + b;
      wrong += scales[static_cast<std::size_t>(at)] !=
               want.scales[static_cast<std::size_t>(i * blocks + b)];
    }
  }
  return wrong;
}

std::int64_t wrong_expanded(const Quantized& codes, Layout layout,
                            const std::vector<unsigned char>& data,
                            const std::vector<unsigned char>& references) {
  const auto want = expand(codes, layout);
  std::int64_t wrong = 0;
  for (std::int64_t i = 0; i < codes.rows; ++i) {
    wrong += references[static_cast<std::size_t>(i)] != want.reference[static_cast<std::size_t>(i)];
    const bool unfit = want.reference[static_cast<std::size_t>(i)] == 255;
    // A row that does not fit says nothing about bytes behind its codes and scales.
    for (std::int64_t j = 0; j < want.pitch; ++j) {
      const bool meant = !unfit || j < want.pitch / 2 + want.pitch / 32;
      const auto at = static_cast<std::size_t>(i * want.pitch + j);
      wrong += meant && data[at] != want.data[at];
    }
  }
  return wrong;
}

void check_case(Device& device, const Problem& p, const Variant& variant, const Shape& s,
                std::uint32_t seed) {
  const auto& family = cuda::quantize();
  const bool by_rows = p.copies != Copies::columns, by_columns = p.copies != Copies::rows;
  const bool is_expanded = p.d_layout == Layout::e5m2 || p.d_layout == Layout::int8_rows;
  const bool is_bf16 = p.d_layout == Layout::bf16;
  // Expanded rows: mostly such as fit.
  auto x = awkward(s.m, s.k, seed, !is_expanded || seed % 2 == 0);
  const auto packed_x = stored(p.a_type, x);
  const auto size = bytes_of(p.a_type);
  const auto ld = s.k + s.extra;
  std::vector<unsigned char> source(static_cast<std::size_t>((s.offset + s.m * ld) * size), 0xff);
  for (std::int64_t i = 0; i < s.m; ++i)
    std::memcpy(source.data() + (s.offset + i * ld) * size, packed_x.data() + i * s.k * size,
                static_cast<std::size_t>(s.k * size));
  Memory in(device, source);

  qt_args args{};
  args.m = s.m;
  args.k = s.k;
  args.batch = 1;
  args.a = {in.data() + s.offset * size, nullptr, ld, 0, 0, 0};
  args.noise_seed = 0x1234567890abcdefull + seed;
  args.sign_seed = 77 + seed;
  for (std::uint32_t i = 0; i < 8; ++i) args.sign_mask[i] = 0x9e3779b9u * (i + 1 + seed);
  args.stream = 5;
  args.operand = seed % 2;

  const auto unit = padding_unit(p);
  const auto row_bytes = operand_bytes(p.d_layout, s.m, s.k, unit);
  const auto column_bytes = operand_bytes(p.d_layout, s.k, s.m, unit);
  Memory codes(device, by_rows ? row_bytes.codes : 0),
      scales(device, by_rows ? row_bytes.scales : 0);
  Memory codes2(device, by_columns ? column_bytes.codes : 0),
      scales2(device, by_columns ? column_bytes.scales : 0);
  const auto k_padded = round_up(s.k, unit), m_padded = round_up(s.m, unit);
  const qt_tensor rows_out = {codes.data(), scales.data(), k_padded, k_padded / 32, 0, 0};
  const qt_tensor columns_out = {codes2.data(), scales2.data(), m_padded, m_padded / 32, 0, 0};
  args.d = by_rows ? rows_out : columns_out;
  args.d2 = columns_out;
  device.run(family, p, variant, args);
  device.synchronize();

  INFO(p.key(), " m=", s.m, " k=", s.k, " extra=", s.extra, " offset=", s.offset);
  if (by_rows) {
    const auto want = reference::quantize(x.data(), s.m, s.k, s.k, spec_of(p, p.a_rounding, args));
    const auto data = codes.download(), bytes = scales.download();
    CHECK((is_bf16 ? wrong_bf16(want, data.data())
           : is_expanded
               ? wrong_expanded(want, p.d_layout, data, bytes)
               : wrong_bytes(want, p.d_layout, data, bytes, k_padded, k_padded / 32)) == 0);
  }
  if (by_columns) {
    const auto want =
        reference::quantize_columns(x.data(), s.m, s.k, s.k, spec_of(p, p.a_rounding, args));
    const auto data = codes2.download(), bytes = scales2.download();
    CHECK((is_bf16 ? wrong_bf16(want, data.data())
                   : wrong_bytes(want, p.d_layout, data, bytes, m_padded, m_padded / 32)) == 0);
  }
}

Problem problem(DType type, std::int32_t g, Signs signs, ScaleRule rule, Rounding rounding,
                Copies copies, Layout layout) {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 1 << 20};
  p.k = {0, 16384};
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.rotation = g;
  p.signs = signs;
  p.scale_rule = rule;
  p.a_rounding = rounding;
  p.biased = BiasedRounding::allowed;
  p.copies = copies;
  p.d_layout = layout;
  return p;
}

Problem squares(DType type, ScaleRule rule, Rounding rounding, Copies copies, Layout layout) {
  auto p = problem(type, 0, Signs::none, rule, rounding, copies, layout);
  p.scale_block = ScaleBlock::b32x32;
  return p;
}

// Every value of every field at least once, the common ones in most combinations.
std::vector<Problem> problems() {
  using enum ScaleRule;
  constexpr auto bf16 = DType::bf16, f16 = DType::f16, f32 = DType::f32;
  constexpr auto rne = Rounding::rne, sr16 = Rounding::sr16;
  constexpr auto rows = Copies::rows, columns = Copies::columns, both = Copies::both;
  constexpr auto plain = Layout::plain, tiled = Layout::scales_128x4, e5m2 = Layout::e5m2,
                 int8 = Layout::int8_rows, wide = Layout::bf16;
  constexpr auto none = Signs::none, fixed = Signs::fixed, per_call = Signs::per_call;
  return {
      problem(bf16, 32, none, rceil, rne, rows, plain),
      problem(bf16, 32, per_call, rceil, sr16, both, plain),
      problem(f32, 64, fixed, rceil, sr16, both, plain),
      problem(f16, 128, fixed, rceil, rne, both, tiled),
      problem(bf16, 256, per_call, rceil, sr16, both, plain),
      problem(f32, 256, fixed, ceil, rne, columns, plain),
      problem(bf16, 16, fixed, ceil, sr16, both, plain),
      problem(bf16, 0, none, floor, rne, both, plain),
      problem(f32, 0, none, floor, sr16, rows, tiled),
      problem(f16, 32, none, even, rne, both, plain),
      problem(bf16, 32, none, ts34, sr16, both, plain),
      problem(f32, 32, none, ts34, rne, rows, plain),
      problem(bf16, 32, none, quest, rne, both, plain),
      problem(f32, 64, none, quest_qutlass, sr16, rows, plain),
      problem(bf16, 128, fixed, search, rne, both, plain),
      problem(bf16, 32, none, rceil, Rounding::sr22, rows, plain),
      problem(f32, 0, none, rceil, Rounding::sr8, columns, plain),
      problem(f32, 16, none, rceil, Rounding::half_away, rows, plain),
      problem(bf16, 32, none, even, Rounding::half_to_zero, columns, plain),
      problem(bf16, 32, none, rceil, rne, rows, e5m2),
      problem(bf16, 64, per_call, rceil, sr16, rows, e5m2),
      problem(f32, 256, fixed, ceil, rne, rows, e5m2),
      problem(f16, 0, none, floor, rne, rows, e5m2),
      problem(bf16, 32, fixed, rceil, rne, rows, int8),
      problem(bf16, 128, none, rceil, sr16, rows, int8),
      problem(bf16, 32, none, rceil, rne, rows, wide),
      problem(bf16, 32, per_call, rceil, sr16, both, wide),
      problem(f32, 256, fixed, rceil, sr16, both, wide),
      problem(bf16, 64, fixed, ceil, sr16, columns, wide),
      problem(f16, 128, per_call, floor, rne, columns, wide),
      squares(bf16, rceil, rne, both, plain),
      squares(bf16, rceil, sr16, both, wide),
      squares(f32, ceil, sr16, both, tiled),
      squares(f16, floor, rne, rows, plain),
      squares(bf16, even, Rounding::half_away, columns, plain),
      squares(f32, rceil, Rounding::sr22, both, plain),
  };
}

}  // namespace

TEST_CASE("gpu.quantize gives the reference's bits") {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return;
  }
  const auto all = problems();
  std::vector<std::pair<Source, std::string>> sources;
  std::vector<std::pair<Problem, Variant>> cases;
  std::size_t index = 0;
  for (const auto& p : all) {
    if (is_left_out(*device, index++, 4)) continue;
    // Each problem under another of the variants.
    const auto variants = cuda::quantize().variants(p, device->target());
    cases.emplace_back(p, variants[cases.size() % variants.size()]);
    sources.emplace_back(cuda::quantize().emit(p, device->target(), cases.back().second), p.key());
  }
  compile_all(*device, sources);
  std::uint32_t seed = 1;
  for (const auto& [p, v] : cases) {
    if (device->simulated()) break;
    for (const Shape& s : {Shape{1, 32}, Shape{7, 64}, Shape{129, 96, 8}, Shape{33, 576, 1},
                           Shape{5, 1504, 0, 3}, Shape{257, 1824}, Shape{140, 2880, 32, 8},
                           Shape{70, 1000}, Shape{2, 8192}, Shape{0, 64}, Shape{9, 0}})
      check_case(*device, p, v, s, seed++);
  }
  // A few tiles each.
  for (const auto& [p, v] : cases)
    for (const Shape& s : {Shape{1, 32}, Shape{129, 96, 8}, Shape{33, 576, 1}, Shape{5, 1504, 0, 3},
                           Shape{70, 264}, Shape{0, 64}, Shape{9, 0}})
      if (device->simulated()) check_case(*device, p, v, s, seed++);
  // More tiles than blocks take at once.
  for (const auto& [p, v] : cases)
    if (p.copies == Copies::both && p.rotation == 64)
      check_case(*device, p, v, device->simulated() ? Shape{200, 1056} : Shape{1300, 4160}, 2);
}

namespace {

// Compares the short encodings with the defining text for every magnitude up to 6 and beyond, under
// several draws; counts differences.
constexpr const char* kExhaustive = R"(
#include "cuda/encode.h"
#include "args.h"
using namespace qt;
using namespace qt::cuda;
extern "C" __global__ void __launch_bounds__(256) exhaustive(const __grid_constant__ qt_args args) {
  const u32 magnitude = block_index() * 256u + thread_index();  // below 0x40c00001
  if (magnitude > 0x40c00000u) return;
  const float y = float_of(magnitude);
  unsigned long long wrong = 0;
  wrong += (nearest_code_on_top(y) >> 28) != e2m1_encode<Rounding::rne>(y, 0u);
  for (u32 i = 0; i < 8u; ++i) {
    const u32 r16 = i == 0 ? 0u : i == 1 ? 0xffffu : (magnitude * (2u * i + 1u) * 0x9e3779b1u) >> 16;
    const u32 want = e2m1_encode<Rounding::sr16>(y, r16 << 6 | 0x20u);
    const Philox call = {{r16 | 0xabcd0000u, r16 << 16 | 0x1234u, 0u, 0u}};
    wrong += (stochastic_code_on_top(y, draw_of(call, 0)) >> 28) != want;
    wrong += (stochastic_code_on_top(y, draw_of(call, 3)) >> 28) != want;
  }
  if (wrong) count_event(static_cast<unsigned long long*>(args.workspace), wrong);
}
)";

}  // namespace

TEST_CASE("gpu.encode: the short ways round every magnitude as the defining text does") {
  std::string why;
  Device* device = Device::find(why);
  if (!device) {
    std::cout << "SKIPPED: " << why << "\n";
    return;
  }
  Source source;
  source.language = Language::cuda;
  source.entry = "exhaustive";
  source.text = kExhaustive;
  Memory counter(*device, std::vector<std::uint64_t>{0});
  qt_args args{};
  args.workspace = counter.data();
  Launch launch;
  launch.grid = {0x40c00000u / 256 + 1, 1, 1};
  launch.block = {256, 1, 1};
  require(device->kernel(source, "exhaustive").launch(launch, args, device->stream()));
  CHECK(counter.download<std::uint64_t>()[0] == 0);
}
