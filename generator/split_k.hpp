// The axis `splits`: how many blocks share the K of a tile, for products with fewer tiles than a
// GPU has units (templates/cuda/split_k.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "generator/family.hpp"

namespace quarterturn {

/// What a family's kernel makes of K: `chunk` elements a step, of which parts are multiples of
/// `unit`.
struct KSteps {
  std::int64_t chunk = 128, unit = 1;
  std::int64_t of(std::int64_t k) const { return ceil_div(k, chunk * unit); }
};

/// How a variant's work is divided: its tile, the blocks that work side by side as a cluster, and
/// how many share the K of a tile.
struct SplitTile {
  std::int64_t tile_m = 0, tile_n = 0, cluster = 1, splits = 1;
};

/// The axis, where products are long, and tiles of `rows` x 128 are no more than the `units` of a
/// usual chip; none elsewhere, where every value but 1 would lose, nor where a row's sums may not
/// depend on the batch.
std::optional<Parameter> splits_axis(const Problem& problem, std::int64_t rows, std::int64_t units);

/// Why a tile's K is not shared out like that; empty when it may be.
std::string refuse_splits(const Problem& problem, const SplitTile& tile, const KSteps& steps);

/// Scratch bytes for the sums of all parts but the last, of a call of these sizes.
std::int64_t split_bytes(const Problem& problem, const SplitTile& tile, const Sizes& sizes);

/// What adding parts to each other may lose, as a multiple of sum |a b|.
inline double split_error(std::int64_t splits) {
  return splits > 1 ? static_cast<double>(splits) * 0x1p-24 : 0.0;
}

/// What sharing out K makes of the largest call's time, for cost models.
struct SplitCost {
  double waves = 1;  ///< of whole tiles, by whole waves: times what a model of waves gives
  double fill = 1;   ///< against a chip whose units all have work: times what a model of that gives
  double seconds = 0;  ///< besides, of each batch entry: parts that are left and joined
  double idle = 1;  ///< fill of the tiles meant below with whole K: what to divide such a model's
                    ///< result by, so that it stays comparable with one that knows no fill
};

/// The heuristic shares out K only where tiles of `rows` x 128 leave more than half of the `units`
/// without work; elsewhere the axis is the tuner's, and here a shared K costs as much as a whole
/// one and more. Parts are taken to cost a hand-over of 2 us, and a tile of binary32 sums each that
/// one unit reads at 100 GB/s: assumed, not measured.
SplitCost split_cost(const Problem& problem, const SplitTile& tile, const KSteps& steps,
                     std::int64_t rows, std::int64_t units);

}  // namespace quarterturn
