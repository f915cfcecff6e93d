// How quantising is cut into parts that run in any order: the kernel and the host that starts it
// both count by this. Include-free, so that the host can read it too.
#ifndef QT_CPU_QUANTIZE_PARTS_H
#define QT_CPU_QUANTIZE_PARTS_H

namespace qt {
namespace cpu {

/// X [m, k] in tiles of tile_m x tile_k, for each batch entry; `m` and `k` include what must be
/// written beyond X: zero blocks at the end of a contraction axis and the last panel's rows.
struct QuantizeParts {
  long long m, k, tile_m, tile_k;

  static constexpr long long up(long long value, long long unit) {
    return (value + unit - 1) / unit * unit;
  }
  static constexpr long long tiles(long long length, long long tile) {
    return (length + tile - 1) / tile;
  }

  /// `unit` is the padding of contraction axes: max(32, rotation). Tiles hold whole segments of the
  /// copies, whole panels of 16 rows and whole 32x32 scale blocks.
  static constexpr QuantizeParts of(long long m, long long k, long long unit, bool by_rows,
                                    bool by_columns, bool panels, long long tile_m,
                                    long long tile_k) {
    const long long m_unit = by_columns ? unit : panels ? 16 : 1;
    const long long k_unit = by_rows ? unit : panels ? 16 : 1;
    return {up(m, m_unit), up(k, k_unit), up(tile_m, by_columns ? unit : 32),
            up(tile_k, by_rows ? unit : 32)};
  }

  constexpr long long per_entry() const { return tiles(m, tile_m) * tiles(k, tile_k); }
};

}  // namespace cpu
}  // namespace qt

#endif
