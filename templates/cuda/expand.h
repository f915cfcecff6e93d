// Expanded operands: MXFP4 rows as the 8-bit elements that Hopper's tensor cores multiply.
//
// A row has one reference exponent R, the largest scale byte of its blocks that hold any code but
// zeros. Element = value of the code * 2^(its byte - R), in the 8-bit type:
//   e5m2  byte of code * 2^(b - R + 13): exact for b in R-27..R; NaN blocks hold NaN (0x7f)
//   int8  2 * code * 2^(b - R + 3): exact for b in R-3..R, up to 96
// and the row's product is multiplied by reference_value(R) afterwards. A row that does not fit has
// reference 255, and its first bytes hold K/2 bytes of packed codes and K/32 scale bytes instead
// (K rounded up to 128), so that the exact stand-in has all it needs. Rows of zeros have 127.
//
// Elements of every 128 of K lie in the order in which a quad's lane finds its own 32-block when it
// decodes packed operands into tensor-core fragments: element e of block t (k = 32t + e) at
// 32 (e / 8) + 16 (e % 8 / 4) + 4 t + e % 4. Both operands of a product use it, so sums are the
// same.
#ifndef QT_CUDA_EXPAND_H
#define QT_CUDA_EXPAND_H

#include "args.h"
#include "cuda/primitives.h"
#include "mxfp4/block.h"

