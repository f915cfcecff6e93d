// The oracle of grouped products (a mixture of experts), as qturn.h states them: which group owns a
// row or token, where its tokens lie in a quantised copy, and D element by element.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reference/gemm.hpp"

namespace quarterturn::reference {

enum class Grouping { m_contiguous, m_masked, k_grouped };

/// A group's tokens, and where the column copy holds them.
struct TokenGroup {
  std::int64_t first = 0, count = 0;   ///< tokens
  std::int64_t start = 0, padded = 0;  ///< elements of a row of the copy
};

/// By the ends of the groups, which must not decrease.
std::vector<TokenGroup> token_groups(std::span<const std::int32_t> ends, int rotation);

/// Elements of a row of such a copy of `tokens` tokens.
std::int64_t grouped_length(std::int64_t tokens, std::int64_t groups, int rotation);

/// Quantises the transpose of X [tokens, c] group by group: a [c, grouped_length] operand. Places
/// for noise are those in this copy.
Quantized quantize_grouped(const float* x, std::int64_t tokens, std::int64_t c, std::int64_t ld,
                           std::span<const std::int32_t> ends, const QuantizeSpec& spec);

/// A grouped product; `sizes` are ends, or counts in m_masked. `a` and `b` hold one operand, or one
/// for each group where every group has its own.
struct GroupedGemm {
  Grouping grouping = Grouping::m_contiguous;
  std::span<const std::int32_t> sizes;
  std::span<const Quantized> a, b;
  int rotation = 0;
  GemmSpec spec;              ///< of entry 0 of C and group 0 of the bias
  std::int64_t c_stride = 0;  ///< elements between entries of C
};

/// Element (row, column) of entry `entry` of D (0 in m_contiguous); none where D stays as it is.
std::optional<Product> grouped_at(const GroupedGemm& gemm, std::int64_t entry, std::int64_t row,
                                  std::int64_t column);

}  // namespace quarterturn::reference
