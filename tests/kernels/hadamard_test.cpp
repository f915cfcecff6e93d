// cpu_hadamard executed: the rotation alone, against the reference, bit for bit but for NaN's.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "generator/cpu/families.hpp"
#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "tests/kernels/any_mode.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

std::int64_t size_of(DType type) { return type == DType::f32 ? 4 : 2; }

std::uint32_t bits_as(DType type, float value) {
  if (type == DType::bf16) return value != value ? 0x7fc0u : reference::bf16_bits(value);
  if (type == DType::f16) return value != value ? 0x7e00u : reference::f16_bits(value);
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  return value != value ? 0x7fc00000u : bits;
}

float value_of(DType type, const unsigned char* at) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, static_cast<std::size_t>(size_of(type)));
  if (type == DType::bf16) return reference::bf16_value(static_cast<std::uint16_t>(bits));
  if (type == DType::f16) return reference::f16_value(static_cast<std::uint16_t>(bits));
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

enum class Place { apart, in_place };

template <class Run>
void check_hadamard(std::int64_t m, std::int64_t k, int g, Signs signs, DType from, DType to,
                    Place place, std::mt19937& random, const Run& run) {
  const auto ld = k + 3;
  Memory x((m * ld + 1) * size_of(from)), d((m * ld + 1) * size_of(to));
  auto* const first = x.data() + size_of(from);
  std::vector<float> wanted;
  reference::QuantizeSpec spec;
  spec.rotation = g;
  spec.signs = static_cast<reference::Signs>(signs);
  spec.sign_seed = random();
  for (auto& word : spec.sign_mask) word = static_cast<std::uint32_t>(random());
  for (std::int64_t r = 0; r < m; ++r) {
    std::vector<float> row;
    for (std::int64_t i = 0; i < k; ++i) {
      // A row is of one size, or has an Inf or NaN, or ends of the range.
      float value = std::ldexp(
          static_cast<float>(random()) * 0x1p-31f - 1.0f,
          static_cast<int>(r % 5 == 4 ? random() % 276 : 20) - 148 + (r % 5 == 4 ? 0 : 128));
      if (r % 7 == 3 && random() % 64 == 0) value = std::numeric_limits<float>::infinity();
      if (r % 7 == 5 && random() % 64 == 0) value = std::numeric_limits<float>::quiet_NaN();
      auto* at = first + (r * ld + i) * size_of(from);
      const auto bits = bits_as(from, value);
      std::memcpy(at, &bits, static_cast<std::size_t>(size_of(from)));
      row.push_back(value_of(from, at));
    }
    reference::rotate_row(row, spec);
    wanted.insert(wanted.end(), row.begin(), row.end());
  }
  qt_args args{};
  args.m = m;
  args.k = k;
  args.batch = 1;
  args.a = {first, nullptr, ld, 0, 0, 0};
  auto* const result = place == Place::in_place ? first : d.data() + size_of(to);
  args.d = {result, nullptr, ld, 0, 0, 0};
  args.sign_seed = spec.sign_seed;
  std::copy(spec.sign_mask.begin(), spec.sign_mask.end(), args.sign_mask);
  run(args);
  INFO("m ", m, " k ", k, " g ", g, " ", name_of(signs), " ", name_of(from), " to ", name_of(to));
  std::int64_t wrong = 0;
  for (std::int64_t r = 0; r < m; ++r)
    for (std::int64_t i = 0; i < ld; ++i) {
      std::uint32_t got = 0;
      std::memcpy(&got, result + (r * ld + i) * size_of(to), static_cast<std::size_t>(size_of(to)));
      const std::uint32_t poison = to == DType::f32 ? 0xffffffffu : 0xffffu;
      wrong += got != (i < k ? bits_as(to, wanted[static_cast<std::size_t>(r * k + i)]) : poison);
    }
  CHECK(wrong == 0);
  CHECK((x.guards_intact() && d.guards_intact()));
}

}  // namespace

TEST_CASE("cpu_hadamard: every mode on every instruction set, against the reference") {
  std::mt19937 random(1);
  for (const auto& kernel : any_modes())
    for (const int g : {16, 32, 64, 128, 256})
      for (const auto signs : {Signs::none, Signs::fixed, Signs::per_call})
        for (const auto from : {DType::bf16, DType::f16, DType::f32})
          for (const auto to : {DType::bf16, DType::f16, DType::f32}) {
            CAPTURE(kernel.name);
            HadamardConfig config;
            config.a_type = static_cast<qt::cpu::DType>(from);
            config.d_type = static_cast<qt::cpu::DType>(to);
            config.rotation = g;
            config.signs = static_cast<qt::Signs>(signs);
            config.tile_k = random() % 2 ? 4096 : 256;
            const std::int64_t m = std::array{0, 1, 7, 33}[random() % 4];
            const std::int64_t k = std::max(g, 32) * static_cast<std::int64_t>(1 + random() % 5);
            const auto place = from == to && random() % 2 ? Place::in_place : Place::apart;
            check_hadamard(m, k, g, signs, from, to, place, random, [&](const qt_args& args) {
              const auto parts = qt::cpu::QuantizeParts::of(m, k, std::max(g, 32), true, false,
                                                            false, config.tile_m, config.tile_k);
              for (auto part = parts.per_entry(); part-- > 0;) kernel.hadamard(config, &args, part);
            });
          }
}

TEST_CASE("cpu_hadamard: an emitted variant on each target") {
  std::mt19937 random(2);
  Problem p;
  p.op = Op::hadamard;
  p.a_type = p.d_type = DType::bf16;
  p.rotation = 128;
  p.signs = Signs::per_call;
  p.m = {0, 1000};
  p.k = Extent::exactly(1152);
  for (const auto& target : jit::targets()) {
    if (target.has("avx_vnni") || target.key() == "x86-64-v4:avx512_vnni") continue;
    const auto& family = cpu::hadamard();
    const jit::Kernel kernel(family, p, target, family.default_variant(p, target));
    for (const std::int64_t m : {0, 1, 40})
      check_hadamard(m, 1152, 128, p.signs, p.a_type, p.d_type, Place::apart, random,
                     [&](const qt_args& args) { kernel.run(args); });
  }
}
