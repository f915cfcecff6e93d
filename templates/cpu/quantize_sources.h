// How a group of segments gets into lanes: across from rows in memory, or straight from
// neighbouring columns; padded copies stand in where X ends.
#ifndef QT_CPU_QUANTIZE_SOURCES_H
#define QT_CPU_QUANTIZE_SOURCES_H

#include "cpu/quantize_lanes.h"

namespace qt {
namespace cpu {

/// Lanes are segments of 32 or more consecutive elements, anywhere.
template <class Isa>
struct AcrossSource {
  DType type;
  const u8* from[Isa::lanes];

  QT_CPU_INLINE void load(const AcrossSource& source, int b, typename Isa::F (&x)[kBlock]) {
    const u8* at[Isa::lanes];
    const i64 bytes = bytes_of(source.type);
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < Isa::lanes; ++i)
        at[i] = source.from[i] + (b * kBlock + half * 16) * bytes;
      if (source.type == DType::bf16) {
        if (half == 1) break;
        typename Isa::U pairs[16];
        Isa::load_across(at, pairs);
        QT_CPU_UNROLL
        for (int j = 0; j < 16; ++j) {
          x[2 * j] = Isa::floats(Isa::template left<16>(pairs[j]));
          x[2 * j + 1] = Isa::floats(Isa::both(pairs[j], Isa::splat(0xffff0000u)));
        }
      } else if (source.type == DType::f16) {
        Isa::load_across_f16(at, x + 16 * half);
      } else {
        typename Isa::U words[16];
        Isa::load_across(at, words);
        QT_CPU_UNROLL
        for (int j = 0; j < 16; ++j) x[16 * half + j] = Isa::floats(words[j]);
      }
    }
  }
};

/// Lanes are neighbours in memory; the next element of each is `step` bytes further.
template <class Isa>
struct AlongSource {
  DType type;
  const u8* from;
  i64 step;

  QT_CPU_INLINE void load(const AlongSource& source, int b, typename Isa::F (&x)[kBlock]) {
    QT_CPU_UNROLL
    for (int j = 0; j < kBlock; ++j) {
      const u8* at = source.from + (b * kBlock + j) * source.step;
      if (source.type == DType::bf16)
        x[j] =
            Isa::floats(Isa::template left<16>(Isa::load_halves(reinterpret_cast<const u16*>(at))));
      else if (source.type == DType::f16)
        x[j] = Isa::load_f16(reinterpret_cast<const u16*>(at));
      else
        x[j] = Isa::load(reinterpret_cast<const float*>(at));
    }
  }
};

/// Elements [k, k + count) of a row of a copy whose k is consecutive in memory, zeros beyond X.
QT_FN void copy_segment(const Copy& copy, i64 row, i64 k, int count, u8* to) {
  const i64 bytes = bytes_of(copy.type);
  const i64 inside = row < copy.rows ? (copy.k - k) * bytes : 0;
  const u8* from = copy.source + (row * copy.row_step + k) * bytes;
  for (i64 i = 0; i < count * bytes; ++i) to[i] = i < inside ? from[i] : u8(0);
}

/// Elements [k, k + count) of `lanes` rows whose elements of one k are consecutive in memory.
QT_FN void copy_columns(const Copy& copy, i64 row, i64 k, int count, int lanes, u8* to) {
  const i64 bytes = bytes_of(copy.type);
  const i64 inside = (copy.rows - row) * bytes;
  for (int j = 0; j < count; ++j) {
    const u8* from = copy.source + ((k + j) * copy.k_step + row) * bytes;
    for (i64 i = 0; i < lanes * bytes; ++i)
      to[j * lanes * bytes + i] = k + j < copy.k && i < inside ? from[i] : u8(0);
  }
}

/// Fills one lane with a segment; a padded copy in `padded` serves where X ends inside it.
template <class Isa, int n>
QT_FN void fill_lane(const Copy& copy, i64 row, i64 block, int lane, u8 (&padded)[n * 4],
                     AcrossSource<Isa>& source, LanePlaces<Isa>& places) {
  LanePlaces<Isa> one;
  place_lanes<Isa>(copy.to, row, block, 0, 0, one);
  places.row[lane] = row;
  places.block[lane] = block;
  places.codes[lane] = one.codes[0];
  places.scales[lane] = one.scales[0];
  source.from[lane] = copy.source + (row * copy.row_step + block * kBlock) * bytes_of(copy.type);
  if (row >= copy.rows || block * kBlock + n > copy.k) {
    copy_segment(copy, row, block * kBlock, n, padded);
    source.from[lane] = padded;
  }
}

