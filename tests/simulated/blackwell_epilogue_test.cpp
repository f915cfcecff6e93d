// Activations and derivatives behind Blackwell's products, simulated: kept arguments bit by bit the
// reference's, results as near as activations are anywhere.
#include "reference/epilogue.hpp"

#include "tests/simulated/blackwell.hpp"

using namespace quarterturn;
using namespace quarterturn::cuda_test;

namespace {

constexpr std::int64_t kExtra = 3;  // elements between rows
constexpr float kAlpha = 0x1p-6f, kBeta = 0.25f;
constexpr DType kType = DType::bf16;

Problem problem(Epilogue epilogue, std::int64_t n) {
  Problem p;
  p.op = Op::gemm;
  p.role = Role::wgrad;  // any sizes
  p.m = {0, 8192};
  p.n = Extent::exactly(n);
  p.k = {0, 16384};
  p.a_type = p.b_type = DType::mxfp4;
  p.d_type = kType;
  p.epilogue = epilogue;
  p.bias = Bias::per_column;
  p.accumulate = Accumulate::accumulate;
  if (!is_derivative(epilogue)) p.pre_activation = PreActivation::kept;
  return p;
}

struct Matrix {
  std::int64_t columns, ld;
  std::vector<unsigned char> bytes;
  Matrix(std::int64_t rows, std::int64_t width, std::uint32_t seed)
      : columns(width), ld(width + kExtra), bytes(values(kType, rows * ld, seed)) {}
  double at(std::int64_t i, std::int64_t j) const {
    return as_float(kType, bytes.data() + (i * ld + j) * 2);
  }
};

// z of all rows, exact.
std::vector<double> arguments(const Quantized& a, const Quantized& b, const Matrix& c,
                              const Matrix& bias) {
  std::vector<double> out;
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.rows; ++j)
      out.push_back(reference::gemm_at(a, b, i, j).value * kAlpha + kBeta * c.at(i, j) +
                    bias.at(0, j));
  return out;
}

// Elements of z and D that are wrong, and bytes between rows.
std::int64_t wrong(Device& d, const Family& family, const Variant& v, const Problem& p,
                   std::int64_t m, std::int64_t k) {
  const auto n = p.n.lo;
  const Operands a(d, m, k, 1, 1, 0), b(d, n, k, 1, 2, 0);
  const Matrix c(m, n, 3), bias(1, n, 4),
      aux(m, std::max<std::int64_t>(1, aux_columns(p.epilogue, n)), 5);
  const Memory c_memory(d, c.bytes), bias_memory(d, bias.bytes), aux_memory(d, aux.bytes);
  const auto columns = output_columns(p.epilogue, n), ld = columns + kExtra;
  const Memory out(d, m * ld * 2), z(d, m * c.ld * 2);
  qt_args args{};
  args.m = m;
  args.n = n;
  args.k = k;
  args.batch = args.groups = 1;
  args.a = a.tensor;
  args.b = b.tensor;
  args.c = {c_memory.data(), nullptr, c.ld, 0, 0, 0};
  args.aux = {aux_memory.data(), nullptr, aux.ld, 0, 0, 0};
  args.z = {z.data(), nullptr, c.ld, 0, 0, 0};
  args.d = {out.data(), nullptr, ld, 0, 0, 0};
  args.bias = bias_memory.data();
  args.alpha = kAlpha;
  args.beta = kBeta;
  d.run(family, p, v, args);
  const auto got = out.download(), kept = z.download();
  const auto exact = arguments(a.each[0], b.each[0], c, bias);
  const auto form = static_cast<reference::Epilogue>(p.epilogue);
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < m; ++i) {
    const auto z_of = [&](std::int64_t j) { return exact[static_cast<std::size_t>(i * n + j)]; };
    for (std::int64_t j = 0; j < n && p.pre_activation == PreActivation::kept; ++j)
      count += as_float(kType, kept.data() + (i * c.ld + j) * 2) !=
               reference::bf16_value(reference::bf16_bits(static_cast<float>(z_of(j))));
    for (std::int64_t j = 0; j < columns; ++j) {
      const auto from = reference::sources_of(form, j, n);
      const reference::Product first = {z_of(from.first), std::fabs(z_of(from.first))};
      const auto second = from.second < 0
                              ? reference::Product{}
                              : reference::Product{z_of(from.second), std::fabs(z_of(from.second))};
      const auto want = reference::activate(form, j, n, first, second, 0.0,
                                            [&](std::int64_t e) { return aux.at(i, e); });
      const double most = want.error + std::max(std::fabs(want.value) * 0x1p-8, 0x1p-133);
      count += !(std::fabs(as_float(kType, got.data() + (i * ld + j) * 2) - want.value) <= most);
    }
    for (auto at = (i * ld + columns) * 2; at < (i + 1) * ld * 2; ++at)
      count += got[static_cast<std::size_t>(at)] != 0xff;
  }
  return count;
}

void check(Device& d, const Family& family, Epilogue epilogue, std::int64_t n,
           std::initializer_list<std::pair<const std::string, std::int64_t>> values) {
  const Problem p = problem(epilogue, n);
  const auto v = with(family, p, d.target(), values);
  REQUIRE(family.refuses(p, d.target()) == "");
  REQUIRE(family.illegal(p, d.target(), v) == "");
  for (const auto landing : kLandings) {
    INFO(v.text(), " ", name_of(epilogue), " landing ", static_cast<int>(landing));
    d.schedule(3, landing);
    CHECK(wrong(d, family, v, p, 70, 96) == 0);
  }
}

}  // namespace

TEST_CASE("blackwell.epilogues of gemm_sm120 activate as the reference does") {
  const auto& family = cuda::gemm_sm120();
  check(sm120(), family, Epilogue::gelu, 90, {{"tile_m", 64}, {"tile_n", 64}});
  check(sm120(), family, Epilogue::swiglu_split, 90, {{"tile_m", 64}, {"tile_n", 64}});
  check(sm120(), family, Epilogue::swiglu_split, 150, {{"tile_m", 64}, {"tile_n", 128}});
  check(sm120(), family, Epilogue::swiglu_interleaved, 150, {{"tile_m", 32}});
  check(sm120(), family, Epilogue::dgelu_tanh, 90, {{"tile_m", 16}});
  check(sm120(), family, Epilogue::dswiglu, 90, {{"tile_m", 64}, {"tile_n", 64}});
}

TEST_CASE("blackwell.epilogues of gemm_sm100 activate as the reference does") {
  const auto& family = cuda::gemm_sm100();
  check(sm100(), family, Epilogue::gelu_tanh, 90, {{"tile_n", 64}});
  check(sm100(), family, Epilogue::swiglu_split, 512, {});
  check(sm100(), family, Epilogue::swiglu_split, 256, {{"blocks", 2}});
  check(sm100(), family, Epilogue::swiglu_interleaved, 150, {{"tile_n", 192}});
  check(sm100(), family, Epilogue::dgelu, 90, {{"tile_n", 64}});
  check(sm100(), family, Epilogue::dswiglu_interleaved, 90, {{"tile_n", 64}, {"sums", 1}});
}
