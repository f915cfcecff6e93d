// Layout aiter_16x16: scales as aiter's (scales_32x8.h), codes in panels of 16 rows as aiter's
// shuffle_weight(w, (16, 16)) orders them: for every block of K the 16 bytes of each row, so that
// 16 rows of a block lie beside each other. Rows are padded to 16 with codes of zero.
#ifndef QT_HIP_CODES_16X16_H
#define QT_HIP_CODES_16X16_H

#include "mxfp4/platform.h"

namespace qt::hip {

/// Bytes from one block of a row to the next.
[[maybe_unused]] constexpr u32 kPanelBlock = 256;

/// Byte of block `block` of row `row`, rows having `blocks`.
QT_FN i64 place_16x16(i64 row, i64 block, i64 blocks) {
  return (row / 16 * blocks + block) * i64(kPanelBlock) + row % 16 * 16;
}

}  // namespace qt::hip

#endif
