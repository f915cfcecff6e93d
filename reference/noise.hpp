// The oracle's random numbers: Philox4x32 (Salmon et al., "Parallel random numbers: as easy as 1,
// 2, 3", SC11), and how positions of a tensor draw from it.
#pragma once

#include <array>
#include <cstdint>

namespace quarterturn::reference {

using Words = std::array<std::uint32_t, 4>;

Words philox4x32(Words counter, std::array<std::uint32_t, 2> key, int rounds);

/// The last two are what documents say that instructions do: PTX ISA 9.1, `cvt.rs.satfinite.e2m1x4`
/// adds 8 bits of its 32-bit operand to the discarded mantissa bits of each of four values, the low
/// bytes of the operand's halves serving e and f, the high ones a and b (which half serves which is
/// not said in words; here the upper one a and e); and v_cvt_scalef32_sr_pk_fp4_f32 adds the seed's
/// top 22 bits to both values' (AMD's host reference in amd_hip_ocp_fp.hpp; the CDNA 4 ISA names no
/// bits, and reports have it one bit lower).
enum class Rounding { rne, sr16, sr22, sr8, half_away, half_to_zero, sr_cvt_rs, sr_cvt_scalef32 };

bool is_stochastic(Rounding rounding);

struct NoiseKey {
  std::uint64_t seed = 0;
  std::uint32_t stream = 0;
  std::uint32_t operand = 0;     ///< 0..3; 0 = A, 1 = B
  std::uint32_t transposed = 0;  ///< 1 for the column-wise copy
};

/// The word that an element's instruction is given, of a rounding of hardware, for the four
/// (sr_cvt_rs) or two neighbours that it converts together.
std::uint32_t word_of_instruction(Rounding rounding, const NoiseKey& key, std::uint64_t position);
/// What such a word adds to element `index` of those neighbours, out of 2^22 steps.
std::uint32_t draw_of_instruction(Rounding rounding, std::uint32_t word, std::uint32_t index);

/// The draw of one element, as an integer out of 2^22 steps between two codes; 0 for nearest
/// roundings.
std::uint32_t draw(Rounding rounding, const NoiseKey& key, std::uint64_t position);

}  // namespace quarterturn::reference
