// Holds a product against the exact one, within what its tensor cores may lose on this very data.
//
// In one step a tensor core adds some exact products to the sum so far: all of them are cut, toward
// zero at worst, below the `fraction_bits`-th bit behind the leading one of the largest. So data
// whose bits all lie above the cut lose nothing, and the bound of forward operands is that of D's
// rounding alone. (Observed on NVIDIA tensor cores: Fasi et al., "Numerical behavior of NVIDIA
// tensor cores", PeerJ CS 2021; for Hopper's FP8, DeepSeek-V3's report, 2024.)
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "generator/family.hpp"
#include "tests/cuda/oracle.hpp"

namespace quarterturn::cuda_test {

struct TensorCore {
  int fraction_bits = 0;      ///< 0: sums are exact
  std::int64_t stretch = 32;  ///< of K, within which the order of steps is not looked at
  int steps = 4;              ///< in a stretch, at most
  std::int64_t promote = 0;   ///< of K, after which sums go on in binary32; 0: never
  /// Of K: stretches between promotions may lie anywhere, and blocks may share K out at these
  /// places and add their sums; 0: promotions are at multiples, one block does all of K.
  std::int64_t unit = 0;
  std::int64_t parts = 1;  ///< of K, whose sums are added in binary32 (split_k.h)
};

inline TensorCore tensor_core_of(const Variant& gemm) {
  if (gemm.family.ends_with("int8")) return {};
  const auto splits = gemm.value("splits", 1);
  if (gemm.family == "cuda_gemm_e5m2" || gemm.family == "cuda_gemm_packed_tiles")
    return {13, 128, 4, 128 * gemm.value("promote"), 0, splits};
  if (gemm.family == "cuda_gemm_packed" || gemm.family == "cuda_gemm_packed_bf16") {
    // Up to four groups promote by turns, each its own part of K.
    const auto parts = 4 / gemm.value("stripes");
    // bf16 is not promoted, but reordered inside of 128.
    if (gemm.family.ends_with("bf16")) return {23, 128, 16, 0, 128 * gemm.value("rounds") * parts};
    return {13, 128, 4, 128 * gemm.value("promote") * parts, 128 * gemm.value("rounds") * parts};
  }
  return {23, 32, 4, 0, 0, splits};
}

/// The exact kernels, and the stand-in, which computes unfit rows of either operand.
inline TensorCore exact_core() { return {23, 128, 16, 0, 0}; }

/// An operand that is not quantised: activations of a weight-only product, K padded with zeros.
struct DenseRows {
  std::int64_t rows = 0, k = 0;
  std::vector<float> x;
  double value(std::int64_t row, std::int64_t column) const {
    return x[static_cast<std::size_t>(row * k + column)];
  }
};
inline std::vector<std::uint8_t> references_of(const DenseRows&, Layout, Layout) { return {}; }

/// Values of an operand row by row, and the exponents of their lowest set bits.
struct RowValues {
  std::vector<double> value;
  std::vector<int> low;  ///< large for 0

  template <class Operand>
  RowValues(const Operand& q, std::int64_t row) {
    for (std::int64_t k = 0; k < q.k; ++k) {
      const double v = q.value(row, k);
      value.push_back(v);
      low.push_back(v == 0 || !std::isfinite(v) ? 1 << 20 : lowest_bit(v));
    }
  }

