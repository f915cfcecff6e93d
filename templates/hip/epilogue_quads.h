// Epilogue of AMD's matrix cores: where weights are the instruction's first operand, a lane's sums
// come in quads of four neighbouring columns of one row of D.
#ifndef QT_HIP_EPILOGUE_QUADS_H
#define QT_HIP_EPILOGUE_QUADS_H

#include "args.h"
#include "cuda/epilogue.h"
#include "cuda/tile_walk.h"
#include "hip/primitives.h"

namespace qt::hip {

using namespace qt::cuda;

/// z from a product's sum and what C and bias are there.
template <class Config>
QT_FN float z_of(const qt_args& args, float sum, float c, float bias) {
  float z = mul(mul(args.alpha, Config::descale), sum);
  if constexpr (Config::accumulate)
    if (args.beta != 0.0f) z += mul(args.beta, c);
  if constexpr (Config::bias) z += bias;
  return z;
}

/// The same, C and bias being read for it.
template <class Config>
QT_FN float z_at(const qt_args& args, const Product& p, i64 row, i64 column, float sum) {
  float c = 0.0f, bias = 0.0f;
  if constexpr (Config::accumulate)
    if (args.beta != 0.0f)
      c = element<Config::side>(args.c.data, place_of(args.c, p.d, row, column));
  if constexpr (Config::bias)
    bias = element<Config::side>(args.bias, bias_place<Config::grouping>(p, args.n) + column);
  return z_of<Config>(args, sum, c, bias);
}

/// Whether elements 4i of a matrix's rows begin at multiples of four elements' bytes.
template <DType type>
QT_FN bool has_wide_quads(const void* data, i64 ld, i64 batch_stride) {
  constexpr u64 bytes = u64(bytes_of(type));
  return ((u64(data) | u64(ld) * bytes | u64(batch_stride) * bytes) & (4u * bytes - 1u)) == 0u;
}

/// Four neighbours from column `column` on of a row with `n` columns that begins at `at`; those
/// behind the last one are as that.
template <DType type>
QT_FN void load_quad(const void* base, i64 at, i64 column, i64 n, bool wide, float (&x)[4]) {
  if (wide && column + 4 <= n) {
    load_four<type>(static_cast<const u8*>(base) + (at + column) * bytes_of(type), x);
    return;
  }
  QT_UNROLL
  for (int e = 0; e < 4; ++e)
    x[e] = element<type>(base, at + (column + e < n ? column + e : n - 1));
}

/// C and bias under one quad of columns in each of a lane's rows, all read before D, which may be
/// C, is written. Rows behind the last one are as that.
template <class Config, int rows>
struct Addends {
  float c[rows][4], bias[4];

  QT_FN Addends(const qt_args& args, const Product& p, i64 first_row, i64 row_step, i64 column) {
    if constexpr (Config::bias) {
      const i64 at = bias_place<Config::grouping>(p, args.n);
      load_quad<Config::side>(args.bias, at, column, args.n,
                              has_wide_quads<Config::side>(args.bias, at, 0), bias);
    }
    if constexpr (Config::accumulate) {
      if (args.beta == 0.0f) return;
      const bool wide = has_wide_quads<Config::side>(args.c.data, args.c.ld, args.c.batch_stride);
      QT_UNROLL
      for (int i = 0; i < rows; ++i) {
        const i64 row = first_row + i * row_step;
        load_quad<Config::side>(args.c.data,
                                place_of(args.c, p.d, row < p.end ? row : p.end - 1, 0), column,
                                args.n, wide, c[i]);
      }
    }
  }
  QT_FN float z(const qt_args& args, int row, int e, float sum) const {
    return z_of<Config>(args, sum, Config::accumulate ? c[row][e] : 0.0f,
                        Config::bias ? bias[e] : 0.0f);
  }
};

/// Where a wave's results go: into D in memory.
template <class Config>
struct QuadsIntoD {
  const qt_args& args;
  const Product& p;
  bool wide;

  QT_FN QuadsIntoD(const qt_args& call, const Product& product)
      : args(call),
        p(product),
        wide(has_wide_quads<Config::output>(call.d.data, call.d.ld, call.d.batch_stride)) {}

