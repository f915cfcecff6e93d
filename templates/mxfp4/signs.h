// Random signs of a rotation: 256 bits, bit j (lowest word first) flips element j of every segment.
//
// Signs belong to the operand pair of a GEMM: both operands and all segments use the same. A fixed
// mask is given; signs per call come from a 64-bit seed, apart from the noise's seed:
// bit j is bit j%32 of word j/32%4 of Philox4x32-7 with counter (j/128, 0, 0x7369676e, 0) and the
// seed as key, low word first. The third counter word spells "sign", so even under an equal seed
// the bits are noise's only if the caller's stream is that very number.
#ifndef QT_MXFP4_SIGNS_H
#define QT_MXFP4_SIGNS_H

#include "mxfp4/philox.h"
#include "mxfp4/types.h"

namespace qt {

/// The spelling and the order are those of the generator's Signs.
enum class Signs { none, fixed, per_call };

[[maybe_unused]] constexpr u32 kSignStream = 0x7369676eu;

struct SignMask {
  u32 word[8];
};

QT_FN SignMask sign_mask_from_seed(u64 seed) {
  const Philox a = philox4x32<7>(0u, 0u, kSignStream, 0u, u32(seed), u32(seed >> 32));
  const Philox b = philox4x32<7>(1u, 0u, kSignStream, 0u, u32(seed), u32(seed >> 32));
  return {{a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1], b.word[2], b.word[3]}};
}

/// x, or -x where bit j of the mask is set: a flip of the sign bit, NaN and zero included.
QT_FN float flip_sign(float x, const SignMask& mask, u32 j) {
  return float_of(bits_of(x) ^ ((mask.word[j / 32u] >> (j % 32u)) << 31));
}

}  // namespace qt

#endif
