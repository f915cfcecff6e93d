// A warp's finished sums to memory in whole sectors: 16 rows at a time, through 2 KB of its shared
// memory.
//
// Without an activation, results are rounded in registers and turned by stmatrix. Activations are
// many instructions, and all of a tile's sums are in registers, where only constants can index: so
// sums go to shared memory 32 columns at a time, and one short loop activates them row by row,
// which also reads aux and writes z and D in vectors.
#ifndef QT_CUDA_EPILOGUE_ROWS_H
#define QT_CUDA_EPILOGUE_ROWS_H

#include "cuda/epilogue.h"
#include "cuda/primitives_sm90.h"

namespace qt::cuda {

/// Four neighbours of a row from `column` on, those before `end`; else 0.
template <DType type>
QT_FN Four<type> load_four(const qt_tensor& t, i64 batch, i64 row, i64 column, i64 end) {
  const i64 at = place_of(t, batch, row, column);
  const u8* from = static_cast<const u8*>(t.data) + at * bytes_of(type);
  constexpr u64 mask = type == DType::f32 ? 15u : 7u;
  if (column + 4 <= end && (reinterpret_cast<u64>(from) & mask) == 0) return load_four<type>(from);
  Four<type> out = {};
  QT_UNROLL
  for (int e = 0; e < 4; ++e) {
    if (column + e >= end) continue;
    if constexpr (type == DType::f32) {
      out.word[e] = static_cast<const u32*>(t.data)[at + e];
    } else {
      out.word[e / 2] |= u32(static_cast<const u16*>(t.data)[at + e]) << (16 * (e % 2));
    }
  }
  return out;
}

/// `count` (4, or 2 by `v`'s first) neighbours of a row from `column` on, those before `end` whose
/// bit in `wanted` is set.
template <DType type, int count>
QT_FN void store_some(const qt_tensor& t, i64 batch, i64 row, i64 column, i64 end, u32 wanted,
                      const float (&v)[count]) {
  const i64 at = place_of(t, batch, row, column);
  u8* to = static_cast<u8*>(t.data) + at * bytes_of(type);
  constexpr u64 mask = u64(count) * bytes_of(type) - 1u;
  constexpr u32 all = (1u << count) - 1u;
  if (column + count <= end && wanted == all && (reinterpret_cast<u64>(to) & mask) == 0) {
    if constexpr (type == DType::f32 && count == 4) {
      store_global(reinterpret_cast<Words4*>(to),
                   {{bits_of(v[0]), bits_of(v[1]), bits_of(v[2]), bits_of(v[3])}});
    } else if constexpr (type == DType::f32) {
      store_global(reinterpret_cast<Words2*>(to), {{bits_of(v[0]), bits_of(v[1])}});
    } else if constexpr (count == 4) {
      store_global(reinterpret_cast<Words2*>(to),
                   {{pack_pair<type>(v[0], v[1]), pack_pair<type>(v[2], v[3])}});
    } else {
      *reinterpret_cast<u32*>(to) = pack_pair<type>(v[0], v[1]);
    }
    return;
  }
  QT_UNROLL
  for (int e = 0; e < count; ++e)
    if (column + e < end && (wanted >> e & 1u) != 0u) store_element<type>(t.data, at + e, v[e]);
}

/// Where a tile's columns lie in z, and which elements may be stored.
template <class Config, class Fits, class ColumnFits>
struct RowsOfZ {
  static constexpr bool halves = Config::epilogue == Epilogue::swiglu_split;
  const qt_args& args;
  Destination d;
  i64 first;         // of the tile's first column
  u32 staged, lane;  // this warp's shared memory
  bool choosy;       // some rows or columns may not be stored
  const Fits& fits;  // of a row
  const ColumnFits& column_fits;

