// The transposed copy, and both copies from one reading of X: tiles of 128 rows and 64 columns come
// to shared memory while the last one is quantised, row-wise from its rows and column-wise from its
// columns.
//
// 256 threads; each has one block of 32 of each copy in a tile. A rotation may span the tile's four
// blocks down and its two blocks across, so that g is at most 128 for columns alone and 64 for
// both.
#ifndef QT_CUDA_QUANTIZE_TILES_H
#define QT_CUDA_QUANTIZE_TILES_H

#include "cuda/prologue.h"
#include "cuda/quantize_store.h"

// Behind a lambda's parameters, where a compiler must be told.
#ifndef QT_INLINE
#define QT_INLINE
#endif

namespace qt::cuda {

namespace tiles {

constexpr u32 kRows = 128, kColumns = 64, kThreads = 256;
constexpr u32 kGroup = 8;  // tiles walked down before the next one across: a sector of scale bytes

/// What a kernel reads.
struct Matrix {
  const u8* data;
  i64 pitch;  // bytes
  i64 columns;
  bool aligned;  // every row starts at a multiple of 16 bytes
};

/// What a tile holds: X's elements, or what a prologue makes of them.
template <class Config>
QT_FN constexpr DType tile_type() {
  return is_gated(Config::prologue) ? DType::f32 : Config::input;
}

/// Where 16-byte piece `piece` of row `row` of a tile lies, so that neither direction has bank
/// conflicts.
template <class Config>
QT_FN u32 place(u32 row, u32 piece) {
  constexpr u32 pitch = kColumns * bytes_of(tile_type<Config>());
  return row * pitch + (piece ^ ((row ^ (row >> 5)) & 7u)) * 16u;
}

/// Starts the copy of the tile at (first_row, first_column), zeros from row `end` on and beyond the
/// matrix.
template <class Config>
QT_FN void bring(const Matrix& x, u32 first_row, i64 end, u32 first_column, u32 to) {
  constexpr u32 bytes = u32(bytes_of(Config::input));
  constexpr u32 pieces = kColumns * bytes / 16u;  // of a row
  constexpr u32 rows = kThreads / pieces;         // that threads bring at once
  const u32 row = thread_index() / pieces, piece = thread_index() % pieces;
  const i64 left = (x.columns - first_column) * bytes - piece * 16u;
  const u8* from =
      x.data + (u64(first_row) + row) * u64(x.pitch) + first_column * bytes + piece * 16u;
  if (x.aligned && first_row + kRows <= end && first_column + kColumns <= x.columns) {
    QT_UNROLL
    for (u32 i = 0; i < kRows / rows; ++i) {
      copy_async_16(to + place<Config>(row + i * rows, piece), from, 16u);
      from += rows * x.pitch;
    }
    return;
  }
  for (u32 i = 0; i < kRows / rows; ++i) {
    const u32 at = to + place<Config>(row + i * rows, piece);
    const bool inside = first_row + row + i * rows < end && left > 0;
    const u32 valid = !inside ? 0u : left >= 16 ? 16u : u32(left);
    if (x.aligned) {
      copy_async_16(at, inside ? from : x.data, valid);
    } else {
      for (u32 e = 0; e < 16u; e += bytes) {
        if constexpr (bytes == 4) {
          store_shared_u32(at + e, e < valid ? *reinterpret_cast<const u32*>(from + e) : 0u);
        } else {
          store_shared_u16(at + e, e < valid ? *reinterpret_cast<const u16*>(from + e) : 0u);
        }
      }
    }
    from += rows * x.pitch;
  }
}

/// The tile at (first_row, first_column) of SwiGLU's results, `columns` of the matrix being twice
/// theirs. A thread makes four neighbours of eight rows, whose loads are all on their way before
/// the first is used.
template <class Config>
QT_FN void bring_activated(const Matrix& x, i64 k, u32 first_row, i64 end, u32 first_column,
                           u32 to) {
  constexpr bool split = Config::prologue == Prologue::swiglu_split;
  constexpr i64 bytes = bytes_of(Config::input);
  constexpr u32 pieces = kColumns / 4;  // of a row
  constexpr u32 rows = kThreads / pieces;
  const u32 row = thread_index() / pieces, piece = thread_index() % pieces;
  const i64 column = i64(first_column) + piece * 4u;
  const i64 first = split ? column : 2 * column, second = split ? k + column : first + 4;
  const u8* line = x.data + (i64(first_row) + row) * x.pitch;
  float a[kRows / rows][4], b[kRows / rows][4];
  if (x.aligned && first_row + kRows <= end && first_column + kColumns <= k &&
      (!split || k % 4 == 0)) {
    QT_UNROLL
    for (u32 i = 0; i < kRows / rows; ++i) {
      load_four<Config::input>(line + i64(i * rows) * x.pitch + first * bytes, a[i]);
      load_four<Config::input>(line + i64(i * rows) * x.pitch + second * bytes, b[i]);
    }
  } else {
    QT_UNROLL
    for (u32 i = 0; i < kRows / rows; ++i) {
      const u8* from = line + i64(i * rows) * x.pitch;
      const bool inside = i64(first_row) + row + i * rows < end;
      QT_UNROLL
      for (int e = 0; e < 4; ++e) {
        // Of the interleaved form `a` and `b` are the first and the last two pairs.
        const bool has_a = inside && column + (split ? e : e / 2) < k;
        const bool has_b = inside && column + (split ? e : 2 + e / 2) < k;
        a[i][e] = has_a ? element<Config::input>(from, first + e) : 0.0f;
        b[i][e] = has_b ? element<Config::input>(from, second + e) : 0.0f;
      }
    }
  }
  QT_UNROLL
  for (u32 i = 0; i < kRows / rows; ++i) {
    const u32 at = to + place<Config>(row + i * rows, piece);
    if constexpr (split) {
      store_shared_4(at, {{bits_of(swiglu(a[i][0], b[i][0])), bits_of(swiglu(a[i][1], b[i][1])),
                           bits_of(swiglu(a[i][2], b[i][2])), bits_of(swiglu(a[i][3], b[i][3]))}});
    } else {
      store_shared_4(at, {{bits_of(swiglu(a[i][0], a[i][1])), bits_of(swiglu(a[i][2], a[i][3])),
                           bits_of(swiglu(b[i][0], b[i][1])), bits_of(swiglu(b[i][2], b[i][3]))}});
    }
  }
}

/// Tiles in the order in which blocks take them.
struct Order {
  u32 down, across;
  /// In elements, of tile `tile`.
  QT_FN void locate(u32 tile, u32& first_row, u32& first_column) const {
    const u32 group = tile / (kGroup * across), rest = tile - group * (kGroup * across);
    const u32 height = min_u32(down - group * kGroup, kGroup);
    const u32 x = height == kGroup ? rest / kGroup : rest / height;
    first_row = (group * kGroup + rest - x * height) * kRows;
    first_column = x * kColumns;
  }
};

}  // namespace tiles

/// Blocks take tiles in turn, groups of 8 down first.
template <class Config>
QT_FN void quantize_tiles(const Config&, const qt_args& args) {
  using namespace tiles;
  constexpr int g = Config::rotation;
  constexpr bool has_signs = Config::signs != Signs::none;
  constexpr bool by_rows = Config::copies == Copies::both;
  constexpr DType held = tile_type<Config>();
  constexpr u32 bytes = u32(bytes_of(held));
  constexpr u32 tile_bytes = kRows * kColumns * bytes;
  const i64 batch = block_index_z();
  const i64 k = Config::k > 0 ? Config::k : args.k;
  Matrix matrix = {
      static_cast<const u8*>(args.a.data) + batch * args.a.batch_stride * bytes_of(Config::input),
      args.a.ld * bytes_of(Config::input), k, false};
  matrix.aligned = is_aligned<Config::input>(matrix.data, args.a.ld);
  // Tiles go down the transposed copy; where tokens are grouped, rows that no group owns follow.
  constexpr bool grouped = Config::grouping == Grouping::k_grouped;
  const i64 length = column_length<Config>(args);
  const i64 down = !grouped ? args.m : by_rows ? length + kRows : length;
  const Order order = {u32(ceil_div(down, kRows)), u32(ceil_div(k, kColumns))};
  const u32 total = order.down * order.across;

  const u32 thread = thread_index(), lane = thread % 32u;
  const u32 row = thread / 2u, half = thread % 2u;        // of the row-wise block
  const u32 column = thread / 4u, segment = thread % 4u;  // of the column-wise one
  const SignMask mask = signs_of<Config>(args);
  const u32 row_blocks = u32(round_up(k, padding_unit(g)) / 32);
  const u32 column_blocks = u32(length / 32);
  const Noise row_noise = noise_of(args, args.operand, 0);
  const Noise column_noise = noise_of(args, args.operand, 1);
  const ColumnPlace down_place = column_place<Config>(args);
  const Copy rows_copy = copy_of<Config>(args.d, batch, args.m, row_blocks);
  const Copy columns_copy = copy_of<Config>(by_rows ? args.d2 : args.d, batch, k, column_blocks);

  const auto bring_tile = [&](u32 along, u32 first_column, u32 to) QT_INLINE {
    const RowsAlong rows = rows_along<Config, by_rows>(args, along);
    if constexpr (is_gated(Config::prologue)) {
      bring_activated<Config>(matrix, k, u32(rows.first), rows.end, first_column, to);
    } else {
      bring<Config>(matrix, u32(rows.first), rows.end, first_column, to);
    }
  };
  u32 tile = block_index();
  const u32 both = 2u * shared_base() + tile_bytes;  // places of this tile and of the next
  u32 now = shared_base();
  u32 y = 0, x = 0, next_y = 0, next_x = 0;
  if (tile < total) {
    order.locate(tile, y, x);
    bring_tile(y, x, now);
  }
  copy_async_commit();
  for (; tile < total; tile += block_count()) {
    if (tile + block_count() < total) {
      order.locate(tile + block_count(), next_y, next_x);
      bring_tile(next_y, next_x, both - now);
    }
    copy_async_commit();
    copy_async_wait<1>();
    sync_block();
    const RowsAlong rows = rows_along<Config, by_rows>(args, y);

    if constexpr (by_rows) {
      float v[32];
      QT_UNROLL
      for (u32 i = 0; i < 2u * bytes; ++i) {
        const Words4 four = load_shared_4(now + place<Config>(row, half * 2u * bytes + i));
        QT_UNROLL
        for (u32 e = 0; e < 16u / bytes; ++e) {
          if constexpr (bytes == 4) {
            v[i * 4u + e] = float_of(four.word[e]);
          } else {
            v[i * 8u + e] = half_of<held>(four.word[e / 2u], int(e % 2u));
          }
        }
      }
      const u32 block = x / 32u + half;
      const float largest =
          rotate_over_lanes<g, has_signs>(v, block_signs<g>(mask, block), lane, 1u);
      const u32 in_x = u32(rows.first) + row;
      u32 packed[4];
      const u32 byte = quantize_sums<Config::scale_rule, Config::rounding, g>(
          v, largest, row_noise,
          noise_position(in_x, i64(block) * 32, args.row0, args.k0,
                         args.k_global > 0 ? args.k_global : k),
          packed);
      if (in_x < rows.end && block < row_blocks)
        store_block<Config>(rows_copy, in_x, block, row_blocks, packed, byte);
    }

    {
      const u32 at = column * bytes % 16u, piece = column * bytes / 16u;
      float v[32];
      QT_UNROLL
      for (u32 r = 0; r < 32u; ++r) {
        // place(segment * 32 + r, piece), taken apart so that eight offsets serve all rows.
        const u32 offset =
            segment * 32u * kColumns * bytes + at + ((piece ^ segment ^ (r & 7u)) << 4);
        const u32 from = now + offset + r * kColumns * bytes;
        if constexpr (bytes == 4) {
          v[r] = load_shared_f32(from);
        } else {
          v[r] = half_of<held>(load_shared_u16(from), 0);
        }
        if (grouped && by_rows && !rows.in_copy) v[r] = 0.0f;
      }
      const u32 block = y / 32u + segment;
      const float largest =
          rotate_over_lanes<g, has_signs>(v, block_signs<g>(mask, block), lane, 1u);
      u32 packed[4];
      const u32 byte = quantize_sums<Config::scale_rule, Config::rounding, g>(
          v, largest, column_noise,
          noise_position(x + column, i64(block) * 32, down_place.row0, down_place.k0,
                         down_place.k_global),
          packed);
      if (x + column < k && block < column_blocks)
        store_block<Config>(columns_copy, x + column, block, column_blocks, packed, byte);
    }
    sync_block();
    now = both - now;
    y = next_y;
    x = next_x;
  }
  copy_async_wait<0>();
}

}  // namespace qt::cuda

#endif
