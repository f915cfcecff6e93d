// The two layouts that CPU kernels multiply from, as index functions that writers and readers
// share.
//
// int8_blocks (operand A), tightly packed:
//   codes   signed bytes 2q, [rows, K]
//   scales  one Int8Scale for each block of 32, [rows, K/32]
// panel16 (operand B), tightly packed, rows in panels of 16 (K fastest among panels' blocks):
//   codes   [panels, K/32] blocks of 256 bytes, in the order in which a dot product by fours takes
//           them: byte 64p + 4c + j of a block holds row c's element k = 8p + j in its low nibble
//           and k = 8p + 4 + j in its high nibble (p < 4, c < 16, j < 4)
//   scales  [panels, K/32] blocks of 16 bytes, byte c for row c
// K is padded to the problem's padding unit with zero blocks; panel rows beyond the operand have
// codes 0 and scale byte 0. Both arrays start at a multiple of 64 bytes.
//
// Scales. Where q is a code's value, a block's part of the result is
//   (sum of 2qa * 2qb) * 2^(ba-127) * 2^(bb-127) / 4.
// The sum is an integer of at most 4608. Int8Scale::scale is 2^(ba-139), so that its product with
// the sum is finite and exact for every byte; the reader multiplies that by 2^(bb-117), which is
// normal for every byte below 245. Larger bytes take two exact factors, PanelScale.
#ifndef QT_CPU_LAYOUTS_H
#define QT_CPU_LAYOUTS_H

#include "mxfp4/types.h"

namespace qt {
namespace cpu {

using i8 = signed char;
using i16 = short;

constexpr int kBlock = 32;        // elements of K that share a scale
constexpr int kPanelRows = 16;    // rows of B in a panel
constexpr int kPanelCodes = 256;  // bytes of one block of a panel
constexpr int kPanelScales = 16;  // scale bytes of one block of a panel
constexpr int kCodeBias = 12;     // makes 2q of B unsigned, as byte dot products want one side

/// What A keeps beside each block of codes.
struct Int8Scale {
  float scale;     // 2^(byte-139); +0 where all codes are 0, NaN for byte 255
  i32 correction;  // -kCodeBias * (sum of the block's codes): takes B's bias out of the dot product
};

QT_FN i64 panels_of(i64 rows) { return (rows + kPanelRows - 1) / kPanelRows; }

/// Int8Scale of a block with scale byte `byte` and codes 2q that add up to `sum`.
QT_FN Int8Scale int8_scale(u32 byte, i32 sum, bool all_zero) {
  u32 bits = byte >= 13u ? (byte - 12u) << 23 : 1u << (byte + 10u);  // below 2^-126: subnormal
  if (all_zero) bits = 0u;
  if (byte == 255u) bits = 0x7fc00000u;
  return {float_of(bits), -kCodeBias * sum};
}

/// Offset of block `block` of panel `panel`; multiply by kPanelCodes or kPanelScales for bytes.
QT_FN i64 panel_block(i64 panel, i64 block, i64 blocks) { return panel * blocks + block; }

/// Byte that holds element k < 32 of row c < 16, within a panel's block, and its nibble's shift.
QT_FN int panel_byte(int c, int k) { return k / 8 * 64 + c * 4 + k % 4; }
QT_FN int panel_shift(int k) { return k % 8 / 4 * 4; }

/// What B's scale byte multiplies by: 2^(byte-117) as `high` * `low`, both finite; NaN for 255.
struct PanelScale {
  float high;  // 1, or 2^64 from byte kWideByte on
  float low;
};
constexpr u32 kWideByte = 245u;

QT_FN PanelScale panel_scale(u32 byte) {
  if (byte == 255u) return {1.0f, float_of(0x7fc00000u)};
  if (byte < kWideByte) return {1.0f, float_of((byte + 10u) << 23)};
  return {float_of((127u + 64u) << 23), float_of((byte + 10u - 64u) << 23)};
}

/// The same for sums of A * 2q, with A not quantised: 2^(byte-128), normal but for bytes 0 and 1.
QT_FN PanelScale weight_scale(u32 byte) {
  if (byte == 255u) return {1.0f, float_of(0x7fc00000u)};
  if (byte > 1u) return {1.0f, float_of((byte - 1u) << 23)};
  return {float_of((127u - 64u) << 23), float_of((byte - 1u + 64u) << 23)};
}
QT_FN constexpr bool is_extreme(u32 byte) { return byte <= 1u || byte == 255u; }

}  // namespace cpu
}  // namespace qt

#endif