  QT_FN bool row_fits(i64 row) const { return !choosy || fits(row); }
  /// `count` results to D's row `row`, from its column `column` on, those before `end` whose bit in
  /// `bits` is set.
  template <int count>
  QT_FN void put(i64 row, i64 column, i64 end, u32 bits, const float (&v)[count]) const {
    store_some<Config::output>(args.d, d.batch, row, column, end, bits, v);
  }
  /// A bit for each of `count` columns of the tile from `column` on.
  QT_FN u32 wanted(u32 column, u32 count, i64 row) const {
    if (!choosy) return (1u << count) - 1u;
    u32 out = 0;
    if (fits(row))
      for (u32 e = 0; e < count; ++e) out |= u32(column_fits(column + e)) << e;
    return out;
  }
};

/// Byte of 16-byte piece `piece` (four columns) of row `row` of 16 x 32 floats: neither whole rows
/// nor fragments of 8 x 8 meet bank conflicts.
QT_FN u32 piece_of_row(u32 row, u32 piece) { return row * 128u + ((piece ^ (row * 2u & 7u)) << 4); }

QT_FN void load_piece(u32 staged, u32 row, u32 piece, float (&v)[4]) {
  const Words4 words = load_shared_4(staged + piece_of_row(row, piece));
  QT_UNROLL
  for (int e = 0; e < 4; ++e) v[e] = float_of(words.word[e]);
}

/// z += beta * C, for four neighbours of a row.
template <class Config>
QT_FN void add_c(const qt_args& args, i64 batch, i64 row, i64 column, i64 end, float (&z)[4]) {
  if constexpr (Config::accumulate) {
    if (args.beta == 0.0f) return;
    const Four<Config::side> c = load_four<Config::side>(args.c, batch, row, column, end);
    QT_UNROLL
    for (int e = 0; e < 4; ++e) z[e] = fma_rn(args.beta, c.value(e), z[e]);
  }
}

/// 16 gates (tile columns from `gate` on) and their values, of rows `row` to `row` + 15.
template <class Config, class Rows>
QT_FN void activate_pairs_apart(const Rows& rows, i64 row, u32 gate, u32 value) {
  const i64 half = rows.d.n / 2;
#pragma unroll 1
  for (u32 i = 0; i < 2u; ++i) {
    const u32 r = i * 8u + rows.lane / 4u, piece = rows.lane % 4u;
    if (row + r >= rows.d.m) continue;
    const i64 column = rows.first + gate + 4u * piece;
    float g[4], v[4], out[4];
    load_piece(rows.staged, r, piece, g);
    load_piece(rows.staged, r, piece + 4u, v);
    add_c<Config>(rows.args, rows.d.batch, row + r, column, half, g);
    add_c<Config>(rows.args, rows.d.batch, row + r, half + column, rows.d.n, v);
    const u32 gates = rows.wanted(gate + 4u * piece, 4u, row + r);
    const u32 values = rows.wanted(value + 4u * piece, 4u, row + r);
    if constexpr (Config::keeps_z) {
      store_some<Config::side>(rows.args.z, rows.d.batch, row + r, column, half, gates, g);
      store_some<Config::side>(rows.args.z, rows.d.batch, row + r, half + column, rows.d.n, values,
                               v);
    }
    QT_UNROLL
    for (int e = 0; e < 4; ++e) out[e] = gated<Config>(g[e], v[e]);
    rows.put(row + r, column, half, gates & values, out);
  }
}

/// What a derivative is taken at, for four neighbours of z: aux itself, or the gates and values of
/// a SwiGLU (split: four and four; interleaved: the first and the last two pairs).
template <class Config>
struct AuxOfFour {
  Four<Config::side> a, b;
};

/// Where those lie in a row of aux, and in a row of D behind a SwiGLU's derivative.
template <Epilogue epilogue>
struct AuxPlace {
  i64 a, b, end_a;
  QT_FN AuxPlace(i64 column, i64 n)
      : a(epilogue == Epilogue::dswiglu_interleaved ? 2 * column : column),
        b(epilogue == Epilogue::dswiglu ? n + column : a + 4),
        end_a(epilogue == Epilogue::dswiglu_interleaved ? 2 * n : n) {}
};

template <class Config, class Rows>
QT_FN void load_aux(const Rows& rows, i64 row, u32 column_in_tile, AuxOfFour<Config>& out) {
  const i64 n = rows.d.n, column = rows.first + column_in_tile;
  if (row >= rows.d.m || column >= n) return;
  const AuxPlace<Config::epilogue> at(column, n);
  out.a = load_four<Config::side>(rows.args.aux, rows.d.batch, row, at.a, at.end_a);
  if constexpr (is_dswiglu(Config::epilogue))
    out.b = load_four<Config::side>(rows.args.aux, rows.d.batch, row, at.b, 2 * n);
}

/// 32 columns of the tile from `first` on, of rows `row` to `row` + 15. `ahead` is what this lane
/// needs of aux for its first row; it leaves with that of the next 32 columns, unless these are the
/// `last`, so that loads are on their way while the row before them is worked on.
template <class Config, class Rows>
QT_FN void activate_columns(const Rows& rows, i64 row, u32 first, bool last,
                            AuxOfFour<Config>& ahead) {
  constexpr Epilogue epilogue = Config::epilogue;
  const i64 n = rows.d.n, batch = rows.d.batch;
  const u32 piece = rows.lane % 8u;
#pragma unroll 1
  for (u32 i = 0; i < 4u; ++i) {
    const u32 r = i * 4u + rows.lane / 8u;
    const i64 y = row + r, column = rows.first + first + 4u * piece;
    const AuxOfFour<Config> aux = ahead;
    if constexpr (is_derivative(epilogue))
      if (i < 3u || !last)
        load_aux(rows, i < 3u ? y + 4 : y - 12, first + 4u * piece + (i < 3u ? 0u : 32u), ahead);
    if (y >= rows.d.m) continue;
    float z[4];
    load_piece(rows.staged, r, piece, z);
    add_c<Config>(rows.args, batch, y, column, n, z);
    const u32 wanted = rows.wanted(first + 4u * piece, 4u, y);
    if constexpr (Config::keeps_z)
      store_some<Config::side>(rows.args.z, batch, y, column, n, wanted, z);
    if constexpr (epilogue == Epilogue::swiglu_interleaved) {
      const float out[2] = {gated<Config>(z[0], z[1]), gated<Config>(z[2], z[3])};
      const u32 both = wanted & wanted >> 1;
      rows.put(y, column / 2, n / 2, (both & 1u) | (both >> 1 & 2u), out);
    } else if constexpr (is_dswiglu(epilogue)) {
      constexpr bool split = epilogue == Epilogue::dswiglu;
      const AuxPlace<epilogue> at(column, n);
      float a[4], b[4], out_a[4], out_b[4];
      QT_UNROLL
      for (int e = 0; e < 4; ++e) {
        a[e] = aux.a.value(e);
        b[e] = aux.b.value(e);
      }
      QT_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float gate = split ? a[e] : e < 2 ? a[e * 2 % 4] : b[e * 2 % 4];
        const float value = split ? b[e] : e < 2 ? a[e * 2 % 4 + 1] : b[e * 2 % 4 + 1];
        const GateGradient g = gated_gradient<Config>(z[e], gate, value);
        (split ? out_a[e] : e < 2 ? out_a[e * 2 % 4] : out_b[e * 2 % 4]) = g.gate;
        (split ? out_b[e] : e < 2 ? out_a[e * 2 % 4 + 1] : out_b[e * 2 % 4 + 1]) = g.value;
      }
      const u32 low = (wanted & 1u) * 3u | (wanted >> 1 & 1u) * 12u;
      const u32 high = (wanted >> 2 & 1u) * 3u | (wanted >> 3 & 1u) * 12u;
      rows.put(y, at.a, at.end_a, split ? wanted : low, out_a);
      rows.put(y, at.b, 2 * n, split ? wanted : high, out_b);
    } else {
      float out[4];
      QT_UNROLL
      for (int e = 0; e < 4; ++e)
        out[e] = finished<Config>(z[e], is_derivative(epilogue) ? aux.a.value(e) : 0.0f);
      rows.put(y, column, n, wanted, out);
    }
  }
}

