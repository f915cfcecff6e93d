// Inputs: matrices whose every element is a function of its place and a seed, so that a kernel's
// operand of any size and the few rows that an oracle looks at are surely the same numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "generator/enums.hpp"
#include "tuner/captured.hpp"

namespace quarterturn {

/// What real data look like, as far as it matters for scales and rounding.
enum class Profile {
  weight,  ///< normal
  /// Activations: normal, one feature in 64 four to twelve times larger. Rotated over 32, 99.7 % of
  /// rows of 4096 keep their block scales within 4 binades, as activations of a trained model were
  /// found to do.
  forward,
  gradient,    ///< each token has its own scale, log-normal over about 16 binades
  heavy_tail,  ///< normal over the root of a uniform: rare huge elements anywhere
  edge,        ///< blocks of zeros, tiny, huge, equal, lonely and exactly half-way values
};
std::string_view profile_name(Profile profile);

/// The profile of A in a role: gradients in Dgrad and Wgrad, activations else.
Profile profile_of(Role role);

/// A matrix as it is stored: row-major, rows are tokens or output features, columns are features.
/// Knows every element without holding any.
class Matrix {
 public:
  Matrix() = default;
  Matrix(Profile profile, std::uint64_t seed, DType type, std::int64_t rows, std::int64_t columns)
      : profile_(profile), seed_(seed), type_(type), rows_(rows), columns_(columns) {}
  /// Values of a file, from its first row and column on, and again where it is smaller.
  Matrix(std::shared_ptr<const Captured> data, DType type, std::int64_t rows, std::int64_t columns)
      : data_(std::move(data)), type_(type), rows_(rows), columns_(columns) {}

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  DType type() const { return type_; }

  /// Rounded to the matrix's type.
  float at(std::int64_t row, std::int64_t column) const;
  /// A whole row of them, which takes less time than one by one.
  void row(std::int64_t row, std::vector<float>& out) const;

  /// Bytes in the matrix's type with `ld` elements between rows; what lies between rows stays 0xff,
  /// which is NaN in every type.
  /// Worked out on all cores.
  std::vector<unsigned char> bytes(std::int64_t ld) const;

 private:
  float row_factor(std::int64_t row) const;
  float exact(std::int64_t row, std::int64_t column, float row_factor) const;
  float edge_case(std::int64_t row, std::int64_t column, std::uint64_t hash) const;

  std::shared_ptr<const Captured> data_;
  Profile profile_ = Profile::weight;
  std::uint64_t seed_ = 0;
  DType type_ = DType::f32;
  std::int64_t rows_ = 0, columns_ = 0;
};

/// One element in memory, and back.
void store_element(DType type, float value, unsigned char* at);
float load_element(DType type, const unsigned char* at);

}  // namespace quarterturn
