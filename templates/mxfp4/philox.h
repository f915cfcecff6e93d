// Philox4x32: a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011), so that noise is a function of where an element is and never of who computes it.
#ifndef QT_MXFP4_PHILOX_H
#define QT_MXFP4_PHILOX_H

#include "mxfp4/platform.h"

namespace qt {

struct Philox {
  u32 word[4];
};

/// This project draws with 7 rounds; the parameter is there for the published 10-round vectors.
template <int rounds = 7>
QT_FN Philox philox4x32(u32 c0, u32 c1, u32 c2, u32 c3, u32 key0, u32 key1) {
  QT_UNROLL
  for (int i = 0; i < rounds; ++i) {
    const u64 p0 = u64(0xd2511f53u) * c0;
    const u64 p1 = u64(0xcd9e8d57u) * c2;
    c0 = u32(p1 >> 32) ^ c1 ^ key0;
    c1 = u32(p1);
    c2 = u32(p0 >> 32) ^ c3 ^ key1;
    c3 = u32(p0);
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace qt

#endif