/// `groups` of 8 columns in the order of a tensor-core fragment: z(j, v) gives those at rows `lane`
/// / 4 and 8 below, tile columns 8 j + 2 * (`lane` % 4) and the next.
template <class Config, int groups, class Rows, class Z>
QT_FN void activate_rows(const Rows& rows, i64 row, const Z& z) {
  constexpr bool halves = Rows::halves;
  constexpr int width = halves ? 2 : 4;  // groups of a pass beside each other
  constexpr int half = groups / 2;
  const u32 r = rows.lane / 4u, q = rows.lane % 4u;
  const auto stage = [&](int j, u32 place) {
    float v[4];
    z(j, v);
    QT_UNROLL
    for (u32 below = 0; below < 2u; ++below)
      store_shared_2(rows.staged + piece_of_row(r + 8u * below, 2u * place + q / 2u) + q % 2u * 8u,
                     bits_of(v[2 * below]), bits_of(v[2 * below + 1]));
  };
  AuxOfFour<Config> ahead = {};
  if constexpr (is_derivative(Config::epilogue))
    load_aux(rows, row + rows.lane / 8u, 4u * (rows.lane % 8u), ahead);
  QT_UNROLL
  for (int first = 0; first < (halves ? half : groups); first += width) {
    QT_UNROLL
    for (int j = 0; j < width; ++j) {
      stage(first + j, u32(j));
      if constexpr (halves) stage(half + first + j, u32(j) + 2u);
    }
    sync_warp();
    if constexpr (halves) {
      activate_pairs_apart<Config>(rows, row, u32(first) * 8u, u32(half + first) * 8u);
    } else {
      activate_columns<Config>(rows, row, u32(first) * 8u, first + width >= groups, ahead);
    }
    sync_warp();
  }
}

