// A tile of AMD's matrix cores quantised where it is computed (cuda/quantized_rows.h).
#ifndef QT_HIP_QUANTIZED_QUADS_H
#define QT_HIP_QUANTIZED_QUADS_H

#include "cuda/quantized_rows.h"
#include "hip/epilogue_quads.h"

namespace qt::hip {

/// QuadsIntoD for rows that wait: a lane's i'th row is row `first` + i T::size of `kept`.
template <class Config, class T, class Kept>
struct QuadsIntoRows {
  const Kept& kept;
  i64 n;
  u32 first;

  struct Elements {
    const Kept& kept;
    u32 row;
    QT_FN void operator()(i64 column, float v) const {
      const float one[1] = {v};
      kept.put(row, column, one);
    }
  };
  QT_FN u32 row_of(int i) const { return first + u32(i) * T::size; }
  QT_FN Elements elements(const Destination&, int i, i64) const { return {kept, row_of(i)}; }
  QT_FN bool quad(int i, i64, i64 column, const float (&z)[4]) const {
    if (column < n) kept.put(row_of(i), column, z);
    return true;
  }
};

/// Passes `pass`, ... of a block's tile, each with as many rows of every wave; `wave_row`: which
/// of the waves below each other this one is, `first_m`: its first row in the tile, `in_tile`: this
/// lane's among those of an instruction.
template <class Config, class T, int pass, u32 threads, int tiles_n, int tiles_m, int count,
          class Columns>
QT_FN void quantize_passes(const qt_args& args, const Product& p, const Columns& columns, i64 row0,
                           i64 column0, u32 wave_row, u32 first_n, u32 lane,
                           const float (&sums)[tiles_n][tiles_m][count]) {
  constexpr int tiles = tiles_m / Config::passes;
  constexpr u32 wave_m = u32(tiles_m) * T::size, part = u32(tiles) * T::size;
  using Kept = QuantizedRows<Config, u32(Config::waves_m) * part, u32(Config::tile_n)>;
  const u32 in_tile = lane % T::size;
  const Kept kept(shared_base(), Config::epilogue == Epilogue::swiglu_split ? column0 / 2 : column0,
                  args.n);
  sync_block();  // all have read what lay there
  finish_wave<Config, T, pass * tiles, tiles>(
      args, p, columns, column0, first_n, row0 + wave_row * wave_m + in_tile, lane, sums,
      QuadsIntoRows<Config, T, Kept>{kept, args.n, wave_row * part + in_tile});
  sync_block();
  constexpr u32 along = Config::passes == 1 ? u32(Config::tile_m) : part;
  kept.template quantize_copies<threads, along>(
      args, p.d,
      [&](u32 row) QT_INLINE { return row0 + row / part * wave_m + u32(pass) * part + row % part; },
      thread_index());
  if constexpr (pass + 1 < Config::passes)
    quantize_passes<Config, T, pass + 1, threads>(args, p, columns, row0, column0, wave_row,
                                                  first_n, lane, sums);
}

}  // namespace qt::hip

#endif
