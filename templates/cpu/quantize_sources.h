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

/// Columns of X wait here, row by row, so that memory is read along its rows and reading down a
/// column meets neither new pages nor one set of a cache.
struct ColumnStage {
  static constexpr i64 kWidth = 512;          // bytes of a row
  static constexpr i64 kPitch = kWidth + 64;  // no power of two

  /// Fills `count` rows from element k of the copy's rows [row, row + kWidth bytes) on; zeros stand
  /// beyond X.
  QT_CPU_INLINE void fill(const Copy& copy, i64 row, i64 k, i64 count, u8* stage) {
    const i64 bytes = bytes_of(copy.type);
    const i64 inside = lesser((copy.rows - row) * bytes, kWidth);
    for (i64 j = 0; j < count; ++j) {
      const u8* from = copy.source + ((k + j) * copy.k_step + row) * bytes;
      u8* to = stage + j * kPitch;
      const i64 valid = k + j < copy.k ? inside : 0;
      if (valid == kWidth) {
        copy_bytes<kWidth>(to, from);
      } else {
        for (i64 i = 0; i < kWidth; ++i) to[i] = i < valid ? from[i] : u8(0);
      }
    }
  }

  /// Fetches what fill would read of elements [k, k_end), as far as X has them.
  QT_CPU_INLINE void announce(const Copy& copy, i64 row, i64 k, i64 k_end) {
    for (; k < k_end && k < copy.k; ++k) {
      const u8* from = copy.source + (k * copy.k_step + row) * bytes_of(copy.type);
      for (i64 line = 0; line < kWidth; line += 64) prefetch_far(from + line);
    }
  }
};

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
  constexpr i64 kAhead = 4096;  // bytes: what a group reads, or writes, is fetched in time
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
      for (i64 i = 0; i < Isa::lanes * blocks * code_bytes(config.d_layout); i += 64)
        prefetch_to_write(places.codes[0] + i + kAhead);
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

/// Blocks of the lanes' rows wait here, so that each row's share of memory is written once and in
/// order. Panels need none: there, lanes are neighbours.
template <class Isa, i64 depth>
struct BlockStage {
  alignas(64) u8 codes[Isa::lanes * depth * 32];
  alignas(64) u8 scales[Isa::lanes * depth * 8];

  Destination destination(Layout layout) {
    return {layout, codes, scales, depth * 16, depth, depth};
  }
  /// Fetches the lines that flush will write.
  QT_CPU_INLINE void announce(const Destination& to, i64 row, i64 block, int rows) {
    const bool int8 = to.layout == Layout::int8_blocks;
    const i64 code_pitch = int8 ? to.blocks * 32 : to.code_pitch;
    const i64 scale_pitch = int8 ? to.blocks * 8 : to.scale_pitch;
    for (int i = 0; i < rows; ++i) {
      u8* codes_of_row = to.codes + (row + i) * code_pitch + block * code_bytes(to.layout);
      for (i64 line = 0; line < depth * code_bytes(to.layout); line += 64)
        prefetch_to_write(codes_of_row + line);
      prefetch_to_write(to.scales + (row + i) * scale_pitch + block * scale_bytes(to.layout));
    }
  }
  /// `count` blocks of `rows` lanes to where they belong, from block `block` of row `row` on.
  void flush(const Destination& to, i64 row, i64 block, int rows, i64 count) const {
    if (to.layout == Layout::int8_blocks)
      flush_as<32, 8>(to, row, block, rows, count, to.blocks * 32, to.blocks * 8);
    else
      flush_as<16, 1>(to, row, block, rows, count, to.code_pitch, to.scale_pitch);
  }

 private:
  template <i64 code_size, i64 scale_size>
  void flush_as(const Destination& to, i64 row, i64 block, int rows, i64 count, i64 code_pitch,
                i64 scale_pitch) const {
    for (int i = 0; i < rows; ++i) {
      u8* to_codes = to.codes + (row + i) * code_pitch + block * code_size;
      u8* to_scales = to.scales + (row + i) * scale_pitch + block * scale_size;
      if (count == depth) {
        copy_bytes<depth * code_size>(to_codes, codes + i * depth * code_size);
        copy_bytes<depth * scale_size>(to_scales, scales + i * depth * scale_size);
      } else {
        for (i64 j = 0; j < count * code_size; ++j) to_codes[j] = codes[i * depth * code_size + j];
        for (i64 j = 0; j < count * scale_size; ++j)
          to_scales[j] = scales[i * depth * scale_size + j];
      }
    }
  }
};

/// A range of a copy whose rows are neighbours in memory, as columns of X are. Lanes are rows.
template <class Isa, int g, class Config>
QT_CPU_NOINLINE void quantize_along(const Config& config, const Copy& copy, const SignMask& mask,
                                    const SignFlips& flips, const CopyRange& range) {
  constexpr int n = segment_size(g), blocks = n / kBlock;
  constexpr i64 depth = 256 / kBlock;  // two lines of a row's plain codes
  const bool panels = config.d_layout == Layout::panel16;
  const i64 bytes = bytes_of(config.a_type), width = ColumnStage::kWidth / bytes;
  alignas(64) u8 stage[depth * kBlock * ColumnStage::kPitch];
  BlockStage<Isa, depth> results;
  LanePlaces<Isa> places;
  for (i64 from = range.row; from < range.row_end; from += width)
    for (i64 first = range.block; first < range.block_end; first += depth) {
      const i64 row_end = lesser(from + width, range.row_end);
      const i64 count = lesser(depth, range.block_end - first);
      ColumnStage::fill(copy, from, first * kBlock, count * kBlock, stage);
      for (i64 row = from; row < row_end; row += Isa::lanes) {
        const int rows = int(lesser(row_end - row, Isa::lanes));
        if (!panels) results.announce(copy.to, row, first, rows);
        // The next share of X, in step with this one's groups.
        const i64 next = (first + depth) * kBlock, done = (row - from) * depth * kBlock / width;
        if (first + depth < range.block_end)
          ColumnStage::announce(copy, from, next + done,
                                next + done + Isa::lanes * depth * kBlock / width);
        const Copy near =
            panels ? copy
                   : part_of(copy, row, first * kBlock, results.destination(config.d_layout));
        for (i64 block = 0; block < count; block += blocks) {
          place_lanes<Isa>(near.to, panels ? row : 0, panels ? first + block : block, 1, 0, places);
          const AlongSource<Isa> source = {
              config.a_type, stage + block * kBlock * ColumnStage::kPitch + (row - from) * bytes,
              ColumnStage::kPitch};
          quantize_group<Isa, g>(config, near, mask, flips, source, places);
        }
        if (!panels) results.flush(copy.to, row, first, rows, count);
      }
    }
}

}  // namespace cpu
}  // namespace qt

#endif
