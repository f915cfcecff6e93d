// K of a tile shared out among `splits` blocks, for products with fewer tiles than a GPU has units.
//
// Items of work are numbered tile by tile, the parts of a tile's K one after the other, and every
// block has one. Each part is summed as a whole K would be. All but the last one's block leaves its
// sums in the workspace and raises a flag, warp by warp; the last one's adds them to its own, the
// first part's first, and finishes the tile: the same bits in every run. A block waits for lower
// ones alone, which have started before it, so that waiting ends however few run side by side.
// Flags are 64 bits that random memory does not hold, and are lowered by who waited for them: the
// workspace needs no preparation, and the next launch finds none raised.
//
// A part may be empty, where K has fewer chunks than there are parts: nobody stores or waits for
// it. The last one is empty only where all are.
#ifndef QT_CUDA_SPLIT_K_H
#define QT_CUDA_SPLIT_K_H

#include "args.h"
#include "cuda/load.h"
#include "mxfp4/platform.h"

namespace qt::cuda {

constexpr u64 kPartReady = 0x8f3ac15e77d2964bull;

/// How `chunks` of K are shared out in `splits` parts, each but the last a multiple of `unit`.
template <u32 splits, u32 unit = 1>
struct KParts {
  u32 chunks;
  QT_FN u32 begin(u32 part) const {
    if constexpr (splits == 1) return part * chunks;
    const u32 units = (chunks + unit - 1) / unit;
    return min_u32(units * part / splits * unit, chunks);
  }
  QT_FN u32 end(u32 part) const { return begin(part + 1); }
  QT_FN u32 count(u32 part) const { return end(part) - begin(part); }
  /// Nobody has anything to do for this part of the tile.
  QT_FN bool is_idle(u32 part) const { return part + 1 < splits && count(part) == 0; }
};

/// Where parts of a tile wait: `warps` warps with `words` words of sums a lane, and a flag each.
template <u32 splits, u32 warps, u32 words>
class PartSums {
 public:
  static constexpr u32 kFlagBytes = 128;
  static constexpr u32 kBytes = warps * 32 * words * 4 + kFlagBytes;
  static_assert(warps * 8 <= kFlagBytes && words % 4 == 0, "flags, and quads of sums");

  /// `tile`: its number among all of the call.
  QT_FN PartSums(const qt_args& args, u32 tile, u32 this_warp, u32 this_lane)
      : slots_(static_cast<u8*>(args.workspace) + u64(tile) * ((splits - 1) * kBytes)),
        warp_(this_warp),
        lane_(this_lane) {}

  /// Four words of this lane.
  QT_FN void store(u32 part, u32 quad, const Words4& v) const {
    store_global(place(part, quad), v);
  }
  QT_FN Words4 load(u32 part, u32 quad) const { return load_global(place(part, quad)); }

  /// All that this warp stored of a part can be read.
  QT_FN void raise(u32 part) const {
    sync_warp();
    if (lane_ == 0) release_flag(flag(part), kPartReady);
  }
  /// Until the same warp of a part's block has raised its flag, which is lowered.
  QT_FN void take(u32 part) const {
    if (lane_ == 0) {
      while (acquire_flag(flag(part)) != kPartReady) {
      }
      release_flag(flag(part), 0);
    }
    sync_warp();
  }

 private:
  QT_FN u8* slot(u32 part) const { return slots_ + u64(part) * kBytes; }
  QT_FN Words4* place(u32 part, u32 quad) const {
    return reinterpret_cast<Words4*>(slot(part)) + (warp_ * (words / 4) + quad) * 32 + lane_;
  }
  QT_FN u64* flag(u32 part) const {
    return reinterpret_cast<u64*>(slot(part) + (kBytes - kFlagBytes)) + warp_;
  }

  u8* slots_;
  u32 warp_, lane_;
};

QT_FN u32 word_of_sum(float sum) { return bits_of(sum); }
QT_FN u32 word_of_sum(i32 sum) { return u32(sum); }
QT_FN void add_word_to(float& sum, u32 word) { sum = sum + float_of(word); }
QT_FN void add_word_to(i32& sum, u32 word) { sum = sum + i32(word); }

/// Leaves a lane's sums, which lie in registers, as part `part`.
template <class Parts, class Sum, int high, int width>
QT_FN void leave_sums(const Parts& parts, u32 part, const Sum (&sums)[high][width]) {
  static_assert(width % 4 == 0, "quads of sums");
  QT_UNROLL
  for (int i = 0; i < high; ++i) {
    QT_UNROLL
    for (int j = 0; j < width; j += 4)
      parts.store(part, u32(i * width + j) / 4u,
                  {{word_of_sum(sums[i][j]), word_of_sum(sums[i][j + 1]),
                    word_of_sum(sums[i][j + 2]), word_of_sum(sums[i][j + 3])}});
  }
  parts.raise(part);
}
template <class Parts, int down, int across, int count>
QT_FN void leave_sums(const Parts& parts, u32 part, const float (&sums)[down][across][count]) {
  static_assert(count % 4 == 0, "quads of sums");
  QT_UNROLL
  for (int i = 0; i < down; ++i) {
    QT_UNROLL
    for (int j = 0; j < across; ++j) {
      QT_UNROLL
      for (int e = 0; e < count; e += 4)
        parts.store(part, u32((i * across + j) * count + e) / 4u,
                    {{bits_of(sums[i][j][e]), bits_of(sums[i][j][e + 1]),
                      bits_of(sums[i][j][e + 2]), bits_of(sums[i][j][e + 3])}});
    }
  }
  parts.raise(part);
}

/// Adds what the blocks of parts 0..last left to the last one's sums.
template <class Parts, class Shares, class Sum, int high, int width>
QT_FN void join_sums(const Parts& parts, const Shares& shares, u32 last, Sum (&sums)[high][width]) {
#pragma unroll 1
  for (u32 part = 0; part < last; ++part) {
    if (shares.is_idle(part)) continue;
    parts.take(part);
    QT_UNROLL
    for (int i = 0; i < high; ++i) {
      QT_UNROLL
      for (int j = 0; j < width; j += 4) {
        const Words4 v = parts.load(part, u32(i * width + j) / 4u);
        QT_UNROLL
        for (int e = 0; e < 4; ++e) add_word_to(sums[i][j + e], v.word[e]);
      }
    }
  }
}
template <class Parts, class Shares, int down, int across, int count>
QT_FN void join_sums(const Parts& parts, const Shares& shares, u32 last,
                     float (&sums)[down][across][count]) {
#pragma unroll 1
  for (u32 part = 0; part < last; ++part) {
    if (shares.is_idle(part)) continue;
    parts.take(part);
    QT_UNROLL
    for (int i = 0; i < down; ++i) {
      QT_UNROLL
      for (int j = 0; j < across; ++j) {
        QT_UNROLL
        for (int e = 0; e < count; e += 4) {
          const Words4 v = parts.load(part, u32((i * across + j) * count + e) / 4u);
          QT_UNROLL
          for (int f = 0; f < 4; ++f) add_word_to(sums[i][j][e + f], v.word[f]);
        }
      }
    }
  }
}

}  // namespace qt::cuda

#endif
