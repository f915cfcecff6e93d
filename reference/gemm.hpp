// The oracle's products: D = alpha A B^T + beta C + bias in double, with the sum of magnitudes that
// error bounds are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/quantize.hpp"

namespace quarterturn::reference {

struct Product {
  double value = 0;      ///< NaN where a block with scale byte 255 takes part
  double magnitude = 0;  ///< alpha * sum |a b| + |beta c| + |bias|
};

struct GemmSpec {
  double alpha = 1, beta = 0;
  const float* c = nullptr;  ///< [m, n], row i at c + i * ldc; not read when beta is 0
  std::int64_t ldc = 0;
  const float* bias = nullptr;  ///< [n]
};

/// One output of two quantised operands. NaN where their padded K differ.
Product gemm_at(const Quantized& a, const Quantized& b, std::int64_t row, std::int64_t column,
                const GemmSpec& spec = {});

/// One output where A stays in high precision (weight-only); `k` real elements of A's row.
Product weight_only_at(const float* a_row, std::int64_t k, const Quantized& b, std::int64_t column,
                       std::int64_t row, const GemmSpec& spec = {});

/// All outputs, row-major.
std::vector<Product> gemm(const Quantized& a, const Quantized& b, const GemmSpec& spec = {});

/// What alpha must be multiplied by for operands quantised under TS34: 4/3 each.
double ts34_factor(ScaleRule rule);

}  // namespace quarterturn::reference
