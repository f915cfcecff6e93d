// D quantised by the kernel that computes it (gemm_quantize in one kernel): a tile's results wait
// in shared memory in binary32 until whole rotation segments of rows are there; then threads take a
// block of 32 each, and rotate, scale, round and store it by the quantisers' own text. So codes and
// scales are those of `quantize` over the same product's binary32 D, and no such D is in memory.
#ifndef QT_CUDA_QUANTIZED_ROWS_H
#define QT_CUDA_QUANTIZED_ROWS_H

#include "cuda/epilogue.h"
#include "cuda/quantize_store.h"

namespace qt::cuda {

/// What a product's Config says of quantising D, as quantisers read it.
template <class Config>
struct ResultConfig {
  static constexpr Output output = Config::result_layout;
  static constexpr int rotation = Config::rotation;
  static constexpr Signs signs = Config::signs;
  static constexpr ScaleRule scale_rule = Config::scale_rule;
  static constexpr Rounding rounding = Config::result_rounding;
  static constexpr Grouping grouping = Grouping::none;
  static constexpr Copies copies = Config::result_copies;
};

/// Columns of D that `columns` of z make.
template <Epilogue epilogue, class Int>
QT_FN constexpr Int result_columns(Int columns) {
  return is_gated(epilogue) ? columns / 2 : is_dswiglu(epilogue) ? columns * 2 : columns;
}

/// `height` rows of D's columns that `z_columns` neighbours of z make, in shared memory. They lie
/// beside each other in D, but for a split SwiGLU's derivative: first those of gates, then those of
/// values, n further on.
template <class Config, u32 height, u32 z_columns>
struct QuantizedRows {
  static constexpr Epilogue epilogue = Config::epilogue;
  static constexpr bool apart = epilogue == Epilogue::dswiglu;
  static constexpr u32 width = result_columns<epilogue>(z_columns);
  static constexpr u32 blocks = width / 32;  // of a row
  static constexpr u32 bytes = height * width * 4;
  static_assert((apart ? z_columns : width) % u32(padding_unit(Config::rotation)) == 0,
                "rotation segments lie in one tile");

  u32 at;     // in shared memory, a multiple of 16
  i64 first;  // column of D
  i64 n;      // of z

  /// `z_column`: the first column of z, or of a split SwiGLU the first output.
  QT_FN QuantizedRows(u32 place, i64 z_column, i64 z_width)
      : at(place),
        first(apart || epilogue == Epilogue::swiglu_split ? z_column
                                                          : result_columns<epilogue>(z_column)),
        n(z_width) {}

