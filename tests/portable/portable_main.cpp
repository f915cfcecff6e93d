// Runs the portable CPU kernels against the scalar reference, with nothing but the C++ library:
// built for another architecture by a cross compiler and run by an emulator. Prints what differs;
// exit status 0 when nothing does.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/gemm.h"
#include "cpu/primitives_lanes.h"
#include "cpu/quantize.h"
#include "cpu/weight_only.h"
#include "reference/gemm.hpp"

namespace ref = quarterturn::reference;
using qt::i64;

namespace {

int failures = 0;

void expect(bool holds, const char* what, i64 at) {
  if (holds) return;
  if (++failures <= 10) std::printf("%s differs at %lld\n", what, static_cast<long long>(at));
}

std::vector<float> values(i64 count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<std::size_t>(count));
  for (float& v : out) v = std::ldexp(normal(random), static_cast<int>(random() % 20) - 10);
  return out;
}

// 64-byte aligned bytes, poisoned.
struct Memory {
  explicit Memory(i64 bytes) : whole(static_cast<std::size_t>(bytes) + 64, 0xff) {}
  void* data() {
    return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(whole.data()) + 63) / 64 * 64);
  }
  std::vector<unsigned char> whole;
};

using Quantize = qt::cpu::QuantizeConfig<qt::cpu::PortableLanes>;

struct Mode {
  int rotation;
  qt::ScaleRule rule;
  qt::Rounding rounding;
};

ref::QuantizeSpec spec_of(const Mode& mode) {
  ref::QuantizeSpec spec;
  spec.rotation = mode.rotation;
  spec.rule = static_cast<ref::ScaleRule>(mode.rule);
  spec.rounding = static_cast<ref::Rounding>(mode.rounding);
  spec.noise = {77, 5, 0, 0};
  return spec;
}

// Runs all parts, as the thread pool would.
void quantize(const Quantize& config, qt_args& args) {
  const auto parts = qt::cpu::QuantizeParts::of(
      args.m, args.k, qt::segment_size(config.rotation), true, false,
      config.d_layout == qt::cpu::Layout::panel16, config.tile_m, config.tile_k);
  for (i64 part = 0; part < parts.per_entry(); ++part) qt::cpu::quantize(config, &args, part);
}

qt_args quantize_args(std::vector<float>& x, i64 m, i64 k, void* codes, void* scales) {
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = 1;
  args.a.data = x.data();
  args.a.ld = k;
  args.d.data = codes;
  args.d.scales = scales;
  args.noise_seed = 77;
  args.stream = 5;
  return args;
}

void check_plain(const Mode& mode, i64 m, i64 k) {
  auto x = values(m * k, 1);
  const auto want = ref::quantize(x.data(), m, k, k, spec_of(mode));
  Memory codes(m * want.k / 2), scales(m * want.k / 32);
  Quantize config;
  config.a_type = qt::cpu::DType::f32;
  config.d_layout = qt::cpu::Layout::plain;
  config.rotation = mode.rotation;
  config.scale_rule = mode.rule;
  config.rounding = mode.rounding;
  auto args = quantize_args(x, m, k, codes.data(), scales.data());
  args.d.ld = want.k;
  args.d.scale_ld = want.k / 32;
  quantize(config, args);
  expect(std::memcmp(codes.data(), want.codes.data(), want.codes.size()) == 0, "codes",
         mode.rotation);
  expect(std::memcmp(scales.data(), want.scales.data(), want.scales.size()) == 0, "scales",
         mode.rotation);
}

// quantise A and B, multiply, compare: the plan that a machine without a compiler runs.
void check_product(i64 m, i64 n, i64 k) {
  const Mode mode{32, qt::ScaleRule::rceil, qt::Rounding::rne};
  auto x = values(m * k, 2), w = values(n * k, 3);
  const auto a = ref::quantize(x.data(), m, k, k, spec_of(mode));
  const auto b = ref::quantize(w.data(), n, k, k, spec_of(mode));
  const i64 blocks = a.k / 32;
  Memory a_codes(m * a.k), a_scales(m * blocks * 8), d(m * n * 4);
  Memory b_codes(qt::cpu::panels_of(n) * blocks * 256),
      b_scales(qt::cpu::panels_of(n) * blocks * 16);
  Quantize config;
  config.a_type = qt::cpu::DType::f32;
  config.rotation = 32;
  config.d_layout = qt::cpu::Layout::int8_blocks;
  auto args = quantize_args(x, m, k, a_codes.data(), a_scales.data());
  args.d.ld = a.k;
  args.d.scale_ld = blocks;
  quantize(config, args);
  config.d_layout = qt::cpu::Layout::panel16;
  args = quantize_args(w, n, k, b_codes.data(), b_scales.data());
  args.d.ld = a.k;
  args.d.scale_ld = blocks;
  quantize(config, args);

  qt::cpu::GemmConfig gemm;
  args = qt_args{};
  args.m = m;
  args.n = n;
  args.k = k;
  args.batch = 1;
  args.alpha = 1;
  args.a = {a_codes.data(), a_scales.data(), a.k, blocks, 0, 0};
  args.b = {b_codes.data(), b_scales.data(), a.k, blocks, 0, 0};
  args.d = {d.data(), nullptr, n, 0, 0, 0};
  const i64 parts = (m + gemm.block_m - 1) / gemm.block_m * ((n + gemm.part_n - 1) / gemm.part_n);
  for (i64 part = 0; part < parts; ++part) qt::cpu::gemm(gemm, &args, part);
  for (i64 i = 0; i < m; ++i)
    for (i64 j = 0; j < n; ++j) {
      const auto want = ref::gemm_at(a, b, i, j);
      const double got = static_cast<const float*>(d.data())[i * n + j];
      // One rounding a block of K and one a scale: far below 2^-18 of the magnitudes.
      expect(std::fabs(got - want.value) <= std::ldexp(want.magnitude, -18), "product", i * n + j);
    }
}

}  // namespace

int main() {
  for (const int g : {0, 16, 32, 64, 128, 256})
    for (const auto rule :
         {qt::ScaleRule::floor, qt::ScaleRule::even, qt::ScaleRule::rceil, qt::ScaleRule::ceil,
          qt::ScaleRule::ts34, qt::ScaleRule::quest, qt::ScaleRule::search})
      for (const auto rounding : {qt::Rounding::rne, qt::Rounding::sr16, qt::Rounding::half_away})
        check_plain({g, rule, rounding}, 3, 512);
  check_plain({32, qt::ScaleRule::rceil, qt::Rounding::rne}, 5, 33);
  for (const i64 m : {1, 7, 33})
    for (const i64 n : {1, 16, 19})
      for (const i64 k : {32, 96, 576}) check_product(m, n, k);
  std::printf(
      failures == 0 ? "the portable kernels agree with the reference\n" : "%d differences\n",
      failures);
  return failures == 0 ? 0 : 1;
}
