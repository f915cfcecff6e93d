// cpu_pack executed: every pair of layouts, against operands laid out byte by byte.
#include <doctest/doctest.h>

#include <random>

#include "generator/cpu/families.hpp"
#include "tests/kernels/any_mode.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

/// Codes and scales in a layout; plain rows have `spare` blocks of poison between them.
struct Laid {
  Memory codes, scales;
  qt_tensor tensor{};
};

Laid lay(const Operand& x, Layout layout, std::int64_t spare) {
  Laid out;
  if (layout == Layout::plain) {
    const auto pitch = x.blocks + spare;
    out.codes = Memory(x.rows * pitch * 16);
    out.scales = Memory(x.rows * pitch);
    for (std::int64_t r = 0; r < x.rows; ++r)
      for (std::int64_t b = 0; b < x.blocks; ++b) {
        for (std::int64_t i = 0; i < 16; ++i)
          out.codes.data()[(r * pitch + b) * 16 + i] = static_cast<unsigned char>(
              x.code(r, 32 * b + 2 * i) | x.code(r, 32 * b + 2 * i + 1) << 4);
        out.scales.data()[r * pitch + b] = x.scale(r, b);
      }
    out.tensor.ld = pitch * 32;
    out.tensor.scale_ld = pitch;
  } else {
    auto packed = layout == Layout::panel16 ? panel16(x) : int8_blocks(x);
    out.codes = std::move(packed.codes);
    out.scales = std::move(packed.scales);
  }
  out.tensor.data = out.codes.data();
  out.tensor.scales = out.scales.data();
  return out;
}

/// The same memory with nothing in it.
Laid blank(const Laid& like) {
  Laid out;
  out.codes = Memory(like.codes.bytes());
  out.scales = Memory(like.scales.bytes());
  out.tensor = like.tensor;
  out.tensor.data = out.codes.data();
  out.tensor.scales = out.scales.data();
  return out;
}

template <class Run>
void check_pack(std::int64_t rows, std::int64_t k, std::int64_t unit, Layout from, Layout to,
                std::mt19937& random, const Run& run) {
  Operand x(rows, k, unit, random, 0, 255);
  auto source = lay(x, from, 2);
  auto wanted = lay(x, to, 1);
  auto got = blank(wanted);
  qt_args args{};
  args.m = rows;
  args.k = k;
  args.batch = 1;
  args.a = source.tensor;
  args.d = got.tensor;
  run(args);
  INFO(name_of(from), " to ", name_of(to), " rows ", rows, " k ", k, " unit ", unit);
  const auto same = [](Memory& a, Memory& b) {
    return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.bytes())) == 0;
  };
  CHECK(same(got.codes, wanted.codes));
  CHECK(same(got.scales, wanted.scales));
  CHECK((got.codes.guards_intact() && got.scales.guards_intact()));
}

Problem pack_problem(Layout from, Layout to) {
  Problem p;
  p.op = Op::pack;
  p.a_type = p.d_type = DType::mxfp4;
  p.a_layout = from;
  p.d_layout = to;
  p.rotation = 64;
  p.m = {0, 1000};
  p.k = Extent::exactly(1088);
  return p;
}

}  // namespace

TEST_CASE("cpu_pack: every pair of layouts on every instruction set") {
  std::mt19937 random(1);
  for (const auto& kernel : any_modes())
    for (const auto from : {Layout::plain, Layout::panel16})
      for (const auto to : {Layout::plain, Layout::int8_blocks, Layout::panel16})
        for (const std::int64_t rows : {0, 1, 7, 16, 33, 129})
          for (const std::int64_t k : {0, 1, 32, 96, 576, 1504})
            for (const int unit : {32, 256}) {
              CAPTURE(kernel.name);
              PackConfig config;
              config.k_unit = unit;
              config.a_layout = static_cast<qt::cpu::Layout>(from);
              config.d_layout = static_cast<qt::cpu::Layout>(to);
              config.tile_m = random() % 2 ? 32 : 64;
              config.tile_k = random() % 2 ? 4096 : 256;
              check_pack(rows, k, unit, from, to, random, [&](const qt_args& args) {
                const auto parts =
                    qt::cpu::QuantizeParts::of(rows, k, unit, true, false, to == Layout::panel16,
                                               config.tile_m, config.tile_k);
                for (auto part = parts.per_entry(); part-- > 0;) kernel.pack(config, &args, part);
              });
            }
}

TEST_CASE("cpu_pack: an emitted variant on each target") {
  std::mt19937 random(2);
  for (const auto& target : jit::targets()) {
    if (target.has("avx_vnni") || target.key() == "x86-64-v4:avx512_vnni") continue;
    const auto problem = pack_problem(Layout::plain, Layout::panel16);
    const auto& family = cpu::pack();
    const jit::Kernel kernel(family, problem, target, family.variants(problem, target).back());
    for (const std::int64_t rows : {0, 5, 64, 100})
      check_pack(rows, problem.k.lo, 64, problem.a_layout, problem.d_layout, random,
                 [&](const qt_args& args) { kernel.run(args); });
  }
}

TEST_CASE("cpu_pack: batch entries") {
  std::mt19937 random(3);
  Operand first(17, 96, 32, random), second(17, 96, 32, random);
  auto plain = lay(first, Layout::plain, 0);
  Memory codes(2 * plain.codes.bytes()), scales(2 * plain.scales.bytes());
  auto other = lay(second, Layout::plain, 0);
  const auto join = [](Memory& to, Memory& a, Memory& b) {
    std::memcpy(to.data(), a.data(), static_cast<std::size_t>(a.bytes()));
    std::memcpy(to.data() + a.bytes(), b.data(), static_cast<std::size_t>(b.bytes()));
  };
  join(codes, plain.codes, other.codes);
  join(scales, plain.scales, other.scales);
  auto one = lay(first, Layout::int8_blocks, 0), two = lay(second, Layout::int8_blocks, 0);
  Memory wanted(2 * one.codes.bytes()), wanted_scales(2 * one.scales.bytes());
  join(wanted, one.codes, two.codes);
  join(wanted_scales, one.scales, two.scales);
  Memory got(wanted.bytes()), got_scales(wanted_scales.bytes());
  qt_args args{};
  args.m = 17;
  args.k = 96;
  args.batch = 2;
  args.a = {codes.data(), scales.data(), 96, 3, 17 * 96, 17 * 3};
  args.d = {got.data(), got_scales.data(), 0, 0, 17 * 96, 17 * 3};
  PackConfig config;
  config.d_layout = qt::cpu::Layout::int8_blocks;
  for (const auto& kernel : any_modes()) {
    for (long long part = 0; part < 2; ++part) kernel.pack(config, &args, part);
    CHECK(std::memcmp(got.data(), wanted.data(), static_cast<std::size_t>(got.bytes())) == 0);
    CHECK(std::memcmp(got_scales.data(), wanted_scales.data(),
                      static_cast<std::size_t>(got_scales.bytes())) == 0);
  }
}