/// 16 rows and 64 columns of 16-bit results from a warp's 2 KB of shared memory (rows of 128 bytes,
/// 16-byte piece p of row r at p ^ r % 8) to D, from tile column `first` on, of those that the tile
/// has: `width`.
template <u32 width, class Rows>
QT_FN void store_staged(const Rows& rows, i64 row, u32 first, bool aligned) {
  const qt_tensor& d = rows.args.d;
  const u32 piece = rows.lane % 8u;
  const i64 column = rows.first + first + piece * 8u;
  const bool inside = first + piece * 8u < width && column < rows.d.n;
  QT_UNROLL
  for (u32 i = 0; i < 4u; ++i) {
    const u32 r = i * 4u + rows.lane / 8u;
    if (row + r >= rows.d.m || !inside) continue;
    const Words4 v = load_shared_4(rows.staged + r * 128u + ((piece ^ (r & 7u)) << 4));
    u16* to = static_cast<u16*>(d.data) + place_of(d, rows.d.batch, row + r, column);
    if (aligned && column + 8 <= rows.d.n && !rows.choosy) {
      store_global(reinterpret_cast<Words4*>(to), v);
    } else {
      const u32 wanted = rows.wanted(first + piece * 8u, 8u, row + r);
      QT_UNROLL
      for (int e = 0; e < 8; ++e)
        if (column + e < rows.d.n && (wanted >> e & 1u) != 0u)
          to[e] = u16(v.word[e / 2] >> (16 * (e % 2)));
    }
  }
}

/// The same groups as they are, rounded to D.
template <class Config, int groups, class Rows, class Z>
QT_FN void store_rows(const Rows& rows, i64 row, const Z& z) {
  constexpr DType type = Config::output;
  const qt_tensor& d = rows.args.d;
  if constexpr (type == DType::f32) {
    QT_UNROLL
    for (int j = 0; j < groups; ++j) {
      float v[4];
      z(j, v);
      const u32 in_tile = u32(8 * j) + rows.lane % 4u * 2u;
      const i64 column = rows.first + in_tile;
      QT_UNROLL
      for (int e = 0; e < 4; ++e) {
        const i64 y = row + rows.lane / 4u + e / 2 * 8;
        if (y < rows.d.m && column + e % 2 < rows.d.n &&
            (!rows.choosy || (rows.fits(y) && rows.column_fits(in_tile + u32(e) % 2u))))
          static_cast<float*>(d.data)[place_of(d, rows.d.batch, y, column + e % 2)] = v[e];
      }
    }
  } else {
    const bool aligned =
        ((reinterpret_cast<u64>(d.data) | u64(d.ld * 2) | u64(d.batch_stride * 2)) & 15u) == 0;
    // 64 columns at a time: 16 with each store_matrix_4, whose row addresses come from lanes 0-7
    // and 8-15 for the left 8 columns, 16-23 and 24-31 for the right ones.
    const u32 r = rows.lane % 16u;
    QT_UNROLL
    for (int pass = 0; pass < (groups + 7) / 8; ++pass) {
      QT_UNROLL
      for (int pair = 0; pair < 4; ++pair) {
        const int j = pass * 8 + pair * 2;
        if (j >= groups) continue;
        float left[4], right[4];
        z(j, left);
        z(j + 1, right);
        store_matrix_4(
            rows.staged + r * 128u + (((u32(pair) * 2u + rows.lane / 16u) ^ (r & 7u)) << 4),
            pack_pair<type>(left[0], left[1]), pack_pair<type>(left[2], left[3]),
            pack_pair<type>(right[0], right[1]), pack_pair<type>(right[2], right[3]));
      }
      sync_warp();
      store_staged<u32(groups) * 8u>(rows, row, u32(pass) * 64u, aligned);
      sync_warp();
    }
  }
}

/// All that becomes of 16 rows of z.
template <class Config, int groups, class Rows, class Z>
QT_FN void finish_rows(const Rows& rows, i64 row, const Z& z) {
  if constexpr (Config::epilogue == Epilogue::none) {
    store_rows<Config, groups>(rows, row, z);
  } else {
    activate_rows<Config, groups>(rows, row, z);
  }
}

}  // namespace qt::cuda

#endif
