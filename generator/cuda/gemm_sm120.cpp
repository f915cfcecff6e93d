// cuda_gemm_sm120: MXFP4 products as the tensor cores of sm_120 and sm_121 multiply them
// (templates/cuda/gemm_sm120.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/blackwell.hpp"
#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"
#include "generator/quantized_result.hpp"
#include "generator/split_k.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kChunk = 128;           // elements of K in a stage
constexpr std::int64_t kRow = kChunk / 2 + 4;  // bytes of a row in it: codes and scales
constexpr std::int64_t kStagedWarp = 2048;     // bytes of results on their way, of a warp
constexpr std::int64_t kWarpArea = 64 * 64;    // elements of D whose sums a warp can hold
constexpr std::int64_t kUnits = 170;           // of a usual chip
constexpr double kCostSeconds = 12.3e-12;      // of a predicted cost of 1, roughly

// How warps share a tile: with the fewest operand rows to load for each product.
struct WarpGrid {
  std::int64_t down = 0, across = 0;
};

std::optional<WarpGrid> warp_grid(std::int64_t tile_m, std::int64_t tile_n, std::int64_t warps) {
  std::optional<WarpGrid> best;
  const auto rows_of = [&](const WarpGrid& g) { return tile_m / g.down + tile_n / g.across; };
  for (std::int64_t down = 1; down <= warps; down *= 2) {
    const WarpGrid grid = {down, warps / down};
    if (tile_m % (16 * grid.down) != 0 || tile_n % (32 * grid.across) != 0) continue;
    if (tile_m / grid.down * (tile_n / grid.across) > kWarpArea) continue;
    if (!best || rows_of(grid) < rows_of(*best)) best = grid;
  }
  return best;
}

WarpGrid warp_grid(const Variant& v) {
  return *warp_grid(v.value("tile_m"), v.value("tile_n"), v.value("warps"));
}

