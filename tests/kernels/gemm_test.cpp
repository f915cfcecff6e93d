// cpu_gemm executed: exact block products, one order of sums for every variant and instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "generator/cpu/families.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

const Family& family() { return cpu::gemm(); }

// Every dimension at run time, so that one kernel serves every shape.
Problem any_shape(DType d_type = DType::f32, std::int32_t rotation = 0) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = d_type;
  p.rotation = rotation;
  p.m = {0, 4096};
  p.n = {1, 4096};
  p.k = {0, 16384};
  p.repro = Reproducibility::batch_invariant;
  return p;
}

Variant with(const Problem& p, const Target& t,
             std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  Variant v = family().default_variant(p, t);
  for (const auto& [name, value] : values) v.values[name] = value;
  return v;
}

// The default and what differs most from it: another tile, and the other place to decode.
std::vector<Variant> some_variants(const Problem& p, const Target& t) {
  if (t.key() == "x86-64-v4:avx512_vnni" || t.has("avx_vnni")) return {with(p, t, {})};
  if (family().default_variant(p, t).value("isa") == 512)
    return {with(p, t, {}),
            with(p, t, {{"tile_m", 12}, {"tile_n", 16}, {"decode", 0}, {"prefetch", 4}}),
            with(p, t, {{"tile_m", 6}, {"tile_n", 32}, {"block_k", 256}, {"part_n", 384}}),
            with(p, t, {{"isa", 256}, {"tile_m", 2}, {"tile_n", 16}})};
  return {with(p, t, {}), with(p, t, {{"tile_m", 1}, {"tile_n", 16}, {"decode", 0}})};
}

struct Call {
  const Operand& a;
  const Operand& b;
  std::int64_t k = 0;
  float alpha = 1.0f, beta = 0.0f;
};

// Runs one multiplication into a poisoned D with rows longer than n; gives D without the gaps.
std::vector<float> multiply(const jit::Kernel& kernel, const Call& call) {
  const auto m = call.a.rows, n = call.b.rows, ld = n + 3;
  auto a = int8_blocks(call.a);
  auto b = panel16(call.b);
  Memory d(m * ld * 4);
  qt_args args{};
  args.m = m;
  args.n = n;
  args.k = call.k;
  args.batch = 1;
  args.a = {a.codes.data(), a.scales.data(), 0, 0, 0, 0};
  args.b = {b.codes.data(), b.scales.data(), 0, 0, 0, 0};
  args.d = {d.data(), nullptr, ld, 0, 0, 0};
  args.alpha = call.alpha;
  kernel.run(args);
  CHECK(d.guards_intact());
  std::vector<float> out(static_cast<std::size_t>(m * n));
  for (std::int64_t r = 0; r < m; ++r) {
    std::memcpy(out.data() + r * n, d.as<float>() + r * ld, static_cast<std::size_t>(n * 4));
    for (std::int64_t c = n * 4; c < ld * 4; ++c)
      if (d.data()[r * ld * 4 + c] != 0xff) FAIL_CHECK("wrote beyond column " << n);
  }
  return out;
}

bool same_bits(const std::vector<float>& x, const std::vector<float>& y) {
  return x.size() == y.size() &&
         (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
}

// The family's bound: one rounding for each block added, one for alpha.
double bound(const reference::Quantized& a, const reference::Product& exact) {
  return static_cast<double>(a.k / 32 + 1) * 0x1p-24 * exact.magnitude;
}

void check_against_exact(const std::vector<float>& d, const Operand& given_a,
                         const Operand& given_b, std::mt19937& random) {
  const auto a = plain(given_a), b = plain(given_b);
  const auto m = a.rows, n = b.rows;
  const bool all = m * n * a.k < 1000000;
  const std::int64_t count = all ? m * n : 300;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto at = all ? i : static_cast<std::int64_t>(random() % (m * n));
    const auto exact = reference::gemm_at(a, b, at / n, at % n);
    const double got = d[static_cast<std::size_t>(at)];
    if (!(std::fabs(got - exact.value) <= bound(a, exact)))
      FAIL_CHECK("row " << at / n << ", column " << at % n << ": " << got << " instead of "
                        << exact.value << " +- " << bound(a, exact));
  }
}

}  // namespace