 private:
  static int lowest_bit(double v) {
    int exponent = 0;
    double fraction = std::fabs(std::frexp(v, &exponent));
    while (fraction != std::floor(fraction)) fraction *= 2, --exponent;
    return exponent;
  }
};

struct ExactProduct {
  double value = 0, magnitude = 0, lost = 0;
};

inline ExactProduct exact_product(const RowValues& a, const RowValues& b, const TensorCore& core) {
  ExactProduct out;
  const auto k = static_cast<std::int64_t>(a.value.size());
  double so_far = 0, before = 0;  // magnitudes in the tensor core's sum; and since the last place
  int lowest = 1 << 20, lowest_since = 1 << 20;  // where it may have been promoted
  for (std::int64_t first = 0; first < k; first += core.stretch) {
    if (core.promote > 0 && first % core.promote == 0) {
      // Stretches that lie anywhere are part of two neighbouring ones.
      so_far = core.unit > 0 ? before : 0;
      lowest = core.unit > 0 ? lowest_since : 1 << 20;
      before = 0;
      lowest_since = 1 << 20;
    }
    const auto end = static_cast<std::size_t>(std::min(k, first + core.stretch));
    double added = 0;
    for (auto i = static_cast<std::size_t>(first); i < end; ++i) {
      const double product = a.value[i] * b.value[i];
      out.value += product;
      added += std::fabs(product);
      lowest_since = std::min(lowest_since, a.low[i] + b.low[i]);
    }
    lowest = std::min(lowest, lowest_since);
    so_far += added;
    before += added;
    out.magnitude += added;
    if (core.fraction_bits == 0 || !(so_far > 0) || std::isinf(so_far)) continue;
    const int cut = std::ilogb(so_far) - core.fraction_bits;
    if (lowest >= cut) continue;    // every sum of these products is a multiple of the cut
    int short_of = 2 * core.steps;  // the sum so far and the result, in each step
    for (auto i = static_cast<std::size_t>(first); i < end; ++i)
      short_of += a.low[i] + b.low[i] < cut;
    out.lost += std::ldexp(short_of, cut);
  }
  if (core.promote > 0 || core.unit > 0) {
    auto sums = core.promote > 0 ? ceil_div(k, core.promote) : 0;
    if (core.unit > 0) sums += ceil_div(k, core.unit) * 2 + 4;
    out.lost += static_cast<double>(sums) * 0x1p-24 * out.magnitude;
  }
  out.lost += static_cast<double>(core.parts - 1) * 0x1p-24 * out.magnitude;
  return out;
}

/// D as it came back, and what went into it.
struct ProductCall {
  std::int64_t m = 0, n = 0;
  DType d_type = DType::bf16;
  std::int64_t ld = 0;
  float alpha = 1, beta = 0;
  const std::vector<unsigned char>* c = nullptr;  ///< as D, null for none
  const std::vector<unsigned char>* bias = nullptr;
};

struct Outcome {
  double worst = 0;     ///< |d - exact| in units of the bound; infinite for a wrong NaN or infinity
  double shrink = 0;    ///< mean of (d - exact) * sign(exact) over mean |exact|
  double relative = 0;  ///< Frobenius norm of d - exact over that of exact
  std::int64_t checked = 0;
  std::string where;  ///< of the worst
};

/// Checks all columns of at most `most_rows` rows, and that nothing was written between rows. What
/// the layouts cannot hold must be as good as exact kernels make it.
template <class Operand>
Outcome check_product(const Operand& a, const Quantized& b, const TensorCore& core,
                      const ProductCall& call, const std::vector<unsigned char>& d, Layout a_layout,
                      Layout b_layout, std::int64_t most_rows = 24) {
  Outcome out;
  const auto a_reference = references_of(a, a_layout, a_layout),
             b_reference = references_of(b, b_layout, a_layout);
  const bool windowed = !a_reference.empty() || !b_reference.empty();
  const auto size = bytes_of(call.d_type);
  const double half_ulp = call.d_type == DType::f32    ? 0x1p-24
                          : call.d_type == DType::bf16 ? 0x1p-8
                                                       : 0x1p-11;
  const double smallest = call.d_type == DType::f32    ? 0x1p-150
                          : call.d_type == DType::bf16 ? 0x1p-134
                                                       : 0x1p-25;
  const double infinite = call.d_type == DType::f16 ? 65520 : 0x1.ffp127;
  const auto at = [&](std::int64_t i, std::int64_t j) {
    return static_cast<std::size_t>((i * call.ld + j) * size);
  };
  std::vector<RowValues> columns;
  for (std::int64_t j = 0; j < call.n; ++j) columns.emplace_back(b, j);
  double signed_errors = 0, sizes = 0, errors2 = 0, sizes2 = 0;
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < call.m; i += std::max<std::int64_t>(1, call.m / most_rows))
    rows.push_back(i);
  if (call.m > 0 && rows.back() != call.m - 1) rows.push_back(call.m - 1);
  for (const auto i : rows) {
    const RowValues row(a, i);
    for (std::int64_t j = 0; j < call.n; ++j) {
      const auto column = static_cast<std::size_t>(j);
      const bool unfit = windowed && (a_reference[static_cast<std::size_t>(i)] == 255 ||
                                      b_reference[column] == 255);
      const auto exact = exact_product(row, columns[column], unfit ? exact_core() : core);
      double want = double(call.alpha) * exact.value;
      double magnitude = std::fabs(call.alpha) * exact.magnitude;
      if (call.c) {
        const double c = double(call.beta) * as_float(call.d_type, call.c->data() + at(i, j));
        want += c;
        magnitude += std::fabs(c);
      }
      if (call.bias) {
        const double bias = as_float(call.d_type, call.bias->data() + j * size);
        want += bias;
        magnitude += std::fabs(bias);
      }
      const double got = as_float(call.d_type, d.data() + at(i, j));
      const double slack = std::fabs(call.alpha) * exact.lost + 4 * 0x1p-24 * magnitude;
      const double bound = slack + std::max((std::fabs(want) + slack) * half_ulp, smallest);
      double error = std::fabs(got - want) / bound;
      if (std::isnan(want) || std::isnan(got))
        error = std::isnan(want) == std::isnan(got) ? 0 : std::numeric_limits<double>::infinity();
      else if (std::isinf(got) && std::fabs(want) + slack >= infinite && (got > 0) == (want > 0))
        error = 0;
      if (error > out.worst) {
        out.worst = error;
        out.where = "row " + std::to_string(i) + " column " + std::to_string(j) + ": " +
                    std::to_string(got) + " for " + std::to_string(want);
      }
      ++out.checked;
      if (!std::isfinite(want) || !std::isfinite(got)) continue;
      signed_errors += (got - want) * (want < 0 ? -1 : 1);
      sizes += std::fabs(want);
      errors2 += (got - want) * (got - want);
      sizes2 += want * want;
    }
    for (auto byte = at(i, call.n); byte < at(i, call.ld); ++byte)
      if (d[byte] != (call.c ? (*call.c)[byte] : 0xff)) {
        out.worst = std::numeric_limits<double>::infinity();
        out.where = "between rows " + std::to_string(i) + " and " + std::to_string(i + 1);
      }
  }
  out.shrink = sizes > 0 ? signed_errors / sizes : 0;
  out.relative = sizes2 > 0 ? std::sqrt(errors2 / sizes2) : 0;
  return out;
}

}  // namespace quarterturn::cuda_test
