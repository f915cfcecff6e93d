// Layout aiter: codes as plain's, tightly packed; scale bytes in tiles of 32 rows by 8 blocks (256
// bytes), tiles along K first, as aiter's e8m0_shuffle and hipBLASLt's 32_8 mode for gfx950 order
// them: a word holds the bytes of two rows 16 apart in two blocks 4 apart. Bytes of a row's blocks
// behind its last one, up to its last tile's end, are 0; rows that only fill a tile may hold
// anything.
#ifndef QT_HIP_SCALES_32X8_H
#define QT_HIP_SCALES_32X8_H

#include "mxfp4/platform.h"

namespace qt::hip {

/// Bytes of a tile.
[[maybe_unused]] constexpr u32 kScaleTile = 256;

/// Byte of a tile's row (below 32) and block (below 8).
QT_FN constexpr u32 place_in_tile(u32 row, u32 block) {
  return block % 4u * 64u + row % 16u * 4u + block / 4u * 2u + row / 16u;
}

/// Byte of block `block` of row `row`, `tiles` tiles along K.
QT_FN i64 place_32x8(i64 row, i64 block, i64 tiles) {
  return (row / 32 * tiles + block / 8) * kScaleTile + place_in_tile(u32(row % 32), u32(block % 8));
}

/// Byte `byte` of block `block` of a row's `blocks`, and zeros behind the last one.
QT_FN void store_scale_32x8(u8* scales, i64 row, u32 block, u32 blocks, u32 byte) {
  const i64 tiles = (blocks + 7u) / 8u;
  scales[place_32x8(row, block, tiles)] = u8(byte);
  if (block + 1u == blocks)
    for (u32 behind = blocks; behind < u32(tiles) * 8u; ++behind)
      scales[place_32x8(row, behind, tiles)] = 0;
}

}  // namespace qt::hip

#endif
