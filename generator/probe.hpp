// Questions that only hardware answers: small kernels whose results say what an instruction does
// that documents leave open. `qturn selftest` runs them and writes inputs and results down.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/source.hpp"

namespace quarterturn {

/// What stochastic rounding to E2M1 in hardware does with its random bits (sm_100a, sm_103a:
/// cvt.rs; gfx950: v_cvt_scalef32_sr_pk_fp4_f32).
///
/// The first `fractions` * 33 records have in every element 1.5 - 2^-(j + 1), which lies a fraction
/// 1 - 2^-j of the way from 1 to 1.5 (j = 1...fractions, slowest), and as random bits none, then
/// each of the 32 alone: an element becomes 1.5 where that bit adds at least 2^-j of a step.
/// Further records have special values under several random words.
struct RoundingProbe {
  std::string name, question;
  Source source;
  std::uint32_t threads = 128;        ///< of a block; a thread answers a record
  std::uint32_t elements = 0;         ///< of a record: cvt.rs has a, b, e, f; gfx950 x, y
  std::uint32_t result_words = 0;     ///< of a record
  std::vector<std::uint32_t> inputs;  ///< kRecordWords a record
  static constexpr std::uint32_t kRecordWords = 5, kFractions = 22;

  std::uint32_t records() const { return static_cast<std::uint32_t>(inputs.size()) / kRecordWords; }
  /// The code of an element in a record's results.
  std::uint32_t code(const std::vector<std::uint32_t>& results, std::uint32_t record,
                     std::uint32_t element) const;
};

/// The probe of a target that has the instruction.
std::optional<RoundingProbe> rounding_probe(const Target& target);

/// What each random bit adds to an element: w where it adds 2^-w of a step, 0 where nothing (or
/// less than is seen here). By element; the 33rd value is that of no bit at all: a constant that is
/// added.
std::vector<std::array<int, 33>> weights_of(const RoundingProbe& probe,
                                            const std::vector<std::uint32_t>& results);

}  // namespace quarterturn
