// Kernels that write expanded rows (templates/cuda/expand.h): how threads share rows, and what
// shared memory the waiting rows need.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "generator/family.hpp"
#include "generator/grouping.hpp"

namespace quarterturn::cuda {

/// One byte an element, relative to the row's reference.
inline bool is_expanded(Layout layout) {
  return layout == Layout::e5m2 || layout == Layout::int8_rows;
}

/// "e5m2", "int8" or "bf16": what tensor cores multiply.
inline std::string element_name(Layout layout) {
  return layout == Layout::int8_rows ? "int8" : std::string(name_of(layout));
}

/// Kernel text of what a row's elements are.
inline std::string element_text(Layout layout) {
  return "qt::cuda::Expanded::" + element_name(layout);
}

/// The bytes of an operand [entries, rows, k] in layout e5m2, int8_rows or bf16, in boxes of 128 by
/// `box_rows`, for the tensor memory access unit.
inline TensorMap expanded_map(TensorMap::Memory memory, Layout layout, const Problem& p,
                              const qt_tensor& tensor, std::int64_t rows, const qt_args& args,
                              std::int64_t box_rows) {
  const auto pitch = static_cast<std::uint64_t>(
      packed_stride(layout, copy_length(p, std::max<std::int64_t>(args.k, 1), args.groups)));
  const auto height = static_cast<std::uint64_t>(std::max<std::int64_t>(rows, 1));
  const auto all = entries_of(p, args.batch, args.groups);
  const auto entries = memory == TensorMap::Memory::b_data ? all.b : all.a;
  TensorMap out;
  out.memory = memory;
  out.type = TensorMap::Type::u8;
  out.swizzle = TensorMap::Swizzle::b128;
  out.rank = 3;
  out.sizes = {pitch, height, static_cast<std::uint64_t>(entries)};
  out.strides_bytes = {pitch, entries > 1 ? static_cast<std::uint64_t>(tensor.batch_stride *
                                                                       bits_per_element(layout) / 8)
                                          : pitch * height};
  out.box = {128, static_cast<std::uint32_t>(box_rows), 1};
  return out;
}

/// The problem's d_layout is expanded.
struct ExpandedRows {
  std::int64_t threads, threads_per_row;
  Layout layout;
  std::int64_t unit;  ///< k is padded to it with zero blocks

  ExpandedRows(const Problem& p, std::int64_t threads_of_block)
      : threads(threads_of_block),
        threads_per_row(threads_of_block),
        layout(p.d_layout),
        unit(unit_of(p)) {
    // As few rounds as the whole block can do, and no more threads than that takes.
    const auto blocks = padded(p.k.hi) / 32;
    for (std::int64_t team = 32; team < threads && threads_per_row == threads; team *= 2)
      if (team >= blocks) threads_per_row = team;
  }

  std::int64_t rows_of_block() const { return threads / threads_per_row; }
  std::int64_t padded(std::int64_t k) const { return packed_stride(layout, round_up(k, unit)); }
  /// staged_row of expand.h for each row, then 12 bytes a warp.
  std::int64_t shared_bytes(std::int64_t k) const {
    const auto blocks = std::max<std::int64_t>(padded(k) / 32, 4);
    const auto scales_at = (blocks - 1) * 16 + (blocks - 1) / 8 * 16 + 16;
    return rows_of_block() * round_up(scales_at + blocks, 16) + threads / 32 * 12;
  }
  std::string element() const { return element_text(layout); }
};

/// Why not even one row fits shared memory; empty when it does.
inline std::string refuse_length(const Problem& p, const Target& t) {
  if (ExpandedRows(p, 32).shared_bytes(p.k.hi) <= t.shared_bytes) return {};
  return fmt::format("expands rows of at most {} elements on {}: a row waits in shared memory",
                     t.shared_bytes * 16 / 10, t.key());
}

}  // namespace quarterturn::cuda
