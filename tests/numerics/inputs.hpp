// Values on which two quantisers are likeliest to differ: every exponent, thresholds, ties,
// subnormals, zeros, NaN and Inf.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace quarterturn::numerics {

using Random = std::mt19937_64;

float from_bits(std::uint32_t bits);
std::uint32_t to_bits(float value);

/// Any binary32 number that is not NaN or Inf, each bit pattern equally likely.
float any_finite(Random& random);

/// Each fills a block of 32.
void fill_any_exponent(std::span<float> block, Random& random);
/// Normally distributed, times 2^e with one e for the block out of the whole range.
void fill_normal(std::span<float> block, Random& random);
/// The largest magnitude is 1, 1.5, 1.75 or another threshold times 2^e, or 1 ulp beside; the
/// others are ties of E2M1 under some near scale, or 1 ulp beside.
void fill_thresholds(std::span<float> block, Random& random);
/// A normal block at an ordinary exponent with a few large outliers and zeros of either sign.
void fill_outliers(std::span<float> block, Random& random);
/// Only magnitudes below 2^-120, subnormals and zeros among them.
void fill_tiny(std::span<float> block, Random& random);
/// Only magnitudes near the largest finite number, so that sums and squares overflow.
void fill_huge(std::span<float> block, Random& random);
/// Equal values but for a few ulp: the least of deviations.
void fill_constant(std::span<float> block, Random& random);
/// bf16 values of any finite pattern.
void fill_bf16(std::span<float> block, Random& random);

using Fill = void (*)(std::span<float>, Random&);
inline constexpr Fill kFills[] = {fill_any_exponent, fill_normal, fill_thresholds, fill_outliers,
                                  fill_tiny,         fill_huge,   fill_constant,   fill_bf16};

/// Sets a block whose magnitude at `where` is `amax`, with the others as fill_thresholds() has
/// them.
void fill_around(std::span<float> block, float amax, std::size_t where, Random& random);

/// The magnitudes at which a scale rule may step, at one binary exponent (-149 to 127), with their
/// neighbours.
std::vector<float> thresholds(int exponent);

/// A matrix [rows, k] whose blocks take turns among all fills, and in which about one block in 16
/// is zero, of zeros of either sign, or holds a NaN or an Inf.
std::vector<float> mixed_matrix(std::int64_t rows, std::int64_t k, Random& random);

}  // namespace quarterturn::numerics
