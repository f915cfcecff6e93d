// Number formats of the oracle, by their definitions: E2M1, E8M0, bf16, f16.
#pragma once

#include <cstdint>

namespace quarterturn::reference {

/// The eight magnitudes of E2M1, by code.
inline constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// Value of a 4-bit code; code 8 is -0.
double e2m1_value(std::uint8_t code);

/// 2^(byte - 127); NaN for 255.
double e8m0_value(std::uint8_t byte);
/// The byte of 2^exponent, clamped to the finite bytes 0..254.
std::uint8_t e8m0_byte(int exponent);

float bf16_value(std::uint16_t bits);
float f16_value(std::uint16_t bits);
/// Round to nearest even; overflow to infinity; NaN to a quiet NaN.
std::uint16_t bf16_bits(float value);
std::uint16_t f16_bits(float value);

}  // namespace quarterturn::reference