TEST_CASE("cpu_gemm.products agree with exact ones, and all variants bit for bit") {
  std::mt19937 random(1);
  struct Shape {
    std::int64_t m, n, k;
  };
  const auto p = any_shape();
  for (const auto [m, n, k] : {Shape{0, 16, 64},
                               {1, 1, 32},
                               {7, 5, 96},
                               {1, 1000, 576},
                               {129, 17, 1504},
                               {7, 16, 2880},
                               {129, 1000, 1824},
                               {13, 49, 64}}) {
    const Operand a(m, k, 32, random), b(n, k, 32, random);
    std::vector<float> first;
    for (const auto& target : jit::targets(jit::Targets::all))
      for (const auto& variant : some_variants(p, target)) {
        INFO(target.key() << " " << variant.text() << " " << m << "x" << n << "x" << k);
        const auto d = multiply(jit::kernel(family(), p, target, variant), {a, b, k});
        if (first.empty()) {
          first = d;
          if (m > 0) check_against_exact(d, a, b, random);
        }
        CHECK(same_bits(d, first));
      }
  }
}

TEST_CASE("cpu_gemm.run-time K of any length is that of the padded operands") {
  std::mt19937 random(2);
  const auto p = any_shape(DType::f32, 64);
  for (const auto& target : jit::targets()) {
    const auto& kernel = jit::kernel(family(), p, target, with(p, target, {}));
    for (const std::int64_t k : {0, 1, 31, 33, 64, 8191}) {
      INFO(target.key() << " k = " << k);
      const Operand a(5, k, 64, random), b(18, k, 64, random);
      const auto d = multiply(kernel, {a, b, k});
      check_against_exact(d, a, b, random);
      if (k == 0) CHECK(std::all_of(d.begin(), d.end(), [](float x) { return x == 0.0f; }));
    }
  }
}

TEST_CASE("cpu_gemm.a row's bits do not depend on M or on other rows") {
  std::mt19937 random(3);
  const auto p = any_shape();
  const std::int64_t k = 576, n = 35;
  const Operand all(131, k, 32, random), b(n, k, 32, random);
  for (const auto& target : jit::targets())
    for (const auto& variant : some_variants(p, target)) {
      INFO(target.key() << " " << variant.text());
      const auto& kernel = jit::kernel(family(), p, target, variant);
      const auto whole = multiply(kernel, {all, b, k});
      for (const std::int64_t m : {1, 2, 3, 5, 11, 97}) {
        Operand part(m, k, 32, random);
        for (std::int64_t r = 0; r < m; ++r) {
          for (std::int64_t i = 0; i < k; ++i) part.code(r, i) = all.code(130 - r, i);
          for (std::int64_t i = 0; i < k / 32; ++i) part.scale(r, i) = all.scale(130 - r, i);
        }
        const auto d = multiply(kernel, {part, b, k});
        for (std::int64_t r = 0; r < m; ++r)
          CHECK(std::memcmp(d.data() + r * n, whole.data() + (130 - r) * n,
                            static_cast<std::size_t>(n) * 4) == 0);
      }
    }
}

TEST_CASE("cpu_gemm.every scale byte is right on either side") {
  std::mt19937 random(4);
  const auto p = any_shape();
  // Pairs whose product is representable, or underflows, or overflows; and NaN.
  const std::int64_t m = 256, n = 256;
  Operand a(m, 32, 32, random), b(n, 32, 32, random);
  for (std::int64_t i = 0; i < 256; ++i)
    a.scale(i, 0) = b.scale(i, 0) = static_cast<std::uint8_t>(i);
  for (std::int64_t i = 0; i < 32; ++i) {
    a.code(0, i) = b.code(0, i) = 0;      // zero blocks as the contract has them: byte 0
    a.code(254, i) = b.code(253, i) = 8;  // a large scale over nothing but -0
    a.code(255, i) = b.code(255, i) = 0;  // NaN blocks have codes 0
  }
  // One block, one exact sum: binary32's nearest, Inf beyond it, subnormal below.
  std::vector<float> expected;
  for (const auto& exact : reference::gemm(plain(a), plain(b)))
    expected.push_back(static_cast<float>(exact.value));
  for (const auto& target : jit::targets())
    for (const auto& variant : some_variants(p, target)) {
      INFO(target.key() << " " << variant.text());
      const auto d = multiply(jit::kernel(family(), p, target, variant), {a, b, 32});
      for (std::size_t i = 0; i < d.size(); ++i) {
        const bool right = std::isnan(expected[i]) ? std::isnan(d[i]) : d[i] == expected[i];
        if (!right)
          FAIL_CHECK("bytes " << i / n << ", " << i % n << ": " << d[i] << ", not " << expected[i]);
      }
    }
}

