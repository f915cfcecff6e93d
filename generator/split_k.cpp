#include "generator/split_k.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/grouping.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kShortest = 2048;       // of K that is worth sharing out
constexpr std::int64_t kLeastSteps = 4;        // of a part: fewer do not fill a pipeline
constexpr std::int64_t kFlagBytes = 128;       // of PartSums of split_k.h
constexpr std::int64_t kMostBytes = 64 << 20;  // of workspace
constexpr std::int64_t kMostItems = 1024;      // of a call: more would fill any chip by tiles
constexpr double kHandOver = 2e-6, kReadBack = 1e11;  // seconds, bytes a second

double tiles_of(const Problem& p, std::int64_t tile_m, std::int64_t tile_n) {
  return likely_tiles_down(p, tile_m) *
         static_cast<double>(ceil_div(p.n.hi, tile_n) * std::max<std::int64_t>(p.batch.hi, 1));
}

double items_of(const Problem& p, const SplitTile& tile) {
  return tiles_of(p, tile.tile_m * tile.cluster, tile.tile_n) *
         static_cast<double>(tile.cluster * tile.splits);
}

}  // namespace

std::optional<Parameter> splits_axis(const Problem& p, std::int64_t rows, std::int64_t units) {
  if (p.repro == Reproducibility::batch_invariant || likely_k(p) < kShortest ||
      tiles_of(p, rows, 128) > static_cast<double>(units))
    return {};
  return Parameter{"splits",
                   {1, 2, 3, 4, 6, 8, 12, 16},
                   ParameterStage::compile,
                   "blocks that share a tile's K"};
}

std::string refuse_splits(const Problem& p, const SplitTile& tile, const KSteps& steps) {
  if (tile.splits == 1) return {};
  if (p.repro == Reproducibility::batch_invariant)
    return "how K is shared out follows the number of tiles, so a row's sums would follow the "
           "batch";
  if (steps.of(likely_k(p)) < tile.splits * kLeastSteps)
    return fmt::format("{} parts of a K of {} have fewer than {} steps of {}", tile.splits,
                       likely_k(p), kLeastSteps, steps.chunk * steps.unit);
  if (const auto items = items_of(p, tile); items > kMostItems)
    return fmt::format("{} parts of tiles are more than any chip has units", items);
  if (const auto bytes = split_bytes(p, tile, most_sizes(p)); bytes > kMostBytes)
    return fmt::format("its parts need {} bytes of workspace, {} are allowed", bytes, kMostBytes);
  return {};
}

std::int64_t split_bytes(const Problem& p, const SplitTile& tile, const Sizes& sizes) {
  if (tile.splits == 1) return 0;
  const auto batch = entries_of(p, sizes.batch, sizes.groups).d;
  const auto tiles = most_tiles_down(p, sizes.m, batch, sizes.groups, tile.tile_m * tile.cluster) *
                     tile.cluster * ceil_div(sizes.n, tile.tile_n);
  return tiles * (tile.splits - 1) * (tile.tile_m * tile.tile_n * 4 + kFlagBytes);
}

SplitCost split_cost(const Problem& p, const SplitTile& tile, const KSteps& steps,
                     std::int64_t rows, std::int64_t units) {
  const auto chip = static_cast<double>(units);
  const double tiles = items_of(p, tile) / static_cast<double>(tile.splits);
  const double whole = std::ceil(tiles / chip);
  SplitCost out;
  out.fill = std::max(1.0, chip / std::max(tiles, 1.0));
  out.idle = std::max(1.0, chip / std::max(tiles_of(p, rows, 128), 1.0));
  if (tile.splits == 1) return out;
  const auto length = steps.of(likely_k(p));
  const double share = static_cast<double>(ceil_div(length, tile.splits)) /
                       static_cast<double>(std::max<std::int64_t>(length, 1));
  const double items = tiles * static_cast<double>(tile.splits);
  const double alone = out.fill;
  out.waves = std::ceil(items / chip) / std::max(whole, 1.0) * share;
  out.fill = std::max(1.0, chip / std::max(items, 1.0)) * share * static_cast<double>(tile.splits);
  out.seconds =
      (kHandOver +
       static_cast<double>((tile.splits - 1) * tile.tile_m * tile.tile_n * 4) / kReadBack) /
      static_cast<double>(std::max<std::int64_t>(p.batch.hi, 1));
  if (2 * tiles_of(p, rows, 128) >= chip) {
    out.waves = std::max(out.waves, 1.0);
    out.fill = std::max(out.fill, alone);
  }
  return out;
}

}  // namespace quarterturn
