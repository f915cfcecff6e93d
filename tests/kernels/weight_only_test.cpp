// cpu_weight_only executed: A as it is, weights decoded on the way.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "generator/cpu/families.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

const Family& family() { return cpu::weight_only(); }

Problem any_shape(DType a_type) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;  // so that K may be anything
  p.a_type = a_type;
  p.b_type = DType::mxfp4;
  p.d_type = DType::f32;
  p.m = {0, 4096};
  p.n = {1, 4096};
  p.k = {0, 16384};
  p.repro = Reproducibility::batch_invariant;
  return p;
}

std::vector<Variant> some_variants(const Problem& p, const Target& t) {
  auto first = family().default_variant(p, t);
  auto second = first;
  second.values["tile_m"] = 1;
  second.values["tile_n"] = first.value("isa") == 512 ? 48 : 16;
  second.values["prefetch"] = 8;
  if (p.a_type != DType::bf16) return {first};
  return {first, second};
}

// A [m, k] with rows of ld elements; what follows a row is poison.
struct Matrix {
  std::int64_t m, k, ld;
  DType type;
  Memory memory;

  Matrix(std::int64_t m_, std::int64_t k_, DType type_, std::mt19937& random)
      : m(m_), k(k_), ld(k_ + 5), type(type_), memory(m_ * ld * bytes_of(type_)) {
    std::normal_distribution<float> normal;
    for (std::int64_t r = 0; r < m; ++r)
      for (std::int64_t i = 0; i < k; ++i) set(r, i, normal(random));
  }
  void set(std::int64_t row, std::int64_t column, float x) {
    qt::cpu::store_element(memory.data(), row * ld + column, static_cast<qt::cpu::DType>(type), x);
  }
  float at(std::int64_t row, std::int64_t column) {
    return qt::cpu::load_element(memory.data(), row * ld + column,
                                 static_cast<qt::cpu::DType>(type));
  }
};

std::vector<float> multiply(const jit::Kernel& kernel, Matrix& a, const Operand& weights) {
  const auto n = weights.rows, ld = n + 3;
  auto b = panel16(weights);
  Memory d(a.m * ld * 4);
  qt_args args{};
  args.m = a.m;
  args.n = n;
  args.k = a.k;
  args.batch = 1;
  args.a = {a.memory.data(), nullptr, a.ld, 0, 0, 0};
  args.b = {b.codes.data(), b.scales.data(), 0, 0, 0, 0};
  args.d = {d.data(), nullptr, ld, 0, 0, 0};
  args.alpha = 1.0f;
  kernel.run(args);
  CHECK(d.guards_intact());
  std::vector<float> out(static_cast<std::size_t>(a.m * n));
  for (std::int64_t r = 0; r < a.m; ++r) {
    std::memcpy(out.data() + r * n, d.as<float>() + r * ld, static_cast<std::size_t>(n * 4));
    for (std::int64_t c = n * 4; c < ld * 4; ++c)
      if (d.data()[r * ld * 4 + c] != 0xff) FAIL_CHECK("wrote beyond column " << n);
  }
  return out;
}

// Every product and every addition rounded once: 32 terms of a block, then the blocks.
void check_against_exact(const std::vector<float>& d, Matrix& a, const Operand& weights) {
  const auto b = plain(weights);
  const auto step = std::max<std::int64_t>(1, a.m * b.rows * a.k / 500000);
  for (std::int64_t at = 0; at < a.m * b.rows; at += step) {
    std::vector<float> row;
    for (std::int64_t k = 0; k < a.k; ++k) row.push_back(a.at(at / b.rows, k));
    const auto exact = reference::weight_only_at(row.data(), a.k, b, at % b.rows, at / b.rows);
    const double bound = static_cast<double>(34 + b.k / 32) * 0x1p-24 * exact.magnitude;
    const double got = d[static_cast<std::size_t>(at)];
    if (!(std::fabs(got - exact.value) <= bound))
      FAIL_CHECK("row " << at / b.rows << ", column " << at % b.rows << ": " << got
                        << " instead of " << exact.value << " +- " << bound);
  }
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
}

}  // namespace