TEST_CASE("cpu_gemm.scales too large for the fast path may stand anywhere among others") {
  std::mt19937 random(8);
  const auto p = any_shape();
  const std::int64_t k = 1824;
  const Operand a(19, k, 32, random, 0, 20);
  Operand b(50, k, 32, random, 110, 130);
  for (std::int64_t r = 0; r < b.rows; ++r)
    for (std::int64_t i = r % 5; i < b.blocks; i += 7 + r % 3)
      b.scale(r, i) = static_cast<std::uint8_t>(238 + random() % 17);
  std::vector<float> first;
  for (const auto& target : jit::targets())
    for (const auto& variant : some_variants(p, target)) {
      INFO(target.key() << " " << variant.text());
      const auto d = multiply(jit::kernel(family(), p, target, variant), {a, b, k});
      if (first.empty()) check_against_exact(d, a, b, random);
      if (first.empty()) first = d;
      CHECK(same_bits(d, first));
    }
}

TEST_CASE("cpu_gemm.a NaN block spoils its row or column and nothing else") {
  std::mt19937 random(5);
  const auto p = any_shape();
  const std::int64_t k = 1824;
  Operand a(20, k, 32, random), b(40, k, 32, random);
  const auto spoil = [](Operand& x, std::int64_t row, std::int64_t block) {
    x.scale(row, block) = 255;
    for (std::int64_t i = 0; i < 32; ++i) x.code(row, block * 32 + i) = 0;
  };
  spoil(a, 3, 17);
  spoil(b, 33, 56);
  for (std::int64_t i = 0; i < 32; ++i) a.code(6, i) = b.code(9, i) = 0;
  for (const auto& target : jit::targets())
    for (const auto& variant : some_variants(p, target)) {
      INFO(target.key() << " " << variant.text());
      const auto d = multiply(jit::kernel(family(), p, target, variant), {a, b, k});
      for (std::int64_t at = 0; at < 20 * 40; ++at)
        CHECK(std::isnan(d[static_cast<std::size_t>(at)]) == (at / 40 == 3 || at % 40 == 33));
    }
}

TEST_CASE("cpu_gemm.the caller's rounding and flushing modes neither matter nor change") {
#if defined(__x86_64__)
  std::mt19937 random(6);
  const auto p = any_shape();
  const auto target = jit::targets().front();
  const auto& kernel = jit::kernel(family(), p, target, with(p, target, {}));
  const Operand a(3, 96, 32, random, 0, 10), b(5, 96, 32, random, 100, 140);
  const auto expected = multiply(kernel, {a, b, 96});
  const unsigned before = __builtin_ia32_stmxcsr();
  const unsigned hostile = 0x1f80u | 0x8040u | 0x6000u;  // flush, denormals are zero, toward zero
  __builtin_ia32_ldmxcsr(hostile);
  const auto d = multiply(kernel, {a, b, 96});
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before);
  CHECK((after & ~0x3fu) == hostile);
  CHECK(same_bits(d, expected));
#else
  std::puts("SKIPPED: this case sets x86's MXCSR");
#endif
}