  /// `count` (1, 2 or 4) values of row `row` here, from D's column `column` on: a multiple of
  /// `count`, and inside D.
  template <int count>
  QT_FN void put(u32 row, i64 column, const float (&v)[count]) const {
    const u32 c = u32(column - first) + (apart && column >= n ? z_columns - u32(n) : 0u);
    const u32 to = piece_at(row, c / 4u) + c % 4u * 4u;
    if constexpr (count == 4) {
      store_shared_4(to, {{bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])}});
    } else if constexpr (count == 2) {
      store_shared_2(to, bits_of(v[0]), bits_of(v[1]));
    } else {
      store_shared_f32(to, v[0]);
    }
  }

  /// Quantises all rows, of which row r is `row_of`(r) of D's entry `entry`. `threads` threads,
  /// whole warps of which this is number `thread`, do it together, once all has been put.
  template <u32 threads, class RowOf>
  QT_FN void quantize(const qt_args& args, i64 entry, const RowOf& row_of, u32 thread) const {
    using Of = ResultConfig<Config>;
    constexpr int g = Config::rotation;
    const i64 columns = result_columns<epilogue>(n);
    const u32 blocks_of_row = u32(round_up(columns, padding_unit(g)) / 32);
    const SignMask mask = signs_of<Of>(args);
    const Noise noise = noise_of(args, args.operand, 0);
    const Copy to = copy_of<Of>(args.d, entry, args.m, blocks_of_row);
    const u32 lane = thread % 32u;
#pragma unroll 1
    for (u32 i = thread; i - lane < height * blocks; i += threads) {
      const u32 row = i / blocks, here = i % blocks;
      const i64 column = column_of(here), y = i < height * blocks ? row_of(row) : args.m;
      const u32 block = u32(column / 32);
      const bool exists = y < args.m && column < end_of(here, i64(blocks_of_row) * 32);
      if (warp_ballot(exists) == 0u) continue;
      float x[32];
      load(x, exists ? row : 0u, here, columns - column);
      u32 packed[4];
      const u32 byte =
          quantize_values<Of>(x, block_signs<g>(mask, block), lane, noise,
                              noise_position(y, column, args.row0, 0, columns), packed);
      if (exists) store_block<Of>(to, u32(y), block, blocks_of_row, packed, byte);
    }
  }

  /// The same of all columns, into the transposed copy, where it is asked for. Rows r - r % `along`
  /// to r - r % `along` + `along` - 1 are neighbours in D, from a multiple of 32 on.
  template <u32 threads, u32 along, class RowOf>
  QT_FN void quantize_columns(const qt_args& args, i64 entry, const RowOf& row_of,
                              u32 thread) const {
    using Of = ResultConfig<Config>;
    constexpr int g = Config::rotation;
    constexpr u32 down = g > 32 ? u32(g) / 32u : 1u;  // blocks of a segment, in lanes of a warp
    constexpr u32 across = 32u / down;                // columns of a warp
    static_assert(along % u32(padding_unit(g)) == 0 && height % along == 0,
                  "rotation segments lie in neighbouring rows");
    const i64 columns = result_columns<epilogue>(n), padded = column_length<Of>(args);
    const ColumnPlace place = column_place<Of>(args);
    const SignMask mask = signs_of<Of>(args);
    const Noise noise = noise_of(args, args.operand, 1);
    const Copy to =
        copy_of<Of>(Of::copies == Copies::both ? args.d2 : args.d, entry, columns, padded / 32);
    const u32 lane = thread % 32u;
#pragma unroll 1
    for (u32 warp = thread / 32u; warp < width / across * (height / 32u / down);
         warp += threads / 32u) {
      const u32 c = warp % (width / across) * across + lane % across;
      const u32 row = (warp / (width / across) * down + lane / across) * 32u;
      const i64 column = column_at(c), y = row_of(row);
      const bool exists = y < padded && column < end_of(c / 32u, columns);
      if (warp_ballot(exists) == 0u) continue;
      float x[32];
      QT_UNROLL
      for (u32 r = 0; r < 32u; ++r) {
        const float v = load_shared_f32(piece_at(row + r, c / 4u) + c % 4u * 4u);
        x[r] = y + r < args.m ? v : 0.0f;
      }
      const u32 block = u32(y / 32);
      const float largest = rotate_over_lanes<g, Of::signs != Signs::none>(
          x, block_signs<g>(mask, block), lane, across);
      u32 packed[4];
      const u32 byte = quantize_sums<Of::scale_rule, Of::rounding, g>(
          x, largest, noise, noise_position(column, y, place.row0, place.k0, place.k_global),
          packed);
      if (exists) store_block<Of>(to, u32(column), block, u32(padded / 32), packed, byte);
    }
  }

  /// Both of a block's, as asked for.
  template <u32 threads, u32 along, class RowOf>
  QT_FN void quantize_copies(const qt_args& args, i64 entry, const RowOf& row_of,
                             u32 thread) const {
    if constexpr (Config::result_copies != Copies::columns)
      quantize<threads>(args, entry, row_of, thread);
    if constexpr (Config::result_copies != Copies::rows)
      quantize_columns<threads, along>(args, entry, row_of, thread);
  }

 private:
  /// Where piece `piece` (four columns) of a row lies: neither threads that read a block each nor
  /// fragments of tensor cores meet many bank conflicts.
  QT_FN u32 piece_at(u32 row, u32 piece) const {
    const u32 block = row * blocks + piece / 8u;
    return at + block * 128u + ((piece ^ (block + block / 8u * 2u)) & 7u) * 16u;
  }
  /// The column of D that column `c` here is, and the first one of block `here` of a row.
  QT_FN i64 column_at(u32 c) const {
    return first + c + (apart && c >= z_columns ? n - z_columns : 0);
  }
  QT_FN i64 column_of(u32 here) const { return column_at(here * 32u); }
  /// Where D's columns like those of block `here` end, `end` being D's own, with its padding.
  QT_FN i64 end_of(u32 here, i64 end) const { return apart && here * 32u < z_columns ? n : end; }
  /// Columns from `rest` on are padding: zeros.
  QT_FN void load(float (&x)[32], u32 row, u32 here, i64 rest) const {
    QT_UNROLL
    for (u32 piece = 0; piece < 8u; ++piece) {
      const Words4 v = load_shared_4(piece_at(row, here * 8u + piece));
      QT_UNROLL
      for (u32 e = 0; e < 4u; ++e) {
        const u32 j = piece * 4u + e;
        x[j] = i64(j) < rest ? float_of(v.word[e]) : 0.0f;
      }
    }
  }
};

}  // namespace qt::cuda

#endif
