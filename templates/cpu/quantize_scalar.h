// Quantising by the defining text of mxfp4/, one segment or 32x32 tile at a time: every mode, any
// size. What vectors do not do goes through here.
#ifndef QT_CPU_QUANTIZE_SCALAR_H
#define QT_CPU_QUANTIZE_SCALAR_H

#include "cpu/copy.h"
#include "cpu/modes.h"
#include "cpu/primitives_portable.h"

namespace qt {
namespace cpu {

/// One block of rotated values, to memory.
template <class Config>
QT_CPU_NOINLINE void finish_block(const Config& config, const Copy& copy, i64 row, i64 block,
                                  const float (&x)[kBlock]) {
  const u32 amax = amax_bits(x);
  PackedBlock out;
  out.byte = block_byte(config, x, amax);
  block_codes(config, x, amax, out.byte, copy.noise, noise_position(copy, row, block * kBlock),
              out.codes);
  store_block(copy.to, row, block, out);
}

template <int g, class Config>
QT_FN void quantize_segment_as(const Config& config, const Copy& copy, const SignMask& mask,
                               i64 row, i64 segment) {
  constexpr int n = segment_size(g);
  float x[n];
  for (int j = 0; j < n; ++j) x[j] = load(copy, row, segment * n + j);
  rotate_as<g>(config, x, mask);
  for (int b = 0; b < n / kBlock; ++b) {
    float y[kBlock];
    for (int j = 0; j < kBlock; ++j) y[j] = x[b * kBlock + j];
    finish_block(config, copy, row, segment * (n / kBlock) + b, y);
  }
}

/// Segment `segment`, of max(32, g) elements, of a row; rows beyond the operand are zeros.
template <class Config>
QT_CPU_NOINLINE void quantize_segment(const Config& config, const Copy& copy, const SignMask& mask,
                                      i64 row, i64 segment) {
  switch (config.rotation) {
    case 16:
      return quantize_segment_as<16>(config, copy, mask, row, segment);
    case 32:
      return quantize_segment_as<32>(config, copy, mask, row, segment);
    case 64:
      return quantize_segment_as<64>(config, copy, mask, row, segment);
    case 128:
      return quantize_segment_as<128>(config, copy, mask, row, segment);
    case 256:
      return quantize_segment_as<256>(config, copy, mask, row, segment);
    default:
      return quantize_segment_as<0>(config, copy, mask, row, segment);
  }
}

/// The 32x32 tile from `row` and block `block` on: one byte for the tile, stored for each row.
template <class Config>
QT_CPU_NOINLINE void quantize_square(const Config& config, const Copy& copy, i64 row, i64 block) {
  float x[kBlock][kBlock];
  u32 amax = 0;
  for (int i = 0; i < kBlock; ++i) {
    for (int j = 0; j < kBlock; ++j) x[i][j] = load(copy, row + i, block * kBlock + j);
    amax = max_u32(amax, amax_bits(x[i]));
  }
  // All rules of tiles look at amax alone.
  const u32 byte = block_byte(config, x[0], amax);
  const i64 stored = stored_rows(copy.to.layout, copy.rows);
  for (int i = 0; i < kBlock && row + i < stored; ++i) {
    PackedBlock out = {byte, {}};
    if (row + i < copy.rows)
      block_codes(config, x[i], amax, byte, copy.noise,
                  noise_position(copy, row + i, block * kBlock), out.codes);
    else
      out.byte = 0u;
    store_block(copy.to, row + i, block, out);
  }
}

}  // namespace cpu
}  // namespace qt

#endif
