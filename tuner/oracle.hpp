// Oracle: what an instance's codes and outputs must be, from the scalar reference, for rows and
// columns that are asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "reference/quantize.hpp"
#include "tuner/instance.hpp"

namespace quarterturn {

/// One row of a quantised operand.
struct OracleRow {
  std::vector<std::uint8_t> codes;   ///< two a byte, low nibble first
  std::vector<std::uint8_t> scales;  ///< one a block
  std::vector<double> values;        ///< NaN under byte 255
};

struct OracleOutput {
  double value = 0;
  double magnitude = 0;  ///< sum of |terms|, which error bounds are made of
  double error = 0;      ///< beyond those: what an epilogue makes of them, and its own
};

class Oracle {
 public:
  explicit Oracle(const Instance& instance);

  /// Row of A (`which` 0) or B (1), kept once it is worked out. High-precision operands that the
  /// problem does not quantise (weight-only) have values alone.
  const OracleRow& row(std::uint32_t which, std::int64_t batch, std::int64_t row);

  /// For `quantize` with both copies: a row of the transposed one.
  const OracleRow& transposed_row(std::int64_t batch, std::int64_t row);

  OracleOutput output(std::int64_t batch, std::int64_t row, std::int64_t column);

  /// z = alpha A B^T + beta C + bias, before the epilogue.
  OracleOutput pre_activation(std::int64_t batch, std::int64_t row, std::int64_t column);

  /// The columns of z, so rows of B, that columns of D come from.
  std::vector<std::int64_t> columns_of_z(const std::vector<std::int64_t>& columns) const;

  /// Works out many rows on all cores.
  void prepare(std::uint32_t which, std::int64_t batch, const std::vector<std::int64_t>& rows);

 private:
  OracleRow work_out(std::uint32_t which, std::int64_t batch, std::int64_t row,
                     bool transposed) const;

  const Instance& instance_;
  /// In k_grouped, what each entry of D contracts of a copy's rows: first and end.
  std::vector<std::pair<std::int64_t, std::int64_t>> contractions_;
  std::vector<std::vector<float>> activated_;  ///< X behind a prologue, for transposed copies
  std::map<std::int64_t, OracleRow> rows_[3];  ///< by batch * rows + row; A, B, A transposed
};

/// The reference's view of an operand's quantisation.
reference::QuantizeSpec reference_spec(const Problem& problem, std::uint32_t which);

/// Row `row` of the quantised copy of a matrix of `rows` rows of `k` elements, element(row, i);
/// `spec` says how, but for the row's place.
OracleRow quantized_row(reference::QuantizeSpec spec, std::int64_t rows, std::int64_t k,
                        std::int64_t row,
                        const std::function<float(std::int64_t, std::int64_t)>& element);

/// How far an output may lie from the oracle's: |d - value| <= relative * magnitude + half a step
/// of d's type. `exact` sums are binary32 in some order over blocks or elements; `fast` ones pass
/// through tensor cores that keep 13 fraction bits over short stretches.
double error_bound(const Problem& problem, std::int64_t k, const OracleOutput& output);

/// The part of it that is a multiple of the magnitude.
double relative_bound(const Problem& problem, std::int64_t k);

/// X as `quantize` rotates it: row `row` behind the problem's prologue.
std::vector<float> prologue_row(const Instance& instance, std::int64_t batch, std::int64_t row);

}  // namespace quarterturn
