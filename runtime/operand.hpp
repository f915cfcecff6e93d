// Where an operand's elements lie: the strides that a tightly packed tensor has in each layout.
#pragma once

#include <cstdint>

#include "generator/layout.hpp"
#include "generator/problem.hpp"
#include "templates/args.h"

namespace quarterturn {

/// Strides count elements of codes (bits_per_element), and the layout's units of scales (bytes, or
/// the 8-byte records of int8_blocks).
std::int64_t bytes_per_scale(Layout layout);

/// A tightly packed MXFP4 operand of `rows` x `k` elements, k padded to `padding`, for one or more
/// batch entries behind each other.
qt_tensor packed_operand(Layout layout, std::int64_t rows, std::int64_t k, std::int64_t padding,
                         void* codes, void* scales);

/// A tightly packed matrix of a high-precision type: `rows` rows of `columns` elements as stored.
qt_tensor dense_matrix(std::int64_t rows, std::int64_t columns, void* data);

}  // namespace quarterturn
