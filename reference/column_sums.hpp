// The sums of a matrix's columns in binary32, bit for bit: the gradient of a bias.
#pragma once

#include <cstdint>
#include <vector>

namespace quarterturn::reference {

/// Of X [rows, columns], row i at x + i * ld: in 64 sums of every 64th row, in ascending order, of
/// which then each in the lower half takes the one half their number further, until one is left.
std::vector<float> column_sums(const float* x, std::int64_t rows, std::int64_t columns,
                               std::int64_t ld);

}  // namespace quarterturn::reference
