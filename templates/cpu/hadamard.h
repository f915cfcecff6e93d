// The rotation alone: X [m, k] to D [m, k], each of X's segments of g elements rotated.
#ifndef QT_CPU_HADAMARD_H
#define QT_CPU_HADAMARD_H

#include "args.h"
#include "cpu/lane_rows.h"
#include "cpu/primitives_float_mode.h"
#include "cpu/quantize_parts.h"
#include "cpu/quantize_sources.h"

namespace qt {
namespace cpu {

/// What an emitted Config states as constants, as ordinary members: one kernel for every mode.
template <class IsaType>
struct HadamardConfig {
  using Isa = IsaType;
  i64 m = 0, k = 0;  // 0: given at run time
  DType a_type = DType::bf16, d_type = DType::bf16;
  int rotation = 32;
  Signs signs = Signs::none;
  int tile_m = 32, tile_k = 4096;  // X's share of one part
};

/// A segment of max(32, g) elements in each lane.
template <class Isa, int g, class Config>
QT_CPU_INLINE void hadamard_group(const Config& config, const SignFlips& flips,
                                  const AcrossSource<Isa>& source, u8* const (&to)[Isa::lanes]) {
  constexpr int blocks = segment_size(g) / kBlock;
  const auto norm = Isa::splat_float(hadamard_norm(g));
  alignas(64) float waiting[blocks][kBlock][Isa::lanes];
  for (int b = 0; b < blocks; ++b) {
    typename Isa::F x[kBlock];
    begin_lanes<Isa, g>(config, flips, source, b, x);
    QT_CPU_UNROLL
    for (int j = 0; j < kBlock; ++j) Isa::store(waiting[b][j], x[j]);
  }
  if constexpr (blocks > 1) rotate_blocks<Isa, g>(waiting);
  for (int b = 0; b < blocks; ++b) {
    typename Isa::F x[kBlock];
    QT_CPU_UNROLL
    for (int j = 0; j < kBlock; ++j) x[j] = Isa::mul(Isa::load(waiting[b][j]), norm);
    u8* at[Isa::lanes];
    for (int i = 0; i < Isa::lanes; ++i) at[i] = to[i] + b * kBlock * bytes_of(config.d_type);
    store_rows<Isa>(at, config.d_type, x);
  }
}

/// Rows [row, row_end) and columns [k, k_end) of one batch entry, whole segments.
struct HadamardRange {
  const u8* from;
  u8* to;
  i64 from_pitch, to_pitch;  // bytes
  i64 row, row_end, k, k_end;
};

template <int g, class Config>
QT_CPU_NOINLINE void hadamard_range(const Config& config, const SignMask& mask,
                                    const HadamardRange& range) {
  using Isa = typename Config::Isa;
  constexpr int n = segment_size(g);
  const SignFlips flips = sign_flips(mask, g);
  const i64 from_bytes = bytes_of(config.a_type), to_bytes = bytes_of(config.d_type);
  AcrossSource<Isa> source;
  source.type = config.a_type;
  u8* to[Isa::lanes];
  i64 row = range.row, k = range.k;
  while (row < range.row_end) {
    for (int i = 0; i < Isa::lanes; ++i) {
      const bool real = row < range.row_end;  // spare lanes repeat the first
      source.from[i] = real ? range.from + row * range.from_pitch + k * from_bytes : source.from[0];
      to[i] = real ? range.to + row * range.to_pitch + k * to_bytes : to[0];
      if ((k += n) == range.k_end) {
        k = range.k;
        ++row;
      }
    }
    hadamard_group<Isa, g>(config, flips, source, to);
  }
}

/// Parts: batch entries, in each of them tiles of X, along k first. D may be X itself.
template <class Config>
QT_FN void hadamard(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 k = config.k ? config.k : args->k;
  const QuantizeParts parts = QuantizeParts::of(m, k, segment_size(config.rotation), true, false,
                                                false, config.tile_m, config.tile_k);
  const i64 batch = part / parts.per_entry();
  const i64 tiles_k = QuantizeParts::tiles(parts.k, parts.tile_k);
  const i64 row = part % parts.per_entry() / tiles_k * parts.tile_m;
  const i64 column = part % parts.per_entry() % tiles_k * parts.tile_k;
  const i64 from = bytes_of(config.a_type), to = bytes_of(config.d_type);
  const HadamardRange range = {
      static_cast<const u8*>(args->a.data) + batch * args->a.batch_stride * from,
      static_cast<u8*>(args->d.data) + batch * args->d.batch_stride * to,
      args->a.ld * from,
      args->d.ld * to,
      row,
      lesser(row + parts.tile_m, m),
      column,
      lesser(column + parts.tile_k, k)};
  const SignMask mask = sign_mask(config, args);
  switch (config.rotation) {
    case 16:
      return hadamard_range<16>(config, mask, range);
    case 32:
      return hadamard_range<32>(config, mask, range);
    case 64:
      return hadamard_range<64>(config, mask, range);
    case 128:
      return hadamard_range<128>(config, mask, range);
    case 256:
      return hadamard_range<256>(config, mask, range);
    default:
      return;
  }
}

}  // namespace cpu
}  // namespace qt

#endif
