// cpu_dequantize executed: every code under every byte, against values by definition.
#include <doctest/doctest.h>

#include <random>

#include "generator/cpu/families.hpp"
#include "reference/formats.hpp"
#include "tests/kernels/any_mode.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

/// The bits that a value has as an element of `type`; any NaN is the positive quiet one.
std::uint32_t bits_as(DType type, double value) {
  const auto single = static_cast<float>(value);
  if (type == DType::bf16) return value != value ? 0x7fc0u : reference::bf16_bits(single);
  if (type == DType::f16) return value != value ? 0x7e00u : reference::f16_bits(single);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &single, 4);
  return value != value ? 0x7fc00000u : bits;
}

double value(const Operand& x, std::int64_t row, std::int64_t k) {
  return reference::e2m1_value(x.code(row, k)) * reference::e8m0_value(x.scale(row, k / 32));
}

template <class Run>
void check_dequantize(const Operand& x, std::int64_t k, Layout layout, DType type, const Run& run) {
  const std::int64_t bytes = type == DType::f32 ? 4 : 2, ld = k + 5;
  Memory codes, scales, d((x.rows * ld + 1) * bytes);
  qt_args args{};
  args.m = x.rows;
  args.k = k;
  args.batch = 1;
  if (layout == Layout::panel16) {
    auto packed = panel16(x);
    codes = std::move(packed.codes);
    scales = std::move(packed.scales);
  } else {
    codes = Memory(x.rows * x.blocks * 16);
    scales = Memory(x.rows * x.blocks);
    for (std::int64_t i = 0; i < codes.bytes(); ++i)
      codes.data()[i] =
          static_cast<unsigned char>(x.codes[static_cast<std::size_t>(2 * i)] |
                                     x.codes[static_cast<std::size_t>(2 * i + 1)] << 4);
    std::copy(x.bytes.begin(), x.bytes.end(), scales.data());
    args.a.ld = x.blocks * 32;
    args.a.scale_ld = x.blocks;
  }
  args.a.data = codes.data();
  args.a.scales = scales.data();
  args.d.data = d.data() + bytes;  // an odd multiple of the element
  args.d.ld = ld;
  run(args);
  INFO(name_of(layout), " to ", name_of(type), " rows ", x.rows, " k ", k);
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t i = 0; i < ld; ++i) {
      std::uint32_t got = 0;
      std::memcpy(&got, d.data() + bytes + (r * ld + i) * bytes, static_cast<std::size_t>(bytes));
      const std::uint32_t poison = type == DType::f32 ? 0xffffffffu : 0xffffu;
      wrong += got != (i < k ? bits_as(type, value(x, r, i)) : poison);
    }
  CHECK(wrong == 0);
  CHECK(d.guards_intact());
}

}  // namespace

TEST_CASE("cpu_dequantize: every code and byte, on every instruction set") {
  std::mt19937 random(1);
  // Row r has byte r: all of them, in blocks of all codes.
  Operand all(256, 512, 32, random);
  for (std::int64_t r = 0; r < 256; ++r)
    for (std::int64_t i = 0; i < 512; ++i) {
      all.code(r, i) = static_cast<std::uint8_t>(i % 16);
      all.scale(r, i / 32) = static_cast<std::uint8_t>(r);
    }
  for (const auto& kernel : any_modes())
    for (const auto layout : {Layout::plain, Layout::panel16})
      for (const auto type : {DType::bf16, DType::f16, DType::f32}) {
        CAPTURE(kernel.name);
        const auto check = [&](const Operand& x, std::int64_t k, int unit) {
          DequantizeConfig config;
          config.k_unit = unit;
          config.a_layout = static_cast<qt::cpu::Layout>(layout);
          config.d_type = static_cast<qt::cpu::DType>(type);
          config.tile_k = random() % 2 ? 4096 : 64;
          check_dequantize(x, k, layout, type, [&](const qt_args& args) {
            const auto parts = qt::cpu::QuantizeParts::of(x.rows, k, unit, true, false, false,
                                                          config.tile_m, config.tile_k);
            for (auto part = parts.per_entry(); part-- > 0;) kernel.dequantize(config, &args, part);
          });
        };
        check(all, 512, 32);
        for (const std::int64_t rows : {0, 1, 7, 16, 33})
          for (const std::int64_t k : {0, 1, 31, 32, 257, 576})
            for (const int unit : {32, 128}) check(Operand(rows, k, unit, random, 0, 255), k, unit);
      }
}

TEST_CASE("cpu_dequantize: an emitted variant on each target") {
  std::mt19937 random(2);
  Problem p;
  p.op = Op::dequantize;
  p.a_type = DType::mxfp4;
  p.a_layout = Layout::plain;
  p.d_type = DType::bf16;
  p.m = {0, 1000};
  p.k = Extent::exactly(576);
  for (const auto& target : jit::targets()) {
    if (target.has("avx_vnni") || target.key() == "x86-64-v4:avx512_vnni") continue;
    const auto& family = cpu::dequantize();
    const jit::Kernel kernel(family, p, target, family.default_variant(p, target));
    for (const std::int64_t rows : {0, 3, 40})
      check_dequantize(Operand(rows, 576, 32, random, 0, 255), 576, p.a_layout, p.d_type,
                       [&](const qt_args& args) { kernel.run(args); });
  }
}
