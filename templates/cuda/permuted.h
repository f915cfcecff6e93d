// Permuted weights: MXFP4 rows in the order in which warp-group products take them from registers.
//
// Rows come in stripes of 64, K in chunks of 128; a chunk of a stripe is 4096 bytes of codes, and
// the chunks of a stripe follow each other, then the next stripe. Lane (g, q) = (l / 4, l % 4) of
// warp w holds rows 16w + g and 8 below, and of the chunk the block of K 32q..32q+31: word s of a
// block is its codes 8s..8s+7. Words lie at 2048 (s / 2) + 16 (32w + l) + 8 (s % 2) + 4 (lower
// row). In a word, code i's magnitude is in bits 4i..4i+2 as ever; its sign is in bit 8i + 7 for
// i < 4 and in bit 8 (i - 4) + 3 for the others, where decoding needs it.
//
// Scales: 256 bytes for a chunk of a stripe, two for each thread in the same order (upper row,
// lower row); after all of them two references for each row, as expand.h has them: all rows' for
// E5M2, but for a window of 27 binades, so that no code becomes subnormal, then all rows' for int8.
// A row with a NaN block fits neither.
#ifndef QT_CUDA_PERMUTED_H
#define QT_CUDA_PERMUTED_H

#include "cuda/expand.h"

namespace qt::cuda {

constexpr u32 kStripe = 64;        // rows
constexpr u32 kChunkCodes = 4096;  // bytes of 64 rows by 128 of K
constexpr u32 kChunkScales = 256;
constexpr u32 kPermutedBinades = 27;

/// A word of eight codes, the first in the low nibble, with its signs moved; and back.
QT_FN u32 move_signs(u32 word) {
  u32 out = word & 0x77777777u;
  QT_UNROLL
  for (u32 i = 0; i < 8u; ++i)
    out |= ((word >> (4u * i + 3u)) & 1u) << (i < 4u ? 8u * i + 7u : 8u * i - 29u);
  return out;
}
QT_FN u32 restore_signs(u32 word) {
  u32 out = word & 0x77777777u;
  QT_UNROLL
  for (u32 i = 0; i < 8u; ++i)
    out |= ((word >> (i < 4u ? 8u * i + 7u : 8u * i - 29u)) & 1u) << (4u * i + 3u);
  return out;
}

/// The thread of a stripe that holds block `block` of row `row`, and whether as its lower row.
QT_FN u32 holder_of(u32 row, u32 block) {
  return row % 64u / 16u * 32u + row % 8u * 4u + block % 4u;
}
QT_FN u32 is_lower(u32 row) { return row / 8u % 2u; }

/// Bytes of a chunk's codes where word s of such a block lies.
QT_FN u32 word_place(u32 row, u32 block, u32 s) {
  return s / 2u * 2048u + holder_of(row, block) * 16u + s % 2u * 8u + is_lower(row) * 4u;
}
QT_FN u32 scale_place(u32 row, u32 block) { return holder_of(row, block) * 2u + is_lower(row); }

template <Expanded type>
QT_FN u32 permuted_reference(const RowRange& range) {
  if (range.nan != 0) return kUnfit;
  const u32 reference = reference_of<type>(range);
  if (type == Expanded::int8 || range.high == 0 || reference == kUnfit) return reference;
  return range.high - 1u - (kScaleMax - range.depth) < kPermutedBinades ? reference : kUnfit;
}

/// Where the rows' references for a type begin.
template <Expanded type>
QT_FN u8* permuted_references(void* scales, u32 stripes, u32 chunks) {
  return static_cast<u8*>(scales) + u64(stripes) * chunks * kChunkScales +
         (type == Expanded::int8 ? stripes * kStripe : 0u);
}

/// Bytes of one block's magnitudes, and for int8 of their negatives. Any does for a block of zeros.
template <Expanded type>
QT_FN Table permuted_table(u32 byte, u32 reference) {
  if constexpr (type == Expanded::int8) return table_of<type>(byte, reference);
  const u32 d = byte - reference + 27u;  // 1..27
  return {d * 0x04040400u + 0x06040000u, d * 0x04040404u + 0x0e0c0a08u, 0u, 0u};
}
/// Eight elements of a word: 0..3 and 4..7.
template <Expanded type>
QT_FN void decode_permuted(u32 word, const Table& table, u32& first, u32& second) {
  const u32 magnitudes = word & 0x77777777u;
  first = permute_bytes(table.low, table.high, magnitudes);
  second = permute_bytes(table.low, table.high, magnitudes >> 16);
  if constexpr (type == Expanded::e5m2) {
    first |= word & 0x80808080u;
    second |= (word << 4) & 0x80808080u;
  } else {
    const u32 mask_first = permute_bytes(word, 0u, 0xba98u);  // each byte's sign, replicated
    const u32 mask_second = permute_bytes(word << 4, 0u, 0xba98u);
    const u32 negative_first = permute_bytes(table.negative_low, table.negative_high, magnitudes);
    const u32 negative_second =
        permute_bytes(table.negative_low, table.negative_high, magnitudes >> 16);
    first = (first & ~mask_first) | (negative_first & mask_first);
    second = (second & ~mask_second) | (negative_second & mask_second);
  }
}

/// The tables of a thread's two blocks of a chunk; `scales` is the thread's own place in shared
/// memory.
template <Expanded type>
QT_FN void chunk_tables(u32 scales, u32 upper, u32 lower, Table& above, Table& below) {
  const u32 bytes = load_shared_u16(scales);
  above = permuted_table<type>(bytes & 0xffu, upper);
  below = permuted_table<type>(bytes >> 8, lower);
}
/// Half of a thread's part of a chunk in shared memory as the tensor core's A, 32 of K in each
/// element of `a`. `codes`: the thread's own place in that half.
template <Expanded type>
QT_FN void decode_half(u32 codes, const Table& above, const Table& below, Words4 (&a)[2]) {
  const Words4 words = load_shared_4(codes);
  QT_UNROLL
  for (u32 s = 0; s < 2u; ++s) {
    decode_permuted<type>(words.word[2u * s], above, a[s].word[0], a[s].word[2]);
    decode_permuted<type>(words.word[2u * s + 1u], below, a[s].word[1], a[s].word[3]);
  }
}

/// The whole of it: `codes` and `scales` are the thread's own places.
template <Expanded type>
QT_FN void decode_chunk(u32 codes, u32 scales, u32 upper, u32 lower, Words4 (&a)[2][2]) {
  Table above, below;
  chunk_tables<type>(scales, upper, lower, above, below);
  decode_half<type>(codes, above, below, a[0]);
  decode_half<type>(codes + 2048u, above, below, a[1]);
}

}  // namespace qt::cuda

#endif
