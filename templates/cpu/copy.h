// One quantised copy of a matrix: where its elements come from and where its blocks go.
//
// A copy has rows and a contraction axis k. The row-wise copy of X [m, k] is X itself; the
// column-wise copy is X^T, whose k runs along the rows of X. Elements beyond the true sizes are
// zeros.
#ifndef QT_CPU_COPY_H
#define QT_CPU_COPY_H

#include "args.h"
#include "cpu/elements.h"
#include "cpu/layouts.h"
#include "mxfp4/noise.h"

namespace qt {
namespace cpu {

/// The spelling and the order are those of the generator's Layout, Copies and ScaleBlock.
enum class Layout {
  chosen,
  plain,
  scales_128x4,
  aiter,
  e5m2,
  int8_rows,
  int8_blocks,
  panel16,
  permuted,
  bf16
};
enum class Copies { rows, columns, both };
enum class ScaleBlock { b1x32, b32x32 };

QT_FN i64 bytes_of(DType type) { return type == DType::f32 ? 4 : 2; }

/// A block as the arithmetic leaves it: codes packed eight to a word, in order.
struct PackedBlock {
  u32 byte;
  u32 codes[4];
};

/// A quantised matrix in memory, [rows, 32 * blocks].
struct Destination {
  Layout layout;
  u8* codes;
  u8* scales;
  i64 code_pitch, scale_pitch;  // bytes between rows; plain only
  i64 blocks;
};

/// Entry `batch` of an operand; layouts other than plain are tightly packed.
QT_FN Destination destination_of(const qt_tensor& to, Layout layout, i64 batch, i64 blocks) {
  const i64 codes = batch * to.batch_stride;
  const bool int8 = layout == Layout::int8_blocks;
  return {layout,
          static_cast<u8*>(to.data) + (int8 ? codes : codes / 2),
          static_cast<u8*>(to.scales) + batch * to.scale_batch_stride * (int8 ? 8 : 1),
          to.ld / 2,
          to.scale_ld,
          blocks};
}

/// What lies from a block of K on, in every row.
QT_FN Destination from_block(Destination to, i64 block) {
  const bool panels = to.layout == Layout::panel16, int8 = to.layout == Layout::int8_blocks;
  to.codes += block * (panels ? kPanelCodes : int8 ? kBlock : kBlock / 2);
  to.scales += block * (panels ? kPanelScales : int8 ? i64(sizeof(Int8Scale)) : 1);
  return to;
}

QT_FN void store_plain(const Destination& to, i64 row, i64 block, const PackedBlock& from) {
  u8* codes = to.codes + row * to.code_pitch + block * (kBlock / 2);
  for (int i = 0; i < kBlock / 2; ++i) codes[i] = u8(from.codes[i / 4] >> (8 * (i % 4)));
  to.scales[row * to.scale_pitch + block] = u8(from.byte);
}

QT_FN void store_int8(const Destination& to, i64 row, i64 block, const PackedBlock& from) {
  i8* codes = reinterpret_cast<i8*>(to.codes) + (row * to.blocks + block) * kBlock;
  i32 sum = 0;
  u32 any = 0;
  for (int i = 0; i < kBlock; ++i) {
    const u32 code = from.codes[i / 8] >> (4 * (i % 8));
    codes[i] = i8(e2m1_twice(code));
    sum += codes[i];
    any |= code & 7u;
  }
  reinterpret_cast<Int8Scale*>(to.scales)[row * to.blocks + block] =
      int8_scale(from.byte, sum, any == 0u);
}

/// Swaps the bits under `mask` with those `distance` above.
QT_FN u32 exchange_bits(u32 x, int distance, u32 mask) {
  const u32 differ = (x ^ (x >> distance)) & mask;
  return x ^ differ ^ (differ << distance);
}

/// A word of codes in order to the word of a panel, k and k + 4 in one byte; and back.
QT_FN u32 panel_word(u32 codes) {
  return exchange_bits(exchange_bits(codes, 8, 0x0000ff00u), 4, 0x00f000f0u);
}
QT_FN u32 word_of_panel(u32 codes) {
  return exchange_bits(exchange_bits(codes, 4, 0x00f000f0u), 8, 0x0000ff00u);
}

QT_FN void store_panel(const Destination& to, i64 row, i64 block, const PackedBlock& from) {
  const i64 at = panel_block(row / kPanelRows, block, to.blocks);
  const int c = int(row % kPanelRows);
  for (int w = 0; w < 4; ++w) {
    u8* codes = to.codes + at * kPanelCodes + panel_byte(c, 8 * w);
    const u32 word = panel_word(from.codes[w]);
    for (int i = 0; i < 4; ++i) codes[i] = u8(word >> (8 * i));
  }
  to.scales[at * kPanelScales + c] = u8(from.byte);
}

QT_FN void store_block(const Destination& to, i64 row, i64 block, const PackedBlock& from) {
  if (to.layout == Layout::int8_blocks)
    store_int8(to, row, block, from);
  else if (to.layout == Layout::panel16)
    store_panel(to, row, block, from);
  else
    store_plain(to, row, block, from);
}

/// Rows that must be written: a panel has 16 whatever the operand has.
QT_FN i64 stored_rows(Layout layout, i64 rows) {
  return layout == Layout::panel16 ? panels_of(rows) * kPanelRows : rows;
}

struct Copy {
  const u8* source;
  DType type;
  i64 row_step, k_step;  // elements of X from one row, or k, of the copy to the next
  i64 rows, k;           // true sizes
  Destination to;
  Noise noise;
  i64 row0, k0, k_global;  // this call's place in the whole copy, for the noise
};

/// What lies from a row and a k of a copy on, as a copy of its own that is written elsewhere.
QT_FN Copy part_of(const Copy& whole, i64 row, i64 k, const Destination& to) {
  const i64 first = row * whole.row_step + k * whole.k_step;
  return {whole.source + first * bytes_of(whole.type),
          whole.type,
          whole.row_step,
          whole.k_step,
          whole.rows - row,
          whole.k - k,
          to,
          whole.noise,
          whole.row0 + row,
          whole.k0 + k,
          whole.k_global};
}

/// Rows and blocks of a copy.
struct CopyRange {
  i64 row, row_end, block, block_end;
};

QT_FN i64 lesser(i64 a, i64 b) { return a < b ? a : b; }

QT_FN float load(const Copy& copy, i64 row, i64 k) {
  if (row >= copy.rows || k >= copy.k) return 0.0f;
  return load_element(copy.source, row * copy.row_step + k * copy.k_step, copy.type);
}

QT_FN u64 noise_position(const Copy& copy, i64 row, i64 k) {
  return qt::noise_position(row, k, copy.row0, copy.k0, copy.k_global);
}

}  // namespace cpu
}  // namespace qt

#endif
