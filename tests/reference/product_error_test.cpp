// Errors of whole products: signal to noise of GEMMs and the variance of stochastic rounding.
//
// Figures come from a simulation of the same definitions that shares no code with this one. Its
// data follow Tseng et al., arXiv:2502.20586: A, B ~ N(0, I) + Bernoulli(p) N(0, 25 I), whose
// figure 2 shows the variance with and without rotation; their paper prints curves, no table.
// The simulation's sample is small: its figures scatter by 0.15 dB around what the operands' errors
// predict, and by more where a few large channels carry the energy.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "reference/formats.hpp"
#include "reference/gemm.hpp"
#include "reference/quantize.hpp"
#include "reference/statistics.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

constexpr std::int64_t kK = 1024;

struct Signal {
  double snr_db, gain;
  double predicted_db = 0;  // from the errors of the operands: ea + eb + ea eb of the energy
};

enum class Kind { normal, spiked, channels };

std::vector<float> operand(Kind kind, std::int64_t rows, std::uint64_t seed, bool is_a) {
  Samples random(seed);
  auto x = sample(static_cast<std::size_t>(rows * kK),
                  [&] { return kind == Kind::spiked ? random.spiked(0.01, 5) : random.normal(); });
  if (kind == Kind::channels && is_a)  // 1 % of A's columns are 20 times as large
    for (std::int64_t k = 0; k < kK; ++k)
      if (random.uniform() < 0.01)
        for (std::int64_t i = 0; i < rows; ++i) x[static_cast<std::size_t>(i * kK + k)] *= 20;
  return x;
}

// Pairs of operands of one kind with their exact products. Several, because it matters which
// channels are large.
struct Pairs {
  static constexpr std::int64_t kRows = 64;
  static constexpr std::uint64_t kCount = 12;

  explicit Pairs(Kind kind) {
    for (std::uint64_t pair = 0; pair < kCount; ++pair) {
      a.push_back(operand(kind, kRows, 2 * pair + 1, true));
      b.push_back(operand(kind, kRows, 2 * pair + 2, false));
      std::vector<double> products;
      for (std::int64_t i = 0; i < kRows; ++i)
        for (std::int64_t j = 0; j < kRows; ++j) {
          const float* x = a.back().data() + i * kK;
          const float* y = b.back().data() + j * kK;
          double sum = 0;
          for (std::int64_t k = 0; k < kK; ++k)
            sum += static_cast<double>(x[k]) * static_cast<double>(y[k]);
          products.push_back(sum);
        }
      exact.push_back(std::move(products));
    }
  }

  std::vector<std::vector<float>> a, b;
  std::vector<std::vector<double>> exact;
};

void add_errors(ErrorSums& sums, std::vector<float> x, const Quantized& q,
                const QuantizeSpec& spec) {
  rotate_row(x, spec);
  const auto values = dequantize(q);
  for (std::size_t i = 0; i < x.size(); ++i)
    sums.add(static_cast<double>(x[i]), ts34_factor(spec.rule) * values[i]);
}

Signal measure(const Pairs& pairs, QuantizeSpec spec) {
  ErrorSums a_errors, b_errors;
  double energy = 0, noise = 0, product = 0;
  GemmSpec gemm_spec;
  gemm_spec.alpha = ts34_factor(spec.rule) * ts34_factor(spec.rule);
  for (std::uint64_t pair = 0; pair < Pairs::kCount; ++pair) {
    spec.noise = {0x13198a2e03707344 + pair, 0, 0, 0};
    spec.sign_seed = 0xa4093822299f31d0 + pair;
    const auto qa = quantize(pairs.a[pair].data(), Pairs::kRows, kK, kK, spec);
    spec.noise.operand = 1;
    const auto qb = quantize(pairs.b[pair].data(), Pairs::kRows, kK, kK, spec);
    add_errors(a_errors, pairs.a[pair], qa, spec);
    add_errors(b_errors, pairs.b[pair], qb, spec);
    const auto got = gemm(qa, qb, gemm_spec);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double exact = pairs.exact[pair][i];
      energy += exact * exact;
      noise += (got[i].value - exact) * (got[i].value - exact);
      product += got[i].value * exact;
    }
  }
  const double ea = a_errors.relative_mse(), eb = b_errors.relative_mse();
  return {10 * std::log10(energy / noise), product / energy, -10 * std::log10(ea + eb + ea * eb)};
}

QuantizeSpec spec_of(ScaleRule rule, Rounding rounding, int g, Signs signs = Signs::none) {
  QuantizeSpec spec;
  spec.rule = rule;
  spec.rounding = rounding;
  spec.rotation = g;
  spec.signs = signs;
  return spec;
}

