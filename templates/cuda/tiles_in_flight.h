// What warps that bring tiles and warps that multiply them agree on: places in a ring of stages,
// and which columns of z a tile has.
#ifndef QT_CUDA_TILES_IN_FLIGHT_H
#define QT_CUDA_TILES_IN_FLIGHT_H

#include "mxfp4/activation.h"
#include "mxfp4/platform.h"

namespace qt::cuda {

/// A place in the ring of stages.
struct Ring {
  u32 stage, parity;
  QT_FN void advance(u32 stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

/// Columns of z that a tile has: tile_n neighbours, or of a split SwiGLU half as many gates and
/// their values.
template <class Config>
struct TileColumns {
  static constexpr bool halves = Config::epilogue == Epilogue::swiglu_split;
  static constexpr int width = halves ? Config::tile_n / 2 : Config::tile_n;
  i64 first, n;
  QT_FN TileColumns(u32 x, i64 all) : first(i64(x) * width), n(all) {}
  QT_FN i64 of(u32 c) const {
    return halves && c >= u32(width) ? n / 2 + first + (c - u32(width)) : first + c;
  }
  /// Where columns end that lie beside column `c` of the tile.
  QT_FN i64 end(u32 c) const { return halves && c < u32(width) ? n / 2 : n; }
};

}  // namespace qt::cuda

#endif
