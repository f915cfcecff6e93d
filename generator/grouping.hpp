// What grouping (a mixture of experts) changes in an operand: how many matrices it has, how long a
// contraction over groups of tokens is, and so how many bytes a quantised copy takes.
#pragma once

#include <array>
#include <cstdint>

#include "generator/layout.hpp"
#include "generator/problem.hpp"
#include "templates/args.h"

namespace quarterturn {

/// Matrices behind each other in each operand: batch entries, or groups where each has its own.
struct Entries {
  std::int64_t a = 1, b = 1, d = 1;
};
Entries entries_of(const Problem& problem, std::int64_t batch, std::int64_t groups);

/// In k_grouped copies every group begins at a multiple of this many elements: 128, or the rotation
/// where that is larger, whatever the layout, so that noise does not depend on a plan's layout.
std::int64_t group_unit(const Problem& problem);

/// To what K, or each group of it, is padded in quantised copies: group_unit or padding_unit.
std::int64_t unit_of(const Problem& problem);

/// Elements of a row of a quantised copy whose contraction axis has length `k`, with its padding:
/// (k / unit + groups) * unit in k_grouped (templates/groups.h), else k rounded up to padding_unit.
std::int64_t copy_length(const Problem& problem, std::int64_t k, std::int64_t groups);

/// Bytes of one of a quantised operand's matrices, `rows` rows along a contraction of `k`; in
/// k_grouped, expanded layouts have a reference for each group and row.
OperandBytes copy_bytes(const Problem& problem, Layout layout, std::int64_t rows, std::int64_t k,
                        std::int64_t groups);

/// Rows of tiles, `rows` high, that products of M rows take at most, whatever the sizes of groups;
/// `batch` as in qt_args.
std::int64_t most_tiles_down(const Problem& problem, std::int64_t m, std::int64_t batch,
                             std::int64_t groups, std::int64_t rows);

/// The same of the largest call, where groups are as large as each other: for cost models.
double likely_tiles_down(const Problem& problem, std::int64_t rows);

/// Elements of K in each of the largest call's products, likewise.
std::int64_t likely_k(const Problem& problem);

/// A block for each tile of all products, as TileWalk::find_of_block numbers them: products of one
/// size lie along z, others below each other.
std::array<std::uint32_t, 3> tile_grid(const Problem& problem, const qt_args& args,
                                       std::int64_t tile_m, std::int64_t tile_n);

/// Whether a call writes nothing: D has no elements. A column copy of no tokens still has a unit of
/// zero blocks for each group.
bool is_empty(const Problem& problem, std::int64_t m, std::int64_t n);

/// What is wrong with the problem's grouping, whatever the machine; OK without one.
Status check_grouping(const Problem& problem);

}  // namespace quarterturn
