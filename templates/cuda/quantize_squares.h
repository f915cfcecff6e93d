// Square scale blocks: one scale for 32 rows and 32 columns of X, which its row-wise and its
// column-wise copy share. Without rotation.
//
// A warp owns a square: lane = row for the row-wise copy; for the column-wise one its values go
// through shared memory, and lane = column.
#ifndef QT_CUDA_QUANTIZE_SQUARES_H
#define QT_CUDA_QUANTIZE_SQUARES_H

#include "cuda/quantize_store.h"

namespace qt::cuda {

/// Codes of 32 values of a square whose largest magnitude is `largest`; returns its byte.
template <class Config>
QT_FN u32 quantize_in_square(float (&x)[32], float largest, const Noise& noise, u64 position,
                             u32 (&packed)[4]) {
  static_assert(is_amax_rule(Config::scale_rule), "a square has one magnitude, not 32 values");
  if constexpr (has_fast_encoding(Config::rounding)) {
    return quantize_sums<Config::scale_rule, Config::rounding, 0>(x, largest, noise, position,
                                                                  packed);
  } else {
    const u32 byte = scale_byte_of_amax<Config::scale_rule>(bits_of(largest));
    encode_block<Config::scale_rule, Config::rounding>(x, bits_of(largest), byte, noise, position,
                                                       packed);
    return byte;
  }
}

/// Warps take squares along K, then down.
template <class Config>
QT_FN void quantize_squares(const Config&, const qt_args& args) {
  constexpr bool by_rows = Config::copies != Copies::columns;
  constexpr bool by_columns = Config::copies != Copies::rows;
  constexpr u32 pitch = 33 * 4;  // of a row of a square in shared memory
  const i64 batch = block_index_z();
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const u32 across = u32(ceil_div(k, 32)), down = u32(ceil_div(args.m, 32));
  const u32 lane = lane_index(), warp = warp_index();
  const u64 square = u64(block_index()) * (Config::threads / 32u) + warp;
  if (square >= u64(across) * down) return;
  const u32 y = u32(square / across), x_block = u32(square - u64(y) * across);
  const u32 row = y * 32u + lane;

  const u8* source =
      static_cast<const u8*>(args.a.data) + batch * args.a.batch_stride * bytes_of(Config::input);
  const i64 rest = row < rows_of_entry<Config>(args, batch) ? k - i64(x_block) * 32 : 0;
  Raw<Config::input> raw;
  load_block<Config::input>(raw, source, rest > 0 ? i64(row) * args.a.ld + i64(x_block) * 32 : 0,
                            rest < 32 ? int(rest) : 32,
                            is_aligned<Config::input>(source, args.a.ld));
  float x[32];
  QT_UNROLL
  for (int j = 0; j < 32; ++j) x[j] = raw.value(j);
  float largest = amax_of(x);
  QT_UNROLL
  for (u32 step = 1; step < 32u; step *= 2u)
    largest = max_or_nan(largest, shuffle_xor(largest, step));

  const u32 place = shared_base() + warp * 32u * pitch;
  if constexpr (by_columns) {
    QT_UNROLL
    for (u32 j = 0; j < 32u; ++j) store_shared_f32(place + lane * pitch + j * 4u, x[j]);
  }
  if constexpr (by_rows) {
    const Noise noise = noise_of(args, args.operand, 0);
    u32 packed[4];
    const u32 byte = quantize_in_square<Config>(
        x, largest, noise,
        noise_position(row, i64(x_block) * 32, row0_of_entry<Config>(args, batch), args.k0,
                       args.k_global > 0 ? args.k_global : k),
        packed);
    if (row < args.m)
      store_block<Config>(copy_of<Config>(args.d, batch, args.m, across), row, x_block, across,
                          packed, byte);
  }
  if constexpr (by_columns) {
    sync_warp();
    QT_UNROLL
    for (u32 j = 0; j < 32u; ++j) x[j] = load_shared_f32(place + j * pitch + lane * 4u);
    const u32 column = x_block * 32u + lane;
    const ColumnPlace at = column_place<Config>(args);
    const Noise noise = noise_of(args, args.operand, 1);
    u32 packed[4];
    const u32 byte = quantize_in_square<Config>(
        x, largest, noise, noise_position(column, i64(y) * 32, at.row0, at.k0, at.k_global),
        packed);
    if (column < k)
      store_block<Config>(copy_of<Config>(by_rows ? args.d2 : args.d, batch, k, down), column, y,
                          down, packed, byte);
  }
}

}  // namespace qt::cuda

#endif
