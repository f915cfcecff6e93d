#include "reference/grouped.hpp"

#include <algorithm>

namespace quarterturn::reference {
namespace {

std::int64_t unit_of(int rotation) { return std::max(128, rotation); }

// Columns [first, first + count) of every row, as an operand of its own.
Quantized columns_of(const Quantized& q, std::int64_t first, std::int64_t count) {
  Quantized out;
  out.rows = q.rows;
  out.k = count;
  for (std::int64_t row = 0; row < q.rows; ++row) {
    const auto codes = q.codes.begin() + (row * q.k + first) / 2;
    const auto scales = q.scales.begin() + (row * q.k + first) / 32;
    out.codes.insert(out.codes.end(), codes, codes + count / 2);
    out.scales.insert(out.scales.end(), scales, scales + count / 32);
  }
  return out;
}

}  // namespace

std::vector<TokenGroup> token_groups(std::span<const std::int32_t> ends, int rotation) {
  const auto unit = unit_of(rotation);
  std::vector<TokenGroup> out;
  std::int64_t before = 0;
  for (const std::int32_t end : ends) {
    TokenGroup group;
    group.first = before;
    group.count = end - before;
    group.start = (before / unit + static_cast<std::int64_t>(out.size())) * unit;
    group.padded = (group.count + unit - 1) / unit * unit;
    out.push_back(group);
    before = end;
  }
  return out;
}

std::int64_t grouped_length(std::int64_t tokens, std::int64_t groups, int rotation) {
  return (tokens / unit_of(rotation) + groups) * unit_of(rotation);
}

Quantized quantize_grouped(const float* x, std::int64_t tokens, std::int64_t c, std::int64_t ld,
                           std::span<const std::int32_t> ends, const QuantizeSpec& spec) {
  Quantized out;
  out.rows = c;
  out.k = grouped_length(tokens, static_cast<std::int64_t>(ends.size()), spec.rotation);
  out.codes.assign(static_cast<std::size_t>(out.rows * out.k / 2), 0);
  out.scales.assign(static_cast<std::size_t>(out.rows * out.k / 32), 0);
  for (const TokenGroup& group : token_groups(ends, spec.rotation)) {
    QuantizeSpec own = spec;
    own.k0 = group.start;
    own.k_global = out.k;
    const auto q = quantize_columns(x + group.first * ld, group.count, c, ld, own);
    for (std::int64_t row = 0; row < c; ++row) {
      std::copy_n(q.codes.begin() + row * q.k / 2, q.k / 2,
                  out.codes.begin() + (row * out.k + group.start) / 2);
      std::copy_n(q.scales.begin() + row * q.k / 32, q.k / 32,
                  out.scales.begin() + (row * out.k + group.start) / 32);
    }
  }
  return out;
}

std::optional<Product> grouped_at(const GroupedGemm& g, std::int64_t entry, std::int64_t row,
                                  std::int64_t column) {
  std::int64_t group = entry;
  if (g.grouping == Grouping::m_contiguous) {
    const auto found = std::upper_bound(g.sizes.begin(), g.sizes.end(), row);
    if (found == g.sizes.end()) return {};
    group = found - g.sizes.begin();
  }
  const auto at = static_cast<std::size_t>(group);
  if (g.grouping == Grouping::m_masked && row >= g.sizes[at]) return {};
  GemmSpec spec = g.spec;
  const bool by_tokens = g.grouping == Grouping::k_grouped;
  const Quantized& a = g.grouping == Grouping::m_masked ? g.a[at] : g.a.front();
  const Quantized& b = by_tokens ? g.b.front() : g.b[at];
  if (spec.c) spec.c += entry * g.c_stride;
  if (spec.bias) spec.bias += group * b.rows;
  if (!by_tokens) return gemm_at(a, b, row, column, spec);
  const TokenGroup tokens = token_groups(g.sizes, g.rotation)[at];
  return gemm_at(columns_of(a, tokens.start, tokens.padded),
                 columns_of(b, tokens.start, tokens.padded), row, column, spec);
}

}  // namespace quarterturn::reference
