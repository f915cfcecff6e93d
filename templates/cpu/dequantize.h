// MXFP4 to high precision: code value times 2^(byte - 127), NaN under byte 255. Nothing is rotated
// back, and TS34's 4/3 is left to whoever multiplies.
#ifndef QT_CPU_DEQUANTIZE_H
#define QT_CPU_DEQUANTIZE_H

#include "args.h"
#include "cpu/lane_rows.h"
#include "cpu/packed_source.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/quantize_parts.h"
#include "mxfp4/block.h"

namespace qt {
namespace cpu {

/// What an emitted Config states as constants, as ordinary members: one kernel for every mode.
template <class IsaType>
struct DequantizeConfig {
  using Isa = IsaType;
  i64 m = 0, k = 0;  // 0: given at run time
  int k_unit = 32;   // the operand's k is padded to a multiple
  Layout a_layout = Layout::plain;
  DType d_type = DType::bf16;
  int tile_m = 32, tile_k = 4096;  // a part's share
};

/// Elements of D that are columns [32 * block, ...) of a row, at most 32.
template <class Config>
QT_FN void dequantize_block(const Config& config, const PackedSource& from, i64 row, i64 block,
                            u8* to, i64 count) {
  const PackedBlock codes = load_block(from, row, block);
  float x[kBlock];
  for (int j = 0; j < kBlock; ++j)
    x[j] = qt::dequantize((codes.codes[j / 8] >> (4 * (j % 8))) & 15u, codes.byte);
  store_some(to, config.d_type, x, count);
}

template <class Isa>
QT_CPU_INLINE void dequantize_lanes(typename Isa::U byte, const typename Isa::U (&words)[4],
                                    typename Isa::F (&x)[kBlock]) {
  const auto is_zero = Isa::below(byte, Isa::splat(1u));  // 2^-127 is a subnormal
  const auto nan = Isa::below(Isa::splat(254u), byte);
  const auto finite = Isa::merge(Isa::template left<23>(byte), is_zero, Isa::splat(0x400000u));
  const auto scale = Isa::floats(Isa::select(nan, Isa::splat(0x7fc00000u), finite));
  QT_CPU_UNROLL
  for (int w = 0; w < 4; ++w) {
    typename Isa::U rest = words[w];
    QT_CPU_UNROLL
    for (int e = 0; e < 8; ++e) {
      x[8 * w + e] = Isa::mul(Isa::values(Isa::both(rest, Isa::splat(15u))), scale);
      rest = Isa::template right<4>(rest);
    }
  }
}

template <class Config>
QT_CPU_NOINLINE void dequantize_range(const Config& config, const PackedSource& from, i64 k, u8* to,
                                      i64 pitch, const CopyRange& range) {
  using Isa = typename Config::Isa;
  const i64 bytes = bytes_of(config.d_type);
  // Lanes are rows of a panel, or blocks of a row.
  const bool down = config.a_layout == Layout::panel16;
  const i64 rows = down ? Isa::lanes : 1, blocks = down ? 1 : Isa::lanes;
  for (i64 row = range.row; row < range.row_end; row += rows)
    for (i64 block = range.block; block < range.block_end; block += blocks) {
      const i64 row_end = lesser(row + rows, range.row_end);
      const i64 block_end = lesser(block + blocks, range.block_end);
      if (row + rows == row_end && block + blocks == block_end && block_end * kBlock <= k) {
        typename Isa::U byte, words[4];
        typename Isa::F x[kBlock];
        u8* at[Isa::lanes];
        for (i64 i = 0; i < Isa::lanes; ++i)
          at[i] = to + (row + (down ? i : 0)) * pitch + (block + (down ? 0 : i)) * kBlock * bytes;
        load_lanes<Isa>(from, row, block, down, !down, byte, words);
        dequantize_lanes<Isa>(byte, words, x);
        store_rows<Isa>(at, config.d_type, x);
      } else {
        for (i64 i = row; i < row_end; ++i)
          for (i64 j = block; j < block_end; ++j)
            dequantize_block(config, from, i, j, to + i * pitch + j * kBlock * bytes,
                             lesser(k - j * kBlock, kBlock));
      }
    }
}

/// Parts: batch entries, in each of them tiles of D [m, k], along k first.
template <class Config>
QT_FN void dequantize(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 k = config.k ? config.k : args->k;
  const QuantizeParts parts =
      QuantizeParts::of(m, k, config.k_unit, true, false, false, config.tile_m, config.tile_k);
  const i64 batch = part / parts.per_entry();
  const i64 tiles_k = QuantizeParts::tiles(parts.k, parts.tile_k);
  const i64 row = part % parts.per_entry() / tiles_k * parts.tile_m;
  const i64 block = part % parts.per_entry() % tiles_k * parts.tile_k / kBlock;
  const i64 bytes = bytes_of(config.d_type);
  dequantize_range(config, packed_source(args->a, config.a_layout, batch, m, parts.k / kBlock), k,
                   static_cast<u8*>(args->d.data) + batch * args->d.batch_stride * bytes,
                   args->d.ld * bytes,
                   {row, lesser(row + parts.tile_m, m), block,
                    lesser(block + parts.tile_k / kBlock, (k + kBlock - 1) / kBlock)});
}

}  // namespace cpu
}  // namespace qt

#endif