TEST_CASE("cpu_gemm.alpha, beta, bias, types, strides and batches") {
  std::mt19937 random(7);
  const std::int64_t m = 9, n = 21, k = 96, batch = 3;
  std::uniform_real_distribution<float> real(-2.0f, 2.0f);
  const auto target = jit::targets().front();
  std::vector<Operand> a, b;
  std::vector<std::vector<float>> sums;
  for (std::int64_t i = 0; i < batch; ++i) {
    a.emplace_back(m, k, 32, random, 120, 124);
    b.emplace_back(n, k, 32, random, 120, 124);
    const auto plain = any_shape();
    sums.push_back(
        multiply(jit::kernel(family(), plain, target, with(plain, target, {})), {a[i], b[i], k}));
  }
  for (const auto type : {DType::f32, DType::bf16, DType::f16})
    for (const auto rule : {ScaleRule::rceil, ScaleRule::ts34}) {
      if (rule == ScaleRule::ts34 && type != DType::bf16) continue;
      auto p = any_shape(type);
      p.accumulate = Accumulate::accumulate;
      p.bias = Bias::per_column;
      p.batch = Extent::exactly(batch);
      p.scale_rule = rule;
      const auto& kernel = jit::kernel(family(), p, target, with(p, target, {}));
      const auto size = bytes_of(type);
      const auto put = [&](Memory& memory, std::int64_t at, float x) {
        qt::cpu::store_element(memory.data(), at, static_cast<qt::cpu::DType>(type), x);
      };
      const auto get = [&](Memory& memory, std::int64_t at) {
        return qt::cpu::load_element(memory.data(), at, static_cast<qt::cpu::DType>(type));
      };
      for (const float beta : {0.0f, 1.0f, -0.75f}) {
        INFO(name_of(type) << " " << name_of(rule) << " beta = " << beta);
        const std::int64_t ld = 30, stride = m * ld + 5;
        Memory c(batch * stride * size), d(batch * stride * size), bias(n * size);
        for (std::int64_t i = 0; i < n; ++i) put(bias, i, real(random));
        if (beta != 0.0f)
          for (std::int64_t i = 0; i < batch * stride; ++i) put(c, i, real(random));
        Packed pa{Memory(batch * m * k), Memory(batch * m * k / 32 * 8)};
        Packed pb{Memory(batch * 32 * k / 2), Memory(batch * 32 * k / 32)};
        for (std::int64_t i = 0; i < batch; ++i) {
          auto one = int8_blocks(a[i]);
          std::memcpy(pa.codes.data() + i * m * k, one.codes.data(), one.codes.bytes());
          std::memcpy(pa.scales.data() + i * m * k / 32 * 8, one.scales.data(), one.scales.bytes());
          one = panel16(b[i]);
          std::memcpy(pb.codes.data() + i * 16 * k, one.codes.data(), one.codes.bytes());
          std::memcpy(pb.scales.data() + i * k, one.scales.data(), one.scales.bytes());
        }
        qt_args args{};
        args.m = m;
        args.n = n;
        args.k = k;
        args.batch = batch;
        args.a = {pa.codes.data(), pa.scales.data(), 0, 0, m * k, m * k / 32};
        args.b = {pb.codes.data(), pb.scales.data(), 0, 0, 32 * k, k};
        args.c = {c.data(), nullptr, ld, 0, stride, 0};
        args.d = {d.data(), nullptr, ld, 0, stride, 0};
        args.bias = bias.data();
        args.alpha = 0.3f;
        args.beta = beta;
        kernel.run(args);
        CHECK(d.guards_intact());
        const float factor = rule == ScaleRule::ts34 ? 0.3f * (16.0f / 9.0f) : 0.3f;
        for (std::int64_t i = 0; i < batch; ++i)
          for (std::int64_t r = 0; r < m; ++r)
            for (std::int64_t col = 0; col < n; ++col) {
              const auto at = i * stride + r * ld + col;
              float x = factor * sums[i][static_cast<std::size_t>(r * n + col)];
              if (beta != 0.0f) x = x + beta * get(c, at);
              x = x + get(bias, col);
              Memory rounded(size);
              put(rounded, 0, x);
              CHECK(get(d, at) == get(rounded, 0));
            }
      }
    }
}