namespace qt::cuda {

enum class Expanded { e5m2, int8, bf16 };  // bf16: elements of bf16.h, which need no reference

constexpr u32 kUnfit = 255u;    // the reference of a row that does not fit
constexpr u32 kZeroRow = 127u;  // the reference of a row of zeros
constexpr u32 kLowest = 46u;    // beyond these, a product times one reference could leave binary32
constexpr u32 kHighest = 222u;

QT_FN constexpr i64 round_up(i64 value, i64 unit) { return (value + unit - 1) / unit * unit; }
QT_FN constexpr i64 ceil_div(i64 value, i64 unit) { return (value + unit - 1) / unit; }

/// Bytes of a row of K elements, which are padded to `unit` with zero blocks.
QT_FN constexpr i64 expanded_pitch(i64 k, i64 unit) { return round_up(round_up(k, unit), 128); }

/// What tensor cores sum products of expanded elements in.
template <Expanded type>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<Expanded::int8> {
  using Type = i32;
};

QT_FN constexpr bool has_references(Expanded type) { return type != Expanded::bf16; }

/// The reference of an existing row; kZeroRow where elements have none.
template <Expanded type>
QT_FN u32 reference_at(const u8* references, i64 row) {
  if constexpr (!has_references(type)) return kZeroRow;
  return references[row];
}

QT_FN constexpr u32 binades(Expanded type) { return type == Expanded::e5m2 ? 28u : 4u; }

/// What a reference stands for, in 46..222; every row of bf16 elements holds an eighth.
template <Expanded type>
QT_FN float reference_value(u32 reference) {
  if constexpr (type == Expanded::bf16) return 8.0f;
  return float_of((reference - (type == Expanded::e5m2 ? 13u : 4u)) << 23);
}

/// Where element k of a row lies.
QT_FN u32 expanded_place(u32 k) {
  const u32 e = k % 32u;
  return k / 128u * 128u + 32u * (e / 8u) + 16u * (e % 8u / 4u) + 4u * (k / 32u % 4u) + e % 4u;
}

/// What a row's blocks say about its reference, gathered by max: `high` the largest byte, `depth`
/// 254 - the smallest, both over blocks with codes; `nan` whether there is a NaN block.
struct RowRange {
  u32 high;  // byte + 1, so that 0 says "none"
  u32 depth;
  u32 nan;
};

QT_FN void widen(RowRange& range, u32 byte, const u32 (&packed)[4]) {
  const u32 any = (packed[0] | packed[1] | packed[2] | packed[3]) & 0x77777777u;
  range.nan |= u32(byte == kScaleNaN);
  if (any != 0 && byte != kScaleNaN) {
    range.high = max_u32(range.high, byte + 1u);
    range.depth = max_u32(range.depth, kScaleMax - byte);
  }
}

template <Expanded type>
QT_FN u32 reference_of(const RowRange& range) {
  const bool nan_fits = type == Expanded::e5m2;
  if (range.nan != 0 && !nan_fits) return kUnfit;
  if (range.high == 0) return kZeroRow;
  const u32 high = range.high - 1u;
  const u32 low = kScaleMax - range.depth;
  const bool fits = high - low < binades(type) && high >= kLowest && high <= kHighest;
  return fits ? high : kUnfit;
}

/// Decoding tables of one block: the bytes that magnitudes 0..3 and 4..7 become, and for int8 those
/// of their negatives.
struct Table {
  u32 low, high, negative_low, negative_high;
};

template <Expanded type>
QT_FN Table table_of(u32 byte, u32 reference) {
  if constexpr (type == Expanded::e5m2) {
    if (byte == kScaleNaN) return {0x7f7f7f7fu, 0x7f7f7f7fu, 0u, 0u};
    // Of a block without codes, zeros are looked up alone: entry 0 must be 0 whatever d is.
    const u32 d = min_u32(byte - reference + 27u, 27u);
    // E2M1's 0.5 is the only code whose E5M2 byte is subnormal at d = 0.
    return {d * 0x04040400u + (d == 0 ? 0x06040200u : 0x06040000u), d * 0x04040404u + 0x0e0c0a08u,
            0u, 0u};
  } else {
    const u32 d = min_u32(byte - reference + 3u, 3u);
    const u32 keep = (0xffu << d & 0xffu) * 0x01010101u;
    return {0x03020100u << d, 0x0c080604u << d, 0xfdfeff00u << d & keep, 0xf4f8fafcu << d & keep};
  }
}

/// Eight codes of a packed word to bytes: `first` elements 0..3, `second` 4..7.
template <Expanded type>
QT_FN void expand_word(u32 word, const Table& table, u32& first, u32& second) {
  const u32 magnitudes = word & 0x77777777u;
  const u32 above = word << 4;
  // Sign bits of the even elements come from `above`, of the odd ones from `word`.
  const u32 signs_first = permute_bytes(above, word, 0x5140u) & 0x80808080u;
  const u32 signs_second = permute_bytes(above, word, 0x7362u) & 0x80808080u;
  first = permute_bytes(table.low, table.high, magnitudes);
  second = permute_bytes(table.low, table.high, magnitudes >> 16);
  if constexpr (type == Expanded::e5m2) {
    first |= signs_first;
    second |= signs_second;
  } else {
    const u32 mask_first = permute_bytes(signs_first, 0u, 0xba98u);  // each byte's sign, replicated
    const u32 mask_second = permute_bytes(signs_second, 0u, 0xba98u);
    const u32 negative_first = permute_bytes(table.negative_low, table.negative_high, magnitudes);
    const u32 negative_second =
        permute_bytes(table.negative_low, table.negative_high, magnitudes >> 16);
    first = (first & ~mask_first) | (negative_first & mask_first);
    second = (second & ~mask_second) | (negative_second & mask_second);
  }
}

/// A row's packed codes in shared memory, with a gap after every eight blocks against bank
/// conflicts, then its scale bytes.
struct StagedRow {
  u32 scales_at, bytes;
};
QT_FN constexpr u32 staged_place(u32 block) { return block * 16u + block / 8u * 16u; }
QT_FN constexpr StagedRow staged_row(u32 blocks) {
  const u32 scales_at = blocks == 0u ? 0u : staged_place(blocks - 1u) + 16u;
  return {scales_at, (scales_at + blocks + 15u) / 16u * 16u};
}

/// A staged row (blocks a multiple of 4) to its place in an expanded operand, by `team` threads.
template <Expanded type>
QT_FN void store_expanded(u8* out, u32 codes, u32 bytes, u32 blocks, u32 reference, u32 thread,
                          u32 team) {
  if (reference == kUnfit) {
    for (u32 block = thread; block < blocks; block += team) {
      store_global(reinterpret_cast<Words4*>(out + block * 16u),
                   load_shared_4(codes + staged_place(block)));
      out[blocks * 16u + block] = u8(load_shared_u8(bytes + block));
    }
    return;
  }
  // One thread writes 32 bytes: word s of each of the four blocks of a chunk of 128.
  for (u32 unit = thread; unit < blocks; unit += team) {
    const u32 chunk = unit / 4u, s = unit % 4u;
    const u32 four = load_shared_u32(bytes + chunk * 4u);
    Words4 low, high;
    QT_UNROLL
    for (u32 i = 0; i < 4u; ++i) {
      const u32 word = load_shared_u32(codes + staged_place(chunk * 4u + i) + s * 4u);
      const Table table = table_of<type>((four >> (8u * i)) & 0xffu, reference);
      expand_word<type>(word, table, low.word[i], high.word[i]);
    }
    Words4* to = reinterpret_cast<Words4*>(out + chunk * 128u + s * 32u);
    store_global(to, low);
    store_global(to + 1, high);
  }
}

/// Finds a staged row's reference from what its threads have seen, and stores the row at `to` and
/// its reference, if it exists. All threads of the block take part, `team` of them for each row.
template <Expanded type, u32 team>
QT_FN void finish_expanded(u8* to, u8* reference_to, bool row_exists, u32 codes, u32 bytes,
                           u32 blocks, u32 ranges, const RowRange& range, u32 thread) {
  const RowRange of_warp = {warp_max(range.high), warp_max(range.depth), warp_max(range.nan)};
  if (thread % 32u == 0) {
    const u32 at = ranges + thread / 32u * 12u;
    store_shared_u32(at, of_warp.high);
    store_shared_u32(at + 4u, of_warp.depth);
    store_shared_u32(at + 8u, of_warp.nan);
  }
  sync_block();
  if (!row_exists) return;
  RowRange whole = {};
  QT_UNROLL
  for (u32 w = 0; w < team / 32u; ++w) {
    const u32 at = ranges + (thread / team * (team / 32u) + w) * 12u;
    whole.high = max_u32(whole.high, load_shared_u32(at));
    whole.depth = max_u32(whole.depth, load_shared_u32(at + 4u));
    whole.nan |= load_shared_u32(at + 8u);
  }
  const u32 reference = reference_of<type>(whole);
  if (thread % team == 0) *reference_to = u8(reference);
  store_expanded<type>(to, codes, bytes, blocks, reference, thread % team, team);
}

}  // namespace qt::cuda

#endif
