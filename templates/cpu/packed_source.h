// Quantised operands read back: blocks of codes in order and their scale bytes, from plain or
// panel16, side by side in lanes.
#ifndef QT_CPU_PACKED_SOURCE_H
#define QT_CPU_PACKED_SOURCE_H

#include "cpu/lane_places.h"

namespace qt {
namespace cpu {

/// A quantised matrix to read; the same places as a Destination's.
struct PackedSource {
  Layout layout;
  const u8* codes;
  const u8* scales;
  i64 code_pitch, scale_pitch;  // bytes between rows; plain only
  i64 rows, blocks;
};

QT_FN PackedSource packed_source(const qt_tensor& from, Layout layout, i64 batch, i64 rows,
                                 i64 blocks) {
  return {layout,
          static_cast<const u8*>(from.data) + batch * from.batch_stride / 2,
          static_cast<const u8*>(from.scales) + batch * from.scale_batch_stride,
          from.ld / 2,
          from.scale_ld,
          rows,
          blocks};
}

QT_FN u32 little_endian(const u8* from) {
  return u32(from[0]) | u32(from[1]) << 8 | u32(from[2]) << 16 | u32(from[3]) << 24;
}

/// One block; beyond the operand's rows it is zeros.
QT_FN PackedBlock load_block(const PackedSource& from, i64 row, i64 block) {
  PackedBlock out = {};
  if (row >= from.rows) return out;
  if (from.layout == Layout::panel16) {
    const i64 at = panel_block(row / kPanelRows, block, from.blocks);
    const int c = int(row % kPanelRows);
    for (int w = 0; w < 4; ++w)
      out.codes[w] =
          word_of_panel(little_endian(from.codes + at * kPanelCodes + panel_byte(c, 8 * w)));
    out.byte = from.scales[at * kPanelScales + c];
  } else {
    const u8* codes = from.codes + row * from.code_pitch + block * (kBlock / 2);
    for (int w = 0; w < 4; ++w) out.codes[w] = little_endian(codes + 4 * w);
    out.byte = from.scales[row * from.scale_pitch + block];
  }
  return out;
}

/// One block in each lane, `row_step` rows and `block_step` blocks from each other, all of them
/// inside the operand. From a panel, lanes are its rows.
template <class Isa>
QT_CPU_INLINE void load_lanes(const PackedSource& from, i64 row, i64 block, i64 row_step,
                              i64 block_step, typename Isa::U& byte, typename Isa::U (&words)[4]) {
  u32 bytes[Isa::lanes];
  if (from.layout == Layout::panel16) {
    const i64 at = panel_block(row / kPanelRows, block, from.blocks);
    const i64 c = row % kPanelRows;
    for (int w = 0; w < 4; ++w)
      words[w] = from_panel<Isa>(Isa::load_words(
          reinterpret_cast<const u32*>(from.codes + at * kPanelCodes + 64 * w + 4 * c)));
    for (int i = 0; i < Isa::lanes; ++i) bytes[i] = from.scales[at * kPanelScales + c + i];
  } else {
    const u8* codes[Isa::lanes];
    const u8* first_codes = from.codes + row * from.code_pitch + block * (kBlock / 2);
    const u8* first_scale = from.scales + row * from.scale_pitch + block;
    for (i64 i = 0; i < Isa::lanes; ++i) {
      codes[i] = first_codes + i * (row_step * from.code_pitch + block_step * (kBlock / 2));
      bytes[i] = first_scale[i * (row_step * from.scale_pitch + block_step)];
    }
    Isa::load_quads(codes, words);
  }
  byte = Isa::load_words(bytes);
}

}  // namespace cpu
}  // namespace qt

#endif
