// How products of sm_90 and sm_100 are told of a tile in shared memory: 64 bits by the tables of
// PTX ISA 9.7.15 (wgmma) and 9.7.16 (tcgen05). Arithmetic alone, so that what is simulated is read
// from the very words that the hardware gets.
#ifndef QT_CUDA_TILE_DESCRIPTORS_H
#define QT_CUDA_TILE_DESCRIPTORS_H

#include "mxfp4/types.h"

namespace qt::cuda {

/// Of wgmma: rows of 128 bytes along K under the 128-byte swizzle, at a multiple of 1024 bytes. The
/// next 32 bytes of K are at +2, the next 64 rows at +512.
QT_FN u64 wgmma_tile(u32 at) {
  return (u64(1) << 62) | (u64(64) << 32) | (u64(1) << 16) | u64((at & 0x3ffffu) >> 4);
}

/// Of tcgen05: rows of 128 bytes (256 codes) along K under the 128-byte swizzle, at a multiple of
/// 1024. The next 64 of K are at +2.
QT_FN u64 mxf4_tile(u32 at) {
  return (u64(2) << 61) | (u64(1) << 46) | (u64(1024 / 16) << 32) | (u64(1) << 16) |
         u64((at & 0x3ffffu) >> 4);
}

/// 512 bytes of scales of layout scales_128x4.
QT_FN u64 scale_tile(u32 at) {
  return (u64(1) << 46) | (u64(128 / 16) << 32) | u64((at & 0x3ffffu) >> 4);
}

}  // namespace qt::cuda

#endif
