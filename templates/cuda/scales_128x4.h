// Layout scales_128x4: codes as plain's, tightly packed; scale bytes in tiles of 128 rows by 4
// blocks (512 bytes), in the order in which Blackwell's tensor cores take them. Tiles along K
// first. Bytes of a row's blocks behind its last one, up to its last tile's end, are 0, so that no
// NaN meets padding; rows that only fill a tile may hold anything.
#ifndef QT_CUDA_SCALES_128X4_H
#define QT_CUDA_SCALES_128X4_H

#include "cuda/expand.h"
#include "groups.h"

namespace qt::cuda {

/// Bytes of a tile.
constexpr i64 kScaleTile = 512;

/// Byte of block `block` of row `row`, `tiles` tiles along K.
QT_FN i64 place_128x4(i64 row, i64 block, i64 tiles) {
  return ((row / 128) * tiles + block / 4) * kScaleTile + (row % 32) * 16 + row / 32 % 4 * 4 +
         block % 4;
}

/// Byte `byte` of block `block` of a row's `blocks`, and zeros behind the last one.
QT_FN void store_scale_128x4(u8* scales, i64 row, u32 block, u32 blocks, u32 byte) {
  const i64 tiles = ceil_div(blocks, 4);
  scales[place_128x4(row, block, tiles)] = u8(byte);
  if (block + 1u == blocks)
    for (u32 behind = blocks; behind < u32(tiles) * 4u; ++behind)
      scales[place_128x4(row, behind, tiles)] = 0;
}

/// Elements of a row of an operand that is quantised along `k`, with its padding.
template <class Config>
QT_FN i64 packed_length(const qt_args& args, i64 k) {
  if constexpr (Config::grouping == Grouping::k_grouped)
    return grouped_length(k, args.groups, Config::k_unit);
  return round_up(k, Config::k_unit);
}

}  // namespace qt::cuda

#endif
