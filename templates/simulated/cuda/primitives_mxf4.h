// Simulated bodies of cuda/primitives_mxf4.h: fragments and places of scales as PTX ISA 9.7.14 has
// them; the sum of both blocks is rounded once.
#ifndef QT_CUDA_PRIMITIVES_MXF4_H
#define QT_CUDA_PRIMITIVES_MXF4_H

#include "simulated/cuda/mxf4.h"
#include "simulated/cuda/primitives.h"

namespace qt::cuda {

QT_FN void copy_async_4(u32 to, const void* from, u32 valid) {
  u8* const at = sim::shared(to, 4, 4);
  if (valid != 0 && valid != 4) sim::machine().fail("cp.async of %u bytes by fours", valid);
  if (valid > 0) sim::require_aligned(from, 4, "cp.async");
  sim::state<simulated_copies::Copies>(sim::Scope::thread).groups.add([at, from, valid] {
    u8 bytes[4] = {};
    if (valid > 0) std::memcpy(bytes, from, 4);
    std::memcpy(at, bytes, 4);
  });
}

namespace simulated_mxf4 {

struct Lane {
  float* d;
  const Words4* a;
  u32 b[2];
  u32 a_scales, b_scales;
};

template <u32 byte, u32 pair, u32 quarter>
void multiply(Lane* const* lanes) {
  float a[2][16 * 32], b[2][8 * 32];
  for (u32 i = 0; i < 32; ++i) {
    const u32 g = i / 4, t = i % 4;
    for (u32 half = 0; half < 2; ++half) {
      for (u32 e = 0; e < 8; ++e) {
        a[half][g * 32 + t * 8 + e] = e2m1_of(lanes[i]->a->word[2 * half] >> (4 * e));
        a[half][(g + 8) * 32 + t * 8 + e] = e2m1_of(lanes[i]->a->word[2 * half + 1] >> (4 * e));
        b[half][g * 32 + t * 8 + e] = e2m1_of(lanes[i]->b[half] >> (4 * e));
      }
    }
  }
  double sums[16 * 8] = {};
  for (u32 half = 0; half < 2; ++half) {
    double part[16 * 8] = {};
    sim::machine().multiply(part, a[half], b[half], 16, 8, 32);
    for (u32 row = 0; row < 16; ++row)
      for (u32 column = 0; column < 8; ++column) {
        const u32 left = lanes[row % 8 * 4 + 2 * pair + row / 8]->a_scales;
        const u32 right = lanes[column * 4 + quarter]->b_scales;
        sums[row * 8 + column] +=
            part[row * 8 + column] * ue8m0_of(left, byte + half) * ue8m0_of(right, byte + half);
      }
  }
  for (u32 i = 0; i < 32; ++i)
    for (u32 e = 0; e < 4; ++e) {
      float& d = lanes[i]->d[e];
      d = float(double(d) + sums[(i / 4 + e / 2 * 8) * 8 + i % 4 * 2 + e % 2]);
    }
}

}  // namespace simulated_mxf4

template <u32 byte, u32 pair, u32 quarter>
QT_FN void mma_mxf4(float (&d)[4], const Words4& a, u32 b0, u32 b1, u32 a_scales, u32 b_scales) {
  static_assert((byte == 0 || byte == 2) && pair < 2 && quarter < 4, "what the instruction has");
  simulated_mxf4::Lane mine = {d, &a, {b0, b1}, a_scales, b_scales};
  sim::collective("mma.mxf4", mine, [](simulated_mxf4::Lane* const* lanes) {
    simulated_mxf4::multiply<byte, pair, quarter>(lanes);
  });
}

}  // namespace qt::cuda

#endif
