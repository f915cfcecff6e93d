// Packed operands from one of the layouts plain, aiter and aiter_16x16 to another. Nothing is
// rounded: a block's codes are 16 bytes wherever they lie, and its scale is one.
#ifndef QT_HIP_PACK_H
#define QT_HIP_PACK_H

#include "args.h"
#include "cuda/scales_128x4.h"
#include "hip/codes_16x16.h"
#include "hip/primitives.h"
#include "hip/scales_32x8.h"

namespace qt::hip {

using namespace qt::cuda;

enum class PackLayout { plain, aiter, aiter_16x16 };

/// Where the codes of a block lie in a matrix of this layout; plain's rows lie ld elements apart.
template <PackLayout layout>
QT_FN u8* codes_of_block(const qt_tensor& t, i64 batch, i64 row, i64 block, i64 blocks) {
  u8* const matrix = static_cast<u8*>(t.data) + batch * t.batch_stride / 2;
  if constexpr (layout == PackLayout::aiter_16x16) return matrix + place_16x16(row, block, blocks);
  if constexpr (layout == PackLayout::aiter) return matrix + (row * blocks + block) * 16;
  return matrix + row * t.ld / 2 + block * 16;
}

QT_FN bool at_sixteen(const u8* at) { return (reinterpret_cast<u64>(at) & 15u) == 0; }

QT_FN Words4 load_block(const u8* from) {
  if (at_sixteen(from)) return load_global(reinterpret_cast<const Words4*>(from));
  Words4 v = {};
  QT_UNROLL
  for (u32 i = 0; i < 16u; ++i) v.word[i / 4u] |= u32(from[i]) << (8u * (i % 4u));
  return v;
}

QT_FN void store_block_codes(u8* to, const Words4& v) {
  if (at_sixteen(to)) return store_global(reinterpret_cast<Words4*>(to), v);
  QT_UNROLL
  for (u32 i = 0; i < 16u; ++i) to[i] = u8(v.word[i / 4u] >> (8u * (i % 4u)));
}

/// A thread moves a block of 32 and its scale; behind a row's last block go zero scales of tiles,
/// behind a panel's last row zero codes.
template <class Config>
QT_FN void pack(const Config&, const qt_args& args) {
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const i64 blocks = packed_length<Config>(args, k) / 32;
  const i64 rows = Config::to == PackLayout::aiter_16x16 ? round_up(args.m, 16) : args.m;
  const i64 index = i64(block_index()) * Config::threads + thread_index();
  if (index >= rows * blocks) return;
  const i64 row = index / blocks, block = index - row * blocks, batch = block_index_z();
  const bool exists = row < args.m;
  store_block_codes(
      codes_of_block<Config::to>(args.d, batch, row, block, blocks),
      exists ? load_block(codes_of_block<Config::from>(args.a, batch, row, block, blocks))
             : Words4{});
  if (!exists) return;
  const u8* from = static_cast<const u8*>(args.a.scales) + batch * args.a.scale_batch_stride;
  u8* const to = static_cast<u8*>(args.d.scales) + batch * args.d.scale_batch_stride;
  const u32 byte = Config::from == PackLayout::plain
                       ? from[row * args.a.scale_ld + block]
                       : from[place_32x8(row, block, (blocks + 7) / 8)];
  if constexpr (Config::to == PackLayout::plain)
    to[row * args.d.scale_ld + block] = u8(byte);
  else
    store_scale_32x8(to, row, u32(block), u32(blocks), byte);
}

}  // namespace qt::hip

#endif
