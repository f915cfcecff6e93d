// Where the lanes of a group belong in memory, and how their codes and bytes get there and back, in
// every layout that CPU kernels know.
#ifndef QT_CPU_LANE_PLACES_H
#define QT_CPU_LANE_PLACES_H

#include "cpu/copy.h"
#include "cpu/primitives_lanes.h"

namespace qt {
namespace cpu {

/// Where the segments in a group's lanes belong; the first `count` of them are real.
template <class Isa>
struct LanePlaces {
  i64 row[Isa::lanes];
  i64 block[Isa::lanes];  // the segment's first
  u8* codes[Isa::lanes];  // not for panels, which lanes fill together
  u8* scales[Isa::lanes];
  int count;
  bool neighbours;  // lane i has the i-th of consecutive blocks of one row
};

/// Bytes of a block's codes and of what stands for its scale.
QT_FN i64 code_bytes(Layout layout) { return layout == Layout::int8_blocks ? 32 : 16; }
QT_FN i64 scale_bytes(Layout layout) { return layout == Layout::int8_blocks ? 8 : 1; }

/// Lanes take segments of `blocks` blocks, `row_step` rows and `block_step` blocks from each other.
template <class Isa>
QT_CPU_INLINE void place_lanes(const Destination& to, i64 row, i64 block, i64 row_step,
                               i64 block_step, LanePlaces<Isa>& places) {
  const i64 codes = code_bytes(to.layout), scales = scale_bytes(to.layout);
  const bool int8 = to.layout == Layout::int8_blocks;
  const i64 code_pitch = int8 ? to.blocks * codes : to.code_pitch;
  const i64 scale_pitch = int8 ? to.blocks * scales : to.scale_pitch;
  u8* const first_codes = to.codes + row * code_pitch + block * codes;
  u8* const first_scales = to.scales + row * scale_pitch + block * scales;
  for (i64 i = 0; i < Isa::lanes; ++i) {
    places.row[i] = row + i * row_step;
    places.block[i] = block + i * block_step;
    places.codes[i] = first_codes + i * (row_step * code_pitch + block_step * codes);
    places.scales[i] = first_scales + i * (row_step * scale_pitch + block_step * scales);
  }
  places.count = Isa::lanes;
  places.neighbours = row_step == 0 && block_step == 1;
}

/// Swaps the bits under `mask` with those `distance` above.
template <class Isa, int distance>
QT_CPU_INLINE typename Isa::U exchange(typename Isa::U x, u32 mask) {
  const auto differ = Isa::both(Isa::flip(x, Isa::template right<distance>(x)), Isa::splat(mask));
  return Isa::flip(x, Isa::flip(differ, Isa::template left<distance>(differ)));
}

/// Words of codes in order to words as panels have them: k and k + 4 in one byte.
template <class Isa>
QT_CPU_INLINE typename Isa::U to_panel(typename Isa::U x) {
  x = exchange<Isa, 8>(x, 0x0000ff00u);
  return exchange<Isa, 4>(x, 0x00f000f0u);
}
template <class Isa>
QT_CPU_INLINE typename Isa::U from_panel(typename Isa::U x) {
  x = exchange<Isa, 4>(x, 0x00f000f0u);
  return exchange<Isa, 8>(x, 0x0000ff00u);
}

/// Int8Scale::scale of blocks with these bytes; `any` is not zero where some code is not.
template <class Isa>
QT_CPU_INLINE typename Isa::F int8_scales(typename Isa::U byte, typename Isa::U any) {
  const auto is_zero = Isa::below(byte, Isa::splat(1u));  // 2^-127 is a subnormal
  const auto nan = Isa::below(Isa::splat(254u), byte);
  const auto some = Isa::below(Isa::splat(0u), any);
  const auto value = Isa::merge(Isa::template left<23>(byte), is_zero, Isa::splat(0x400000u));
  const auto finite = Isa::mul(Isa::floats(Isa::both(value, some)), Isa::splat_float(0x1p-12f));
  return Isa::floats(Isa::select(nan, Isa::splat(0x7fc00000u), Isa::bits(finite)));
}

template <class Isa>
QT_CPU_INLINE typename Isa::U times_bias(typename Isa::U x) {
  static_assert(kCodeBias == 12, "8 and 4");
  return Isa::plus(Isa::template left<3>(x), Isa::template left<2>(x));
}

/// Codes and bytes of blocks b of a whole group of lanes, wherever they belong.
template <class Isa>
QT_CPU_INLINE void store_lanes(const Destination& to, const LanePlaces<Isa>& places, int b,
                               typename Isa::U byte, const typename Isa::U (&words)[4]) {
  constexpr int n = Isa::lanes;
  if (to.layout == Layout::panel16) {  // lanes are rows of one panel
    const i64 at = panel_block(places.row[0] / kPanelRows, places.block[0] + b, to.blocks);
    const int c = int(places.row[0] % kPanelRows);
    for (int w = 0; w < 4; ++w)
      Isa::store_words(reinterpret_cast<u32*>(to.codes + at * kPanelCodes + 64 * w + 4 * c),
                       to_panel<Isa>(words[w]));
    Isa::store_bytes(to.scales + at * kPanelScales + c, byte);
    return;
  }
  u8* codes[n];
  for (int i = 0; i < n; ++i) codes[i] = places.codes[i] + b * code_bytes(to.layout);
  if (to.layout == Layout::int8_blocks) {
    typename Isa::U even[4], odd[4], sum = Isa::splat(0u), any = sum;
    QT_CPU_UNROLL
    for (int w = 0; w < 4; ++w) {
      even[w] = Isa::twice(words[w]);
      odd[w] = Isa::twice(Isa::template right<4>(words[w]));
      sum = Isa::add_bytes(Isa::add_bytes(sum, even[w]), odd[w]);
      any = Isa::merge(any, words[w], Isa::splat(0x77777777u));
    }
    float scales[n];
    u32 corrections[n];
    Isa::store(scales, int8_scales<Isa>(byte, any));
    Isa::store_words(corrections, Isa::minus(Isa::splat(0u), times_bias<Isa>(sum)));
    for (int i = 0; i < n; ++i)
      reinterpret_cast<Int8Scale*>(places.scales[i])[b] = {scales[i], i32(corrections[i])};
    Isa::store_by_turns(codes, even, odd);
    return;
  }
  if (places.neighbours) {
    Isa::store_bytes(places.scales[0], byte);
  } else {
    u8 bytes[n];
    Isa::store_bytes(bytes, byte);
    for (int i = 0; i < n; ++i) places.scales[i][b] = bytes[i];
  }
  Isa::store_across(codes, words);
}

/// The same for a group with fewer real lanes.
template <class Isa>
QT_CPU_NOINLINE void store_some_lanes(const Destination& to, const LanePlaces<Isa>& places, int b,
                                      typename Isa::U byte, const typename Isa::U (&words)[4]) {
  u32 bytes[Isa::lanes], codes[4][Isa::lanes];
  Isa::store_words(bytes, byte);
  for (int w = 0; w < 4; ++w) Isa::store_words(codes[w], words[w]);
  for (int i = 0; i < places.count; ++i)
    store_block(to, places.row[i], places.block[i] + b,
                {bytes[i], {codes[0][i], codes[1][i], codes[2][i], codes[3][i]}});
}

}  // namespace cpu
}  // namespace qt

#endif