  /// What takes the elements of row `row`, which is this lane's i'th.
  QT_FN IntoD<Config> elements(const Destination& d, int, i64 row) const { return {args, d, row}; }
  /// Four neighbours at once, where nothing is done to z; false where they go one by one.
  QT_FN bool quad(int, i64 row, i64 column, const float (&z)[4]) const {
    if (!wide || column + 4 > args.n) return false;
    u8* const to = static_cast<u8*>(args.d.data) +
                   place_of(args.d, p.d, row, column) * bytes_of(Config::output);
    if constexpr (Config::output == DType::f32) {
      store_global(reinterpret_cast<Words4*>(to),
                   {{bits_of(z[0]), bits_of(z[1]), bits_of(z[2]), bits_of(z[3])}});
    } else {
      store_global(reinterpret_cast<Words2*>(to), {{pack_pair<Config::output>(z[0], z[1]),
                                                    pack_pair<Config::output>(z[2], z[3])}});
    }
    return true;
  }
};

/// Four neighbours of a row of D, which is this lane's i'th, from `column` on, as far as they
/// exist.
template <class Config, class Quads>
QT_FN void store_quad(const qt_args& args, const Product& p, const Quads& to, int i, i64 row,
                      i64 column, const float (&z)[4]) {
  if constexpr (Config::epilogue == Epilogue::none && !Config::keeps_z)
    if (to.quad(i, row, column, z)) return;
  const Destination d = {p.d, p.end, args.n};
  QT_UNROLL
  for (int e = 0; e < 4; ++e)
    if (column + e < args.n)
      finish_element<Config>(args, d, row, column + e, z[e], to.elements(d, i, row));
}

/// Four outputs of a SwiGLU, as far as they exist.
template <class Config, class Quads>
QT_FN void store_outputs(const qt_args& args, const Product& p, const Quads& to, int i, i64 row,
                         i64 output, const float* gates, const float* values) {
  const Destination d = {p.d, p.end, args.n};
  QT_UNROLL
  for (int e = 0; e < 4; ++e) {
    if (output + e >= args.n / 2) continue;
    const i64 gate_at = gate_column<Config::epilogue>(output + e);
    const i64 value_at = value_column<Config::epilogue>(output + e, args.n);
    finish_pair<Config>(args, d, row, output + e, z_at<Config>(args, p, row, gate_at, gates[e]),
                        z_at<Config>(args, p, row, value_at, values[e]), to.elements(d, i, row));
  }
}

/// Of everything that a wave has of D, tiles_n x tiles_m of the instruction's tiles, `some` rows of
/// tiles from `first_tile` on. Columns begin at `first_n` of the block's tile; rows lie T::size
/// apart, this lane's i'th at `first_row` + i T::size. T::first_of: the first column of a lane's
/// quad in an instruction's tile.
template <class Config, class T, int first_tile, int some, int tiles_n, int tiles_m, int count,
          class Columns, class Quads>
QT_FN void finish_wave(const qt_args& args, const Product& p, const Columns& columns, i64 column0,
                       u32 first_n, i64 first_row, u32 lane,
                       const float (&sums)[tiles_n][tiles_m][count], const Quads& to) {
  constexpr bool paired = Columns::paired;
  QT_UNROLL
  for (int j = 0; j < (paired ? tiles_n / 2 : tiles_n); ++j) {
    QT_UNROLL
    for (u32 quad = 0; quad < u32(count) / 4u; ++quad) {
      const u32 in_block = first_n + u32(j) * T::size + T::first_of(quad, lane);
      if constexpr (paired) {
        QT_UNROLL
        for (int i = 0; i < some; ++i) {
          const i64 row = first_row + (first_tile + i) * i64(T::size);
          if (row < p.end)
            store_outputs<Config>(args, p, to, i, row, columns.output(in_block),
                                  &sums[j][first_tile + i][4 * quad],
                                  &sums[j + tiles_n / 2][first_tile + i][4 * quad]);
        }
      } else {
        const i64 column = column0 + in_block;
        const Addends<Config, some> addends(args, p, first_row + first_tile * i64(T::size), T::size,
                                            column);
        QT_UNROLL
        for (int i = 0; i < some; ++i) {
          const i64 row = first_row + (first_tile + i) * i64(T::size);
          if (row >= p.end) continue;
          float z[4];
          QT_UNROLL
          for (int e = 0; e < 4; ++e)
            z[e] = addends.z(args, i, e, sums[j][first_tile + i][4 * quad + e]);
          store_quad<Config>(args, p, to, i, row, column, z);
        }
      }
    }
  }
}

/// All of it to memory.
template <class Config, class T, int tiles_n, int tiles_m, int count, class Columns>
QT_FN void store_wave(const qt_args& args, const Product& p, const Columns& columns, i64 column0,
                      u32 first_n, i64 first_row, u32 lane,
                      const float (&sums)[tiles_n][tiles_m][count]) {
  finish_wave<Config, T, 0, tiles_m>(args, p, columns, column0, first_n, first_row, lane, sums,
                                     QuadsIntoD<Config>(args, p));
}

}  // namespace qt::hip

#endif
