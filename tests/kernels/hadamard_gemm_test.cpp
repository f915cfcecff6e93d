// cpu_hadamard_gemm executed: the fused kernel gives the bits of its two steps.
#include <doctest/doctest.h>

#include "generator/cpu/families.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

struct Mode {
  DType type;
  std::int32_t rotation;
  Signs signs;
  ScaleRule rule;
  Rounding rounding;
};

Problem problem(const Mode& mode) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::wgrad;  // so that K may be anything
  p.a_type = mode.type;
  p.b_type = DType::mxfp4;
  p.d_type = DType::f32;
  p.rotation = mode.rotation;
  p.signs = mode.signs;
  p.scale_rule = mode.rule;
  p.a_rounding = mode.rounding;
  p.m = {0, 4096};
  p.n = {1, 2000};
  p.k = {0, 16384};
  p.batch = {1, 4};
  return p;
}

// The product of an operand that the oracle quantised, by the family cpu_gemm.
std::vector<float> product(const Problem& fused, const Operand& a, const Operand& b,
                           const Target& target) {
  Problem p;  // K is given with its padding, so one kernel does for every rotation
  p.op = Op::gemm;
  p.role = fused.role;
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = fused.d_type;
  p.scale_rule = fused.scale_rule;
  p.m = fused.m;
  p.n = fused.n;
  p.k = fused.k;
  auto pa = int8_blocks(a);
  auto pb = panel16(b);
  std::vector<float> d(static_cast<std::size_t>(a.rows * b.rows));
  qt_args args{};
  args.m = a.rows;
  args.n = b.rows;
  args.k = a.blocks * 32;
  args.batch = 1;
  args.a = {pa.codes.data(), pa.scales.data(), 0, 0, 0, 0};
  args.b = {pb.codes.data(), pb.scales.data(), 0, 0, 0, 0};
  args.d = {d.data(), nullptr, b.rows, 0, 0, 0};
  args.alpha = 0.5f;
  jit::kernel(cpu::gemm(), p, target, cpu::gemm().default_variant(p, target)).run(args);
  return d;
}

}  // namespace

TEST_CASE("cpu_hadamard_gemm.has the bits of quantising and then multiplying") {
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  const Mode modes[] = {
      {DType::f32, 32, Signs::none, ScaleRule::rceil, Rounding::rne},
      {DType::bf16, 128, Signs::fixed, ScaleRule::rceil, Rounding::sr16},
      {DType::f16, 0, Signs::none, ScaleRule::ts34, Rounding::half_away},
  };
  struct Shape {
    std::int64_t m, n, k, batch;
  };
  const Shape shapes[] = {{1, 17, 96, 1}, {7, 1000, 33, 2}, {97, 5, 576, 1}, {50, 100, 0, 1}};
  for (const auto& target : jit::targets())
    for (const auto& mode : modes) {
      // Which vectors quantise is the quantiser's own test: here one mode shows it for the others.
      if (&mode != modes && !(target == jit::targets().front())) continue;
      const auto p = problem(mode);
      const auto variant = cpu::hadamard_gemm().default_variant(p, target);
      const auto& kernel = jit::kernel(cpu::hadamard_gemm(), p, target, variant);
      for (const auto& [m, n, k, batch] : shapes) {
        INFO(target.key() << " " << variant.text() << " rotation " << mode.rotation << ", " << m
                          << "x" << n << "x" << k);
        const auto type = static_cast<qt::cpu::DType>(mode.type);
        const auto ld = k + 3, unit = padding_unit(p), stride = m * ld + 7;
        Memory a(batch * stride * bytes_of(mode.type));
        std::vector<float> values(static_cast<std::size_t>(batch * m * k));
        for (std::int64_t i = 0; i < batch * m * k; ++i) {
          const auto at = i / (m * k) * stride + i % (m * k) / k * ld + i % k;
          qt::cpu::store_element(a.data(), at, type, normal(random));
          values[i] = qt::cpu::load_element(a.data(), at, type);
        }
        const Operand b(n, k, unit, random);
        auto weights = panel16(b);
        Memory d(batch * m * n * 4);
        qt_args args{};
        args.m = m;
        args.n = n;
        args.k = k;
        args.batch = batch;
        args.a = {a.data(), nullptr, ld, 0, stride, 0};
        args.b = {weights.codes.data(), weights.scales.data(), 0, 0, 0, 0};
        args.d = {d.data(), nullptr, n, 0, m * n, 0};
        args.alpha = 0.5f;
        args.noise_seed = 0x123456789abcdefull;
        args.stream = 77;
        args.row0 = 5;
        args.k0 = 64;
        args.k_global = 100000;
        for (int i = 0; i < 8; ++i) args.sign_mask[i] = static_cast<unsigned>(random());
        Memory workspace(cpu::hadamard_gemm().workspace_bytes(p, variant, {m, n, k, batch}));
        args.workspace = workspace.data();
        args.workspace_bytes = workspace.bytes();
        kernel.run(args);
        CHECK(d.guards_intact());
        CHECK(workspace.guards_intact());

        reference::QuantizeSpec spec;
        spec.rule = static_cast<reference::ScaleRule>(mode.rule);
        spec.rounding = static_cast<reference::Rounding>(mode.rounding);
        spec.rotation = mode.rotation;
        spec.signs = static_cast<reference::Signs>(mode.signs);
        std::copy(args.sign_mask, args.sign_mask + 8, spec.sign_mask.begin());
        spec.noise.seed = args.noise_seed;
        spec.noise.stream = args.stream;
        spec.row0 = args.row0;
        spec.k0 = args.k0;
        spec.k_global = args.k_global;
        for (std::int64_t i = 0; i < batch; ++i) {
          const Operand quantised(reference::quantize(values.data() + i * m * k, m, k, k, spec));
          const auto expected = product(p, quantised, b, target);
          CHECK(std::memcmp(expected.data(), d.as<float>() + i * m * n, expected.size() * 4) == 0);
        }
      }
    }
}
