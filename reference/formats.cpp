#include "reference/formats.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace quarterturn::reference {
namespace {

// Rounds to a binary format with `precision` significant bits (the hidden one counted), least
// exponent `e_min` of a normal number and largest finite value `most`, in double arithmetic that is
// exact here.
double round_to_format(double value, int precision, int e_min, double most) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| in [2^(exponent-1), 2^exponent)
  const int step = std::max(exponent - 1, e_min) - (precision - 1);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
  return std::fabs(rounded) > most ? std::copysign(std::numeric_limits<double>::infinity(), value)
                                   : rounded;
}

// The bits of a value that the format holds exactly.
std::uint16_t encode(double value, int exponent_bits, int mantissa_bits) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int top = (1 << exponent_bits) - 1;
  if (std::isnan(value))
    return static_cast<std::uint16_t>((top << mantissa_bits) | (1 << (mantissa_bits - 1)));
  const double magnitude = std::fabs(value);
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | (top << mantissa_bits));
  if (magnitude < std::ldexp(1.0, 1 - bias))
    return static_cast<std::uint16_t>(
        sign | static_cast<int>(std::ldexp(magnitude, bias - 1 + mantissa_bits)));
  int exponent = 0;
  const double fraction = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const int mantissa =
      static_cast<int>(std::ldexp(fraction, mantissa_bits + 1)) - (1 << mantissa_bits);
  return static_cast<std::uint16_t>(sign | ((exponent - 1 + bias) << mantissa_bits) | mantissa);
}

}  // namespace

double e2m1_value(std::uint8_t code) {
  const double magnitude = kMagnitudes[code % 8];
  return (code & 8) != 0 ? -magnitude : magnitude;
}

double e8m0_value(std::uint8_t byte) {
  return byte == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, byte - 127);
}

std::uint8_t e8m0_byte(int exponent) {
  return static_cast<std::uint8_t>(std::clamp(exponent + 127, 0, 254));
}

float bf16_value(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float out = 0;
  std::memcpy(&out, &wide, sizeof out);
  return out;
}

float f16_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31)
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : static_cast<float>(sign) * std::numeric_limits<float>::infinity();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>(sign * magnitude);
}

std::uint16_t bf16_bits(float value) {
  return encode(round_to_format(value, 8, -126, std::ldexp(255.0, 120)), 8, 7);
}

std::uint16_t f16_bits(float value) {
  return encode(round_to_format(value, 11, -14, 65504.0), 5, 10);
}

}  // namespace quarterturn::reference
