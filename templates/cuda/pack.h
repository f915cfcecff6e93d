// MXFP4 operands from packed codes and scales to expanded rows (expand.h), bf16 rows (bf16.h),
// permuted weights (permuted.h), or the same codes and tiles of scales (scales_128x4.h).
#ifndef QT_CUDA_PACK_H
#define QT_CUDA_PACK_H

#include "cuda/bf16.h"
#include "cuda/permuted.h"
#include "cuda/scales_128x4.h"

namespace qt::cuda {

/// 16 bytes of codes, at a multiple of 16 or not.
QT_FN Words4 load_codes(const u8* from, bool aligned) {
  if (aligned) return load_words(reinterpret_cast<const Words4*>(from));
  Words4 v = {};
  QT_UNROLL
  for (u32 i = 0; i < 16u; ++i) v.word[i / 4u] |= u32(from[i]) << (8u * (i % 4u));
  return v;
}

/// `threads_per_row` threads share a row, or one group's part of it, whose codes wait in shared
/// memory until all its scales have been seen. Grid: rows, 1, batch or groups of tokens; what lies
/// between groups is left as it is.
template <class Config>
QT_FN void pack(const Config&, const qt_args& args) {
  constexpr u32 team = Config::threads_per_row;
  constexpr u32 teams = Config::threads / team;
  constexpr bool by_tokens = Config::grouping == Grouping::k_grouped;
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const i64 entry = block_index_z();
  const i64 batch = by_tokens ? 0 : entry;
  GroupPlace part = {0, round_up(k, Config::k_unit)};
  if constexpr (by_tokens)
    part = group_place(group_range(args.group_sizes, entry, k), entry, Config::k_unit);
  const u32 given = u32(part.length / 32);
  const u32 blocks = u32(round_up(part.length, 128) / 32);
  const i64 pitch = by_tokens ? packed_length<Config>(args, k) : i64(blocks) * 32;
  const StagedRow stage = staged_row(blocks);
  const u32 thread = thread_index(), t = thread % team;
  const u32 codes = shared_base() + thread / team * stage.bytes;
  const u32 bytes = codes + stage.scales_at;
  const i64 row = i64(block_index()) * teams + thread / team;
  const bool row_exists = row < args.m;
  const i64 read_row = row_exists ? row : 0;
  const u8* from = static_cast<const u8*>(args.a.data) +
                   (batch * args.a.batch_stride + read_row * args.a.ld + part.first) / 2;
  const u8* scales = static_cast<const u8*>(args.a.scales) + batch * args.a.scale_batch_stride +
                     read_row * args.a.scale_ld + part.first / 32;
  const bool aligned = (reinterpret_cast<u64>(from) & 15u) == 0;

  RowRange range = {};
  for (u32 block = t; block < blocks; block += team) {
    const bool inside = row_exists && block < given;
    const Words4 v = inside ? load_codes(from + block * 16u, aligned) : Words4{};
    const u32 byte = inside ? scales[block] : 0u;
    store_shared_4(codes + staged_place(block), v);
    store_shared_u8(bytes + block, byte);
    widen(range, byte, v.word);
  }
  finish_expanded<Config::element, team>(
      static_cast<u8*>(args.d.data) + batch * args.d.batch_stride + row * pitch + part.first,
      static_cast<u8*>(args.d.scales) + entry * args.d.scale_batch_stride + row, row_exists, codes,
      bytes, blocks, shared_base() + teams * stage.bytes, range, thread);
}

/// A block of 32 of the operand, and the thread's place among them all.
struct PackedBlock {
  u64 index;
  i64 row;
  u32 block, blocks;
  Words4 codes;
  u32 byte;
};
/// False behind the last one.
template <class Config>
QT_FN bool read_block(const qt_args& args, PackedBlock& out) {
  const i64 k = Config::k > 0 ? Config::k : args.k;
  out.blocks = u32(packed_length<Config>(args, k) / 32);
  out.index = u64(block_index()) * Config::threads + thread_index();
  if (out.index >= u64(args.m) * out.blocks) return false;
  out.row = i64(out.index / out.blocks);
  out.block = u32(out.index - u64(out.row) * out.blocks);
  const i64 batch = block_index_z();
  const u8* from = static_cast<const u8*>(args.a.data) +
                   (batch * args.a.batch_stride + out.row * args.a.ld) / 2 + out.block * 16u;
  out.byte = static_cast<const u8*>(
      args.a.scales)[batch * args.a.scale_batch_stride + out.row * args.a.scale_ld + out.block];
  out.codes = load_codes(from, (reinterpret_cast<u64>(from) & 15u) == 0);
  return true;
}

/// A thread moves a block of 32 and its scale, and zeros behind a row's last one.
template <class Config>
QT_FN void pack_128x4(const Config&, const qt_args& args) {
  PackedBlock b;
  if (!read_block<Config>(args, b)) return;
  u8* const codes = static_cast<u8*>(args.d.data) + block_index_z() * args.d.batch_stride / 2;
  store_global(reinterpret_cast<Words4*>(codes) + b.index, b.codes);
  store_scale_128x4(static_cast<u8*>(args.d.scales) + block_index_z() * args.d.scale_batch_stride,
                    b.row, b.block, b.blocks, b.byte);
}

/// A thread decodes a block of 32.
template <class Config>
QT_FN void pack_bf16(const Config&, const qt_args& args) {
  PackedBlock b;
  if (!read_block<Config>(args, b)) return;
  u16* const to = static_cast<u16*>(args.d.data) + block_index_z() * args.d.batch_stride;
  store_block_bf16(to + b.index * 32u, b.codes.word, b.byte);
}

/// A block permutes a stripe of 64 rows: four threads a row, one for each block of a chunk.
template <class Config>
QT_FN void pack_permuted(const Config&, const qt_args& args) {
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const u32 given = u32(round_up(k, Config::k_unit) / 32);
  const u32 chunks = u32(expanded_pitch(k, Config::k_unit) / 128);
  const u32 stripe = block_index(), thread = thread_index();
  const u32 in_stripe = thread / 4u, q = thread % 4u;
  const i64 row = i64(stripe) * kStripe + in_stripe;
  const bool row_exists = row < args.m;
  const u8* from = static_cast<const u8*>(args.a.data) + (row_exists ? row : 0) * args.a.ld / 2;
  const u8* scales =
      static_cast<const u8*>(args.a.scales) + (row_exists ? row : 0) * args.a.scale_ld;
  const bool aligned = (reinterpret_cast<u64>(from) & 15u) == 0;
  u8* const out = static_cast<u8*>(args.d.data) + u64(stripe) * chunks * kChunkCodes;
  u8* const out_scales = static_cast<u8*>(args.d.scales) + u64(stripe) * chunks * kChunkScales;

  RowRange range = {};
  for (u32 chunk = 0; chunk < chunks; ++chunk) {
    const u32 block = chunk * 4u + q;
    const bool inside = row_exists && block < given;
    const Words4 v = inside ? load_codes(from + block * 16u, aligned) : Words4{};
    const u32 byte = inside ? scales[block] : 0u;
    widen(range, byte, v.word);
    QT_UNROLL
    for (u32 s = 0; s < 4u; ++s)
      *reinterpret_cast<u32*>(out + chunk * kChunkCodes + word_place(in_stripe, q, s)) =
          move_signs(v.word[s]);
    out_scales[chunk * kChunkScales + scale_place(in_stripe, q)] = u8(byte);
  }
  QT_UNROLL
  for (u32 step = 1; step <= 2u; step *= 2u) {
    range.high = max_u32(range.high, shuffle_xor(range.high, step));
    range.depth = max_u32(range.depth, shuffle_xor(range.depth, step));
    range.nan |= shuffle_xor(range.nan, step);
  }
  if (q == 0) {
    const u32 stripes = u32(ceil_div(args.m, kStripe));
    permuted_references<Expanded::e5m2>(args.d.scales, stripes, chunks)[row] =
        u8(permuted_reference<Expanded::e5m2>(range));
    permuted_references<Expanded::int8>(args.d.scales, stripes, chunks)[row] =
        u8(permuted_reference<Expanded::int8>(range));
  }
}

}  // namespace qt::cuda

#endif
