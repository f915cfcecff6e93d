// The oracle's random numbers: Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC11), and how positions of a tensor draw from it.
#pragma once

#include <array>
#include <cstdint>

namespace quarterturn::reference {

using Words = std::array<std::uint32_t, 4>;

Words philox4x32(Words counter, std::array<std::uint32_t, 2> key, int rounds);

enum class Rounding { rne, sr16, sr22, sr8, half_away, half_to_zero };

bool is_stochastic(Rounding rounding);

struct NoiseKey {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
  std::uint32_t operand = 0;     ///< 0..3; 0 = A, 1 = B
  std::uint32_t transposed = 0;  ///< 1 for the column-wise copy
};

/// The draw of one element, as an integer out of 2^22 steps between two codes; 0 for nearest
/// roundings.
std::uint32_t draw(Rounding rounding, const NoiseKey& key, std::uint64_t position);

}  // namespace quarterturn::reference
