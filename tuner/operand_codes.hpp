// Reads rows of quantised operands back from the layouts that kernels use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/enums.hpp"
#include "tuner/oracle.hpp"

namespace quarterturn {

/// Whether rows of this layout can be compared and decoded here.
bool is_readable(Layout layout);

/// A quantised operand in host memory, of one batch entry.
struct PackedView {
  Layout layout = Layout::plain;
  const unsigned char* codes = nullptr;
  const unsigned char* scales = nullptr;
  std::int64_t rows = 0;
  std::int64_t k = 0;  ///< padded
};

/// Empty when the row holds exactly the expected codes and scales in its layout; else what differs.
std::string compare_row(const PackedView& view, std::int64_t row, const OracleRow& expected);

/// Code values (multiples of 1/2, without the block's scale) of a row.
std::vector<double> decode_row(const PackedView& view, std::int64_t row);

}  // namespace quarterturn