// Mean variance of a dot product under stochastic ts34, over the mean of its square: exact for the
// given data, nothing is rounded. V = (high - a)(a - low) in units of each block's scale.
double relative_variance(double p, int g, int pairs) {
  Samples random(static_cast<std::uint64_t>(1000 * p));
  double variance = 0;
  struct Row {
    std::vector<float> x;
    std::vector<double> v;
  };
  const auto row = [&] {
    Row out;
    out.x = sample(static_cast<std::size_t>(kK), [&] { return random.spiked(p, 5); });
    auto spec = spec_of(ScaleRule::ts34, Rounding::rne, g);
    rotate_row(out.x, spec);
    for (std::size_t i = 0; i < out.x.size(); ++i) {
      const std::span<const float> block(out.x.data() + i / 32 * 32, 32);
      const double unit = 4.0 / 3 * e8m0_value(scale_byte(block, ScaleRule::ts34));
      const double a = std::fabs(static_cast<double>(out.x[i])) / unit;
      int low = 0;
      while (low < 6 && kMagnitudes[low + 1] <= a) ++low;
      out.v.push_back((kMagnitudes[low + 1] - a) * (a - kMagnitudes[low]) * unit * unit);
    }
    return out;
  };
  for (int pair = 0; pair < pairs; ++pair) {
    const Row a = row(), b = row();
    for (std::size_t i = 0; i < a.x.size(); ++i) {
      const auto x = static_cast<double>(a.x[i]), y = static_cast<double>(b.x[i]);
      variance += a.v[i] * b.v[i] + a.v[i] * y * y + b.v[i] * x * x;
    }
  }
  // E[(A.B)^2] of independent elements with mean 0.
  return variance / (static_cast<double>(kK) * (1 + p * 25) * (1 + p * 25) * pairs);
}

}  // namespace

TEST_CASE("products.signal to noise and gain of GEMMs with K = 1024") {
  struct Row {
    const char* name;
    QuantizeSpec spec;
    Signal normal, spiked, channels;
  };
  const Row rows[] = {
      {"floor rne",
       spec_of(ScaleRule::floor, Rounding::rne, 0),
       {15.74, 0.955},
       {14.64, 0.942},
       {13.84, 0.929}},
      {"even rne",
       spec_of(ScaleRule::even, Rounding::rne, 0),
       {16.00, 0.980},
       {14.87, 0.983},
       {14.20, 0.977}},
      {"even rne g 16",
       spec_of(ScaleRule::even, Rounding::rne, 16),
       {15.98, 0.981},
       {16.02, 0.980},
       {16.03, 0.986}},
      {"even rne g 32",
       spec_of(ScaleRule::even, Rounding::rne, 32),
       {15.98, 0.981},
       {16.06, 0.980},
       {16.10, 0.983}},
      {"rceil rne g 32",
       spec_of(ScaleRule::rceil, Rounding::rne, 32),
       {15.57, 0.983},
       {15.81, 0.981},
       {15.77, 0.984}},
      {"rceil sr",
       spec_of(ScaleRule::rceil, Rounding::sr16, 0),
       {12.36, 0.999},
       {11.05, 1.002},
       {10.21, 0.993}},
      {"rceil sr g 32",
       spec_of(ScaleRule::rceil, Rounding::sr16, 32),
       {12.45, 0.999},
       {12.59, 1.000},
       {12.59, 0.999}},
      {"ts34 sr g 64, signs per call",
       spec_of(ScaleRule::ts34, Rounding::sr16, 64, Signs::per_call),
       {12.52, 1.000},
       {12.56, 1.001},
       {12.78, 0.995}},
  };
  for (const auto kind : {Kind::normal, Kind::spiked, Kind::channels}) {
    const Pairs pairs(kind);
    for (const auto& row : rows) {
      const auto& expected = kind == Kind::normal   ? row.normal
                             : kind == Kind::spiked ? row.spiked
                                                    : row.channels;
      const auto got = measure(pairs, row.spec);
      INFO(row.name << ", data " << int(kind) << ": " << got.snr_db << " dB (expected "
                    << expected.snr_db << ", from the operands' errors " << got.predicted_db
                    << "), gain " << got.gain << " (expected " << expected.gain << ")");
      CHECK(std::fabs(got.snr_db - got.predicted_db) < 0.15);
      CHECK(std::fabs(got.snr_db - expected.snr_db) < (kind == Kind::channels ? 0.4 : 0.25));
      CHECK(std::fabs(got.gain - expected.gain) < 0.01);
    }
  }
}

TEST_CASE(
    "products.variance of stochastic rounding falls with the rotation and is flat from 16 on") {
  const double expected[2][5] = {{0.0779, 0.0561, 0.0551, 0.0551, 0.0552},
                                 {0.1048, 0.0546, 0.0527, 0.0540, 0.0555}};
  const int sizes[] = {0, 16, 32, 64, 256};
  for (int which = 0; which < 2; ++which)
    for (int n = 0; n < 5; ++n) {
      const double got = relative_variance(which == 0 ? 0.01 : 0.05, sizes[n], 400);
      INFO("p " << (which == 0 ? 0.01 : 0.05) << ", g " << sizes[n] << ": " << got);
      CHECK(std::fabs(got / expected[which][n] - 1) < 0.04);
    }
}
