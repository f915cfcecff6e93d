#include "reference/column_sums.hpp"

#include <array>
#include <cstddef>

namespace quarterturn::reference {

std::vector<float> column_sums(const float* x, std::int64_t rows, std::int64_t columns,
                               std::int64_t ld) {
  std::vector<float> out;
  for (std::int64_t c = 0; c < columns; ++c) {
    std::array<float, 64> partial{};
    for (std::int64_t r = 0; r < rows; ++r)
      partial[static_cast<std::size_t>(r % 64)] += x[r * ld + c];
    for (std::size_t count = 64; count > 1; count /= 2)
      for (std::size_t i = 0; i < count / 2; ++i) partial[i] += partial[i + count / 2];
    out.push_back(partial[0]);
  }
  return out;
}

}  // namespace quarterturn::reference