class GemmSm120 final : public Family {
 public:
  std::string_view name() const override { return "cuda_gemm_sm120"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (!has_mxf4_mma(t)) return "needs sm_120a, sm_120f or sm_121a (mma.sync kind::mxf4)";
    return refuse_blocked(p, QuantizedCopies::all);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> rows = {128, 256, 64, 32, 16};
    if (p.m.hi <= 64) rows = {64, 32, 16, 128};
    if (p.m.hi <= 16) rows = {16, 32, 64};
    std::vector<Parameter> out = {
        {"tile_m", rows, ParameterStage::compile, "rows of D that one block computes"},
        {"tile_n", {128, 64, 256}, ParameterStage::compile, "columns"},
        {"warps", {4, 8, 2}, ParameterStage::compile, "that share a tile"},
        {"stages", {3, 4, 2}, ParameterStage::compile, "chunks of 128 of K in flight"},
        {"raster",
         {8, 1},
         ParameterStage::compile,
         "rows of tiles walked together, to share B in L2"}};
    if (auto splits = splits_axis(p, rows.front(), kUnits)) out.push_back(std::move(*splits));
    return out;
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    const auto tile_m = v.value("tile_m"), tile_n = v.value("tile_n"), warps = v.value("warps");
    const auto grid = warp_grid(tile_m, tile_n, warps);
    if (!grid)
      return fmt::format("{} warps cannot share a {} x {} tile in parts of 16 x 32 to {} elements",
                         warps, tile_m, tile_n, kWarpArea);
    if (p.epilogue != Epilogue::none &&
        tile_m / grid->down * (tile_n / grid->across) > kWarpArea / 2)
      return "activations need registers beside the sums: parts of at most 2048 elements";
    if (auto reason = refuse_quantized_tile(p, tile_n); !reason.empty()) return reason;
    const auto in_passes = passes(p, v);
    const auto along = in_passes == 1 ? tile_m : tile_m / grid->down / in_passes;
    if (auto reason = refuse_quantized_columns(p, along); !reason.empty()) return reason;
    if (auto reason = refuse_splits(p, split_tile(v), {kChunk}); !reason.empty()) return reason;
    if (const auto bytes = shared_bytes(p, v); bytes > t.shared_bytes)
      return fmt::format("its stages or results need {} bytes of shared memory, a block has {}",
                         bytes, t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto tile_m = v.value("tile_m"), tile_n = v.value("tile_n");
    const auto grid = warp_grid(v);
    ConfigText text;
    text.grouping(p);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    text.epilogue(p);
    text.descale(p);
    text.integer("tile_m", tile_m, "rows of D of a block");
    text.integer("tile_n", tile_n, "columns");
    text.integer("warps_m", grid.down, "warps below each other");
    text.integer("warps_n", grid.across, "warps beside each other");
    text.integer("stages", v.value("stages"), "chunks of K in flight");
    text.integer("raster", v.value("raster"), "rows of tiles walked together");
    text.constant("unsigned", "splits", fmt::format("{}", v.value("splits", 1)),
                  "blocks that share a tile's K");
    if (quantizes_result(p)) text.integer("passes", passes(p, v), "in which a tile is quantised");
    const std::string entry = fmt::format("quarterturn_gemm_mxf4_{}_{}_{}x{}", name_of(p.role),
                                          name_of(p.d_type), tile_m, tile_n);
    return text.source(p, t, v, "cuda/gemm_sm120.h", "gemm_sm120_tile",
                       {entry, static_cast<int>(v.value("warps") * 32), 1, {}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch launch;
    launch.grid = tile_grid(p, args, v.value("tile_m"), v.value("tile_n"));
    launch.grid[0] *= static_cast<std::uint32_t>(v.value("splits", 1));
    launch.block = {static_cast<std::uint32_t>(v.value("warps") * 32), 1, 1};
    launch.shared_bytes = shared_bytes(p, v);
    return launch;
  }

  Layout a_layout(const Problem&, const Variant&) const override { return Layout::scales_128x4; }
  Layout b_layout(const Problem&, const Variant&) const override { return Layout::scales_128x4; }

  std::int64_t workspace_bytes(const Problem& p, const Variant& v,
                               const Sizes& sizes) const override {
    return split_bytes(p, split_tile(v), sizes);
  }

  double relative_error(const Problem&, const Variant& v, std::int64_t k) const override {
    return blackwell_error(k) + split_error(v.value("splits", 1));
  }

  // In the units of cuda_gemm_mma's model, at six times its rate: what others published for MXFP4
  // beside bf16 on such a chip. Fewer tiles than units (170 where that is not known) leave some
  // without work.
  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    const auto m = v.value("tile_m"), n = v.value("tile_n");
    const auto grid = warp_grid(m, n, v.value("warps"));
    if (!grid) return 1e30;
    const double tile_m = static_cast<double>(m), tile_n = static_cast<double>(n);
    const double rows = likely_tiles_down(p, m) * tile_m;
    const double columns = static_cast<double>(ceil_div(p.n.hi, n)) * tile_n;
    const double reuse = 1.0 + 32.0 / tile_m + 32.0 / tile_n;
    // Operands that a warp loads for its products.
    const double part_m = tile_m / static_cast<double>(grid->down);
    const double part_n = tile_n / static_cast<double>(grid->across);
    const double loads = 1.0 + 8.0 / part_m + 8.0 / part_n;
    const double overlap = v.value("stages") == 3 ? 1.0 : v.value("stages") == 4 ? 1.01 : 1.1;
    const double raster = v.value("raster") == 8 ? 1.0 : 1.02;
    const auto shared = split_cost(p, split_tile(v), {kChunk}, parameters(p, t)[0].values[0],
                                   units > 0 ? units : kUnits);
    const double cost = (rows * columns * static_cast<double>(likely_k(p)) * reuse * loads *
                             overlap * raster * shared.fill * 1e-3 / 6.0 +
                         shared.seconds / kCostSeconds) /
                        shared.idle;
    return quantized_cost(p, cost, kCostSeconds);
  }

 private:
  static SplitTile split_tile(const Variant& v) {
    return {v.value("tile_m"), v.value("tile_n"), 1, v.value("splits", 1)};
  }
  // Each quantises as many of every warp's 16 rows.
  static std::int64_t passes(const Problem& p, const Variant& v) {
    const auto tile_m = v.value("tile_m"), tile_n = v.value("tile_n");
    return quantized_passes(p, tile_m, tile_n, tile_m / (16 * warp_grid(v).down));
  }
  static std::int64_t shared_bytes(const Problem& p, const Variant& v) {
    const auto tile_m = v.value("tile_m"), tile_n = v.value("tile_n");
    const auto stages = v.value("stages") * (tile_m + tile_n) * kRow;
    const bool narrow = !quantizes_result(p) && p.d_type != DType::f32;
    const bool staged = narrow || p.epilogue != Epilogue::none;
    const auto waiting = quantized_rows_bytes(p, tile_m / passes(p, v), tile_n);
    return std::max(stages, (staged ? v.value("warps") * kStagedWarp : 0) + waiting);
  }
};

}  // namespace

const Family& gemm_sm120() {
  static const GemmSm120 family;
  return family;
}

}  // namespace quarterturn::cuda
