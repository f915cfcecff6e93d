// Where quantised blocks go: layouts, places of copies, and what quantisers share.
#ifndef QT_CUDA_QUANTIZE_STORE_H
#define QT_CUDA_QUANTIZE_STORE_H

#include "args.h"
#include "cuda/bf16.h"
#include "cuda/expand.h"
#include "cuda/load.h"
#include "cuda/rotate.h"
#include "cuda/scales_128x4.h"
#include "hip/codes_16x16.h"
#include "hip/scales_32x8.h"
#include "tokens.h"

namespace qt::cuda {

/// Where codes and scales go: the spelling of the generator's layouts.
enum class Output { plain, scales_128x4, e5m2, int8_rows, bf16, aiter, aiter_16x16 };

/// The spelling and the order are those of the generator's Copies.
enum class Copies { rows, columns, both };

QT_FN constexpr bool is_expanded(Output output) {
  return output == Output::e5m2 || output == Output::int8_rows;
}

QT_FN constexpr i64 padding_unit(int rotation) { return rotation > 32 ? rotation : 32; }

/// Rows of X that exist, in this batch entry or masked group; rows behind them count as zeros.
template <class Config>
QT_FN i64 rows_of_entry(const qt_args& args, i64 entry) {
  if constexpr (Config::grouping == Grouping::m_masked)
    return group_count(args.group_sizes, entry, args.m);
  return args.m;
}

/// The row, for noise, of an entry's first one: masked groups are one matrix.
template <class Config>
QT_FN i64 row0_of_entry(const qt_args& args, i64 entry) {
  return args.row0 + (Config::grouping == Grouping::m_masked ? entry * args.m : 0);
}

/// Elements of a row of the transposed copy, with padding.
template <class Config>
QT_FN i64 column_length(const qt_args& args) {
  if constexpr (Config::grouping == Grouping::k_grouped)
    return grouped_length(args.m, args.groups, group_unit(Config::rotation));
  return round_up(args.m, padding_unit(Config::rotation));
}

/// Where this call's part of the transposed copy lies in the whole one, in that copy's coordinates.
struct ColumnPlace {
  i64 row0, k0, k_global;
};
template <class Config>
QT_FN ColumnPlace column_place(const qt_args& args) {
  constexpr bool both = Config::copies == Copies::both;
  if constexpr (Config::grouping == Grouping::k_grouped)
    return {both ? args.k0 : args.row0, 0, column_length<Config>(args)};
  // Beside a row-wise copy, row0 and k0 are that copy's, and the rows are taken to be all there
  // are.
  if constexpr (both) return {args.k0, args.row0, args.m};
  return {args.row0, args.k0, args.k_global > 0 ? args.k_global : args.m};
}

/// Rows first..end of X that lie along the transposed copy from its element `at` on, a multiple of
/// 32. `in_copy`: they belong to it.
struct RowsAlong {
  i64 first, end;
  bool in_copy;
};
/// `all`: rows that no group owns too, as if they were a last group, which the copy has no place
/// for.
template <class Config, bool all>
QT_FN RowsAlong rows_along(const qt_args& args, i64 at) {
  if constexpr (Config::grouping == Grouping::k_grouped) {
    constexpr i64 unit = group_unit(Config::rotation);
    const GroupRange rows = tokens_at(args.group_sizes, args.groups, args.m, unit, at);
    if (!all || rows.first < rows.end) return {rows.first, rows.end, true};
    const GroupRange rest = unowned_at(args.group_sizes, args.groups, args.m, unit, at);
    return {rest.first, rest.end, false};
  } else {
    return {at, args.m, true};
  }
}

/// Rotates and quantises a block; every lane of the warp takes part.
template <class Config>
QT_FN u32 quantize_values(float (&x)[32], u32 signs, u32 lane, const Noise& noise, u64 position,
                          u32 (&packed)[4]) {
  constexpr int g = Config::rotation;
  const float largest = rotate_over_lanes<g, Config::signs != Signs::none>(x, signs, lane, 1u);
  return quantize_sums<Config::scale_rule, Config::rounding, g>(x, largest, noise, position,
                                                                packed);
}

/// One copy of this batch entry, as stores need it.
struct Copy {
  u8* codes;
  u8* scales;
  u32 rows, row_bytes, scale_ld;
  bool aligned;  // every block's codes start at a multiple of 16
};

/// `rows` of `blocks` each.
template <class Config>
QT_FN Copy copy_of(const qt_tensor& to, i64 batch, i64 rows, i64 blocks) {
  // Only plain operands may be strided.
  const i64 ld = Config::output == Output::plain ? to.ld : blocks * 32;
  constexpr i64 bits = Config::output == Output::bf16 ? 16 : 4;  // of an element
  u8* codes = static_cast<u8*>(to.data) + batch * to.batch_stride * bits / 8;
  return {codes,
          static_cast<u8*>(to.scales) + batch * to.scale_batch_stride,
          u32(rows),
          u32(ld * bits / 8),
          u32(to.scale_ld),
          ((reinterpret_cast<u64>(codes) | u64(ld * bits / 8)) & 15u) == 0};
}

/// Sixteen bytes of codes.
QT_FN void store_codes(u8* to, const u32 (&packed)[4], bool aligned) {
  if (aligned) {
    store_global(reinterpret_cast<Words4*>(to), {{packed[0], packed[1], packed[2], packed[3]}});
  } else {
    QT_UNROLL
    for (int i = 0; i < 16; ++i) to[i] = u8(packed[i / 4] >> (8 * (i % 4)));
  }
}

/// The codes of a block in panels of 16 rows; behind the copy's last row, zeros fill its panel.
QT_FN void store_codes_16x16(const Copy& to, u32 row, u32 block, u32 blocks,
                             const u32 (&packed)[4]) {
  u8* at = to.codes + hip::place_16x16(row, block, blocks);
  store_codes(at, packed, to.aligned);
  if (row + 1u != to.rows) return;
  const u32 zeros[4] = {};
  for (u32 behind = row + 1u; behind % 16u != 0u; ++behind)
    store_codes(at += 16, zeros, to.aligned);
}

/// Packed codes of block `block`, of `blocks` in a row, and its scale byte, to where they belong;
/// or the elements that they make.
template <class Config>
QT_FN void store_block(const Copy& to, u32 row, u32 block, u32 blocks, const u32 (&packed)[4],
                       u32 byte) {
  if constexpr (Config::output == Output::bf16) {
    u8* row_at = to.codes + u64(row) * to.row_bytes;
    store_block_bf16(reinterpret_cast<u16*>(row_at) + block * 32u, packed, byte);
    return;
  }
  if constexpr (Config::output == Output::aiter_16x16) {
    store_codes_16x16(to, row, block, blocks, packed);
  } else {
    store_codes(to.codes + u64(row) * to.row_bytes + block * 16u, packed, to.aligned);
  }
  if constexpr (Config::output == Output::aiter || Config::output == Output::aiter_16x16) {
    hip::store_scale_32x8(to.scales, row, block, blocks, byte);
  } else if constexpr (Config::output == Output::scales_128x4) {
    store_scale_128x4(to.scales, row, block, blocks, byte);
  } else {
    to.scales[u64(row) * to.scale_ld + block] = u8(byte);
  }
}

}  // namespace qt::cuda

#endif
