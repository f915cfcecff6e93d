#include "tuner/inputs.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "generator/problem.hpp"
#include "reference/formats.hpp"
#include "reference/statistics.hpp"
#include "tuner/parallel.hpp"
#include "tuner/random.hpp"

namespace quarterturn {
namespace {

// Standard normal values at the middle of 4096 equal slices of probability: up to 3.7 deviations.
const std::array<float, 4096>& normal_table() {
  static const auto table = [] {
    std::array<float, 4096> out{};
    for (std::size_t i = 0; i < 2048; ++i) {
      const double p = (static_cast<double>(i) + 0.5) / 4096;
      out[4095 - i] = static_cast<float>(reference::normal_quantile(p));
      out[i] = -out[4095 - i];
    }
    return out;
  }();
  return table;
}

float normal(std::uint64_t hash) {
  // A little of the slice's width on top, so that values differ in all their bits.
  const float jitter = static_cast<float>((hash >> 12) & 0xffff) * 0x1p-28f;
  return normal_table()[hash & 0xfff] * (1 + jitter);
}

// A value per row or column: another stream than the elements'.
std::uint64_t line_hash(std::uint64_t seed, std::int64_t line) {
  return Random::at(seed ^ 0x6c696e65736b6579ull, static_cast<std::uint64_t>(line));
}

// As the reference rounds, by bits: operands have hundreds of millions of elements.
std::uint16_t bf16_bits(float value) {
  if (std::isnan(value)) return reference::bf16_bits(value);
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float round_to(DType type, float value) {
  if (type == DType::bf16) return reference::bf16_value(reference::bf16_bits(value));
  if (type == DType::f16) return reference::f16_value(reference::f16_bits(value));
  return value;
}

}  // namespace

std::string_view profile_name(Profile profile) {
  switch (profile) {
    case Profile::weight:
      return "weight";
    case Profile::forward:
      return "forward";
    case Profile::gradient:
      return "gradient";
    case Profile::heavy_tail:
      return "heavy";
    case Profile::edge:
      return "edge";
  }
  return "?";
}

Profile profile_of(Role role) {
  return role == Role::dgrad || role == Role::wgrad ? Profile::gradient : Profile::forward;
}

float Matrix::edge_case(std::int64_t row, std::int64_t column, std::uint64_t hash) const {
  const std::uint64_t block =
      Random::at(seed_ ^ 0x626c6f636b73ull,
                 static_cast<std::uint64_t>(row * (columns_ / 32 + 1) + column / 32));
  // Far apart, but a product of two operands stays a normal number of the type.
  const float far = type_ == DType::f16 ? 0x1p5f : 0x1p30f;
  const float sign = hash & 1 ? -1.0f : 1.0f;
  switch (block % 8) {
    case 0:
      return 0;
    case 1:
      return normal(hash >> 8) / far;
    case 2:
      return normal(hash >> 8) * far;
    case 3:  // half-way between two codes for many scales
      return sign * 0.25f * static_cast<float>((hash >> 8) % 21);
    case 4:
      return column % 32 == static_cast<std::int64_t>(block >> 8) % 32 ? sign : 0.0f;
    case 5:
      return 1.5f;
    case 6:
      return sign * 0.0f;
    default:
      return normal(hash >> 8);
  }
}

// What all elements of a row share, worked out once for many.
float Matrix::row_factor(std::int64_t row) const {
  if (profile_ != Profile::gradient) return 1;
  return std::exp2(4 * normal(line_hash(seed_, row)) - (type_ == DType::f16 ? 2 : 12));
}

float Matrix::exact(std::int64_t row, std::int64_t column, float factor) const {
  if (data_) return data_->at(row % data_->rows(), column % data_->columns());
  const std::uint64_t hash = Random::at(seed_, static_cast<std::uint64_t>(row * columns_ + column));
  switch (profile_) {
    case Profile::weight:
      return normal(hash) * 0.03125f;
    case Profile::forward: {
      const auto feature = line_hash(seed_, column);
      const bool outlier = feature % 64 == 0;
      return normal(hash) * (outlier ? 4 + static_cast<float>((feature >> 8) % 9) : 1.0f);
    }
    case Profile::gradient:
      return normal(hash) * factor;
    case Profile::heavy_tail: {
      const float uniform = static_cast<float>((hash >> 28) + 1) * 0x1p-36f;
      return normal(hash) / std::sqrt(uniform > 1e-6f ? uniform : 1e-6f);
    }
    case Profile::edge:
      return edge_case(row, column, hash);
  }
  return 0;
}

float Matrix::at(std::int64_t row, std::int64_t column) const {
  return round_to(type_, exact(row, column, row_factor(row)));
}

void Matrix::row(std::int64_t row, std::vector<float>& out) const {
  out.resize(static_cast<std::size_t>(columns_));
  const float factor = row_factor(row);
  for (std::int64_t column = 0; column < columns_; ++column) {
    const float value = exact(row, column, factor);
    out[static_cast<std::size_t>(column)] =
        type_ == DType::bf16 ? reference::bf16_value(bf16_bits(value)) : round_to(type_, value);
  }
}

void store_element(DType type, float value, unsigned char* at) {
  if (type == DType::f32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = type == DType::bf16 ? bf16_bits(value) : reference::f16_bits(value);
  std::memcpy(at, &bits, sizeof bits);
}

float load_element(DType type, const unsigned char* at) {
  if (type == DType::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return type == DType::bf16 ? reference::bf16_value(bits) : reference::f16_value(bits);
}

std::vector<unsigned char> Matrix::bytes(std::int64_t ld) const {
  const std::int64_t size = bytes_of(type_);
  std::vector<unsigned char> out(static_cast<std::size_t>(rows_ * ld * size), 0xff);
  on_all_cores(rows_, columns_, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t row = first; row < end; ++row) {
      unsigned char* to = out.data() + row * ld * size;
      const float factor = row_factor(row);
      for (std::int64_t column = 0; column < columns_; ++column, to += size)
        store_element(type_, exact(row, column, factor), to);
    }
  });
  return out;
}

}  // namespace quarterturn
