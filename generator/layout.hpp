// How the codes and scales of an MXFP4 operand [rows, K] lie in memory, and how many bytes they
// take.
//
//   plain        codes [rows, K/2], low nibble = even element; scales [rows, K/32], a byte a block
//   128x4        codes as plain; scales in the 128 x 4 tiles that Blackwell's tensor cores read, 0
//                behind a row's last block (templates/cuda/scales_128x4.h)
//   aiter        codes as plain; scales in the 32 x 8 tiles of aiter and hipBLASLt on gfx950, zeros
//                behind a row's last block (templates/hip/scales_32x8.h)
//   aiter_16x16  scales as aiter's; codes as aiter's shuffle_weight(w, (16, 16)) orders them:
//   panels of
//                16 rows, in each for every block of K the rows' 16 bytes behind each other; a last
//                panel is filled with zeros (gfx950 weights; templates/hip/codes_16x16.h)
//   e5m2         one FP8 E5M2 byte an element, relative to the row's reference exponent, which is
//                the one scale byte of a row; K padded to 128 (Hopper; templates/cuda/expand.h)
//   int8_rows    the same with one int8 an element, 2q shifted by the block's exponent
//   int8_blocks  one int8 an element, 2q; for each block 8 bytes: its scale as fp32 and a
//                correction of the dot product (CPU A operand; templates/cpu/layouts.h)
//   panel16      panels of 16 rows; for each block of K 256 bytes of codes in the order in which a
//                dot product by fours takes them, and in the scales array 16 bytes (CPU weights)
//   permuted     packed 4-bit codes in the order in which Hopper's tensor cores take them from
//                registers, rows padded to 64 and K to 128 (weights; templates/cuda/permuted.h)
//   bf16         one bf16 an element, an eighth of its value, so that every scale byte but 255
//   (NaN)
//                is held exactly; K padded as plain's; no scales (Hopper; templates/cuda/bf16.h)
//
// Layouts other than plain are always tightly packed: kernels do not read qt_tensor's ld there.
// A batch stride still counts elements (and scales: bytes, or the 8-byte records of int8_blocks).
#pragma once

#include <cstdint>

#include "generator/enums.hpp"

namespace quarterturn {

struct OperandBytes {
  std::int64_t codes = 0;   ///< bytes behind qt_tensor::data
  std::int64_t scales = 0;  ///< bytes behind qt_tensor::scales
};

/// Bytes of an operand of `rows` x `k` elements; k is padded to 32 (and to `padding` where that is
/// larger).
OperandBytes operand_bytes(Layout layout, std::int64_t rows, std::int64_t k,
                           std::int64_t padding = 32);

/// What an element of `codes` takes; a batch stride counts elements.
std::int64_t bits_per_element(Layout layout);

/// Bytes from one row (or panel of rows, for panel layouts) of codes to the next when tightly
/// packed.
std::int64_t packed_stride(Layout layout, std::int64_t k);

}  // namespace quarterturn