TEST_CASE("cpu_weight_only.products agree with exact ones, and variants bit for bit") {
  std::mt19937 random(11);
  struct Shape {
    std::int64_t m, n, k;
  };
  for (const auto type : {DType::bf16, DType::f16, DType::f32}) {
    const auto p = any_shape(type);
    for (const auto [m, n, k] : {Shape{0, 16, 64},
                                 {3, 5, 0},
                                 {1, 1, 1},
                                 {7, 17, 31},
                                 {2, 40, 33},
                                 {1, 1000, 576},
                                 {129, 17, 1504},
                                 {13, 100, 1823}}) {
      Matrix a(m, k, type, random);
      const Operand b(n, k, 32, random, 0, 20);  // small scales: bytes 0 and 1 among them
      std::vector<float> first;
      for (const auto& target : jit::targets()) {
        // f32's products are rounded apart where there is no fused multiply-add.
        const bool fused = target.arch == "x86-64-v3" || target.arch == "x86-64-v4";
        for (const auto& variant : some_variants(p, target)) {
          INFO(target.key() << " " << variant.text() << " " << name_of(type) << " " << m << "x" << n
                            << "x" << k);
          const auto d = multiply(jit::kernel(family(), p, target, variant), a, b);
          if (first.empty() || (type == DType::f32 && !fused)) check_against_exact(d, a, b);
          if (first.empty()) first = d;
          if (type != DType::f32 || fused) CHECK(same_bits(d, first));
        }
      }
    }
  }
}

TEST_CASE("cpu_weight_only.every scale byte, NaN and infinity") {
  std::mt19937 random(12);
  const auto p = any_shape(DType::f32);
  Operand b(256, 32, 32, random);
  for (std::int64_t i = 0; i < 256; ++i) b.scale(i, 0) = static_cast<std::uint8_t>(i);
  for (std::int64_t i = 0; i < 32; ++i) b.code(0, i) = b.code(254, i) = b.code(255, i) = 0;
  Matrix a(4, 32, DType::f32, random);
  for (std::int64_t i = 0; i < 32; ++i) {
    // Sums that are exact in any order, so that one rounding at the end is all there is.
    a.set(0, i, static_cast<float>(i % 7 - 3));
    a.set(1, i, std::ldexp(static_cast<float>(i % 5 - 2), -100));
    a.set(2, i, i == 9 ? std::numeric_limits<float>::quiet_NaN() : 1.0f);
    a.set(3, i, i == 9 ? std::numeric_limits<float>::infinity() : 0.5f);
  }
  for (const auto& target : jit::targets()) {
    const auto variant = some_variants(p, target).front();
    INFO(target.key() << " " << variant.text());
    const auto d = multiply(jit::kernel(family(), p, target, variant), a, b);
    for (std::int64_t at = 0; at < 4 * 256; ++at) {
      std::vector<float> row;
      for (std::int64_t k = 0; k < 32; ++k) row.push_back(a.at(at / 256, k));
      const auto expected = static_cast<float>(
          reference::weight_only_at(row.data(), 32, plain(b), at % 256, at / 256).value);
      const float got = d[static_cast<std::size_t>(at)];
      const bool right = std::isnan(expected) ? std::isnan(got) : got == expected;
      if (!right)
        FAIL_CHECK("row " << at / 256 << ", byte " << at % 256 << ": " << got << ", not "
                          << expected);
    }
  }
}

TEST_CASE("cpu_weight_only.a row's bits do not depend on M") {
  std::mt19937 random(13);
  const auto p = any_shape(DType::f32);
  Matrix all(50, 100, DType::f32, random);
  const Operand b(20, 100, 32, random);
  for (const auto& target : jit::targets()) {
    const auto& kernel = jit::kernel(family(), p, target, some_variants(p, target).front());
    const auto whole = multiply(kernel, all, b);
    for (const std::int64_t m : {1, 3, 11}) {
      Matrix part(m, 100, DType::f32, random);
      for (std::int64_t r = 0; r < m; ++r)
        for (std::int64_t k = 0; k < 100; ++k) part.set(r, k, all.at(49 - r, k));
      const auto d = multiply(kernel, part, b);
      for (std::int64_t r = 0; r < m; ++r)
        CHECK(std::memcmp(d.data() + r * 20, whole.data() + (49 - r) * 20, 80) == 0);
    }
  }
}
