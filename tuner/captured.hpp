// Captured: a matrix of real activations or gradients from a file, for timing with data as a model
// has it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "generator/enums.hpp"
#include "generator/status.hpp"

namespace quarterturn {

/// Rows are tokens, columns are features. Immutable; safe from many threads. The file is mapped,
/// and must not change meanwhile.
class Captured {
 public:
  /// A matrix of a NumPy file (.npy: float32 or float16, C order), or of a safetensors file (F32,
  /// F16 or BF16): "FILE", its first matrix by name, or "FILE:NAME". Files are not trusted: what
  /// does not add up is refused.
  static Result<std::shared_ptr<const Captured>> open(const std::string& path);

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  DType type() const { return type_; }
  float at(std::int64_t row, std::int64_t column) const;
  /// "captured:<16 hex digits of the SHA-256 of shape and values>": the profile of trials with it.
  const std::string& name() const { return name_; }

 private:
  Captured() = default;
  Status find_matrix(std::string_view bytes, std::string_view wanted, const std::string& path);
  Status parse_npy(std::string_view bytes, const std::string& path);
  Status parse_safetensors(std::string_view bytes, std::string_view wanted,
                           const std::string& path);
  /// The matrix lies at `offset` of `bytes`.
  Status settle(std::string_view bytes, std::uint64_t offset, std::uint64_t end,
                const std::string& path);

  std::shared_ptr<const void> mapping_;
  const unsigned char* data_ = nullptr;
  std::int64_t rows_ = 0, columns_ = 0;
  DType type_ = DType::f32;
  std::string name_;
};

}  // namespace quarterturn