/// A range of a copy whose k is consecutive in memory. Lanes are segments, row by row.
template <class Isa, int g, class Config>
QT_CPU_NOINLINE void quantize_across(const Config& config, const Copy& copy, const SignMask& mask,
                                     const SignFlips& flips, const CopyRange& range) {
  constexpr int n = segment_size(g), blocks = n / kBlock;
  constexpr i64 kAhead = 2048;  // bytes: what a group takes from memory comes in time
  const i64 bytes = bytes_of(config.a_type);
  const i64 last = copy.k / n * blocks - (Isa::lanes - 1) * blocks;  // for lanes in one row
  alignas(64) u8 padded[Isa::lanes][n * 4];
  LanePlaces<Isa> places;
  AcrossSource<Isa> source;
  source.type = config.a_type;
  i64 row = range.row, block = range.block;
  while (row < range.row_end) {
    if (block + Isa::lanes * blocks <= range.block_end && block < last) {
      place_lanes<Isa>(copy.to, row, block, 0, blocks, places);
      const u8* from = copy.source + (row * copy.row_step + block * kBlock) * bytes;
      for (i64 i = 0; i < Isa::lanes; ++i) source.from[i] = from + i * (n * bytes);
      for (i64 i = 0; i < Isa::lanes * n * bytes; i += 64) prefetch(from + i + kAhead);
      block += Isa::lanes * blocks;
      if (block == range.block_end) {
        block = range.block;
        ++row;
      }
    } else {
      places.neighbours = false;
      places.count = 0;
      for (int i = 0; i < Isa::lanes; ++i) {
        fill_lane<Isa, n>(copy, row, block, i, padded[i], source, places);
        places.count += row < range.row_end;
        block += blocks;
        if (block == range.block_end) {
          block = range.block;
          ++row;
        }
      }
    }
    quantize_group<Isa, g>(config, copy, mask, flips, source, places);
  }
}

/// The same for panels. Lanes are rows of one panel.
template <class Isa, int g, class Config>
QT_CPU_NOINLINE void quantize_panels(const Config& config, const Copy& copy, const SignMask& mask,
                                     const SignFlips& flips, const CopyRange& range) {
  constexpr int n = segment_size(g), blocks = n / kBlock;
  const i64 bytes = bytes_of(config.a_type);
  alignas(64) u8 padded[Isa::lanes][n * 4];
  LanePlaces<Isa> places;
  AcrossSource<Isa> source;
  source.type = config.a_type;
  for (i64 row = range.row; row < range.row_end; row += Isa::lanes)
    for (i64 block = range.block; block < range.block_end; block += blocks) {
      place_lanes<Isa>(copy.to, row, block, 1, 0, places);
      if (row + Isa::lanes <= copy.rows && block * kBlock + n <= copy.k) {
        const u8* from = copy.source + (row * copy.row_step + block * kBlock) * bytes;
        for (i64 i = 0; i < Isa::lanes; ++i) source.from[i] = from + i * copy.row_step * bytes;
      } else {
        for (int i = 0; i < Isa::lanes; ++i)
          fill_lane<Isa, n>(copy, row + i, block, i, padded[i], source, places);
      }
      quantize_group<Isa, g>(config, copy, mask, flips, source, places);
    }
}

/// A range of a copy whose rows are neighbours in memory, as columns of X are. Lanes are rows.
template <class Isa, int g, class Config>
QT_CPU_NOINLINE void quantize_along(const Config& config, const Copy& copy, const SignMask& mask,
                                    const SignFlips& flips, const CopyRange& range) {
  constexpr int n = segment_size(g), blocks = n / kBlock;
  const i64 bytes = bytes_of(config.a_type);
  alignas(64) u8 padded[n * Isa::lanes * 4];
  LanePlaces<Isa> places;
  for (i64 row = range.row; row < range.row_end; row += Isa::lanes)
    for (i64 block = range.block; block < range.block_end; block += blocks) {
      place_lanes<Isa>(copy.to, row, block, 1, 0, places);
      places.count = int(lesser(range.row_end - row, Isa::lanes));
      AlongSource<Isa> source = {config.a_type,
                                 copy.source + (block * kBlock * copy.k_step + row) * bytes,
                                 copy.k_step * bytes};
      if (row + Isa::lanes > copy.rows || block * kBlock + n > copy.k) {
        copy_columns(copy, row, block * kBlock, n, Isa::lanes, padded);
        source.from = padded;
        source.step = Isa::lanes * bytes;
      }
      quantize_group<Isa, g>(config, copy, mask, flips, source, places);
    }
}

}  // namespace cpu
}  // namespace qt

#endif
