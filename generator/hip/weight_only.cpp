// hip_weight_only: A in bf16 or f16 as it is, B in MXFP4, by gfx950's matrix cores
// (templates/hip/weight_only.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"
#include "generator/split_k.hpp"

namespace quarterturn::hip {
namespace {

constexpr std::int64_t kWeightOnlyWaves = 4, kWeightOnlyThreads = 64 * kWeightOnlyWaves;
constexpr std::int64_t kStageRowOfA = 256, kStageRowOfB = 64;  // bytes in a stage
constexpr std::int64_t kStageOfK = 128;
constexpr std::int64_t kCopiesInFlight = 63;        // of a wave
constexpr std::int64_t kUnitsOfChip = 256;          // of an MI355X
constexpr double kWeightOnlyCostSeconds = 0.3e-12;  // of a predicted cost of 1, roughly
constexpr std::int64_t kSumsActivated = 128;
constexpr std::int64_t kRegistersOfSimd = 512;

// B's layout: the values of `weights`.
enum WeightOrder : std::int64_t { kInRows, kScalesInTiles, kShuffled };

Layout layout_of(const Variant& v) {
  constexpr Layout layouts[] = {Layout::plain, Layout::aiter, Layout::aiter_16x16};
  return layouts[v.value("weights")];
}

// How four waves share a tile, and what a stage takes.
struct WeightOnlyTile {
  std::int64_t tile_m, tile_n, waves_m, waves_n, scale_copies;
  explicit WeightOnlyTile(const Variant& v)
      : tile_m(v.value("tile_m")),
        tile_n(v.value("tile_n")),
        waves_m(tile_m >= 64 ? 2 : 1),
        waves_n(kWeightOnlyWaves / waves_m),
        scale_copies(ceil_div(tile_n, v.value("weights") == kInRows ? 64 : 32)) {}
  std::int64_t sums() const { return tile_m * tile_n / kWeightOnlyThreads; }  // of a lane
  // Of a SIMD: as many as sums, fragments, scales and addresses leave room for.
  std::int64_t waves() const {
    return std::clamp<std::int64_t>(kRegistersOfSimd / (sums() + 144), 1, 3);
  }
  std::int64_t stage_bytes() const {
    return tile_m * kStageRowOfA + tile_n * kStageRowOfB + scale_copies * 256;
  }
  // That each wave starts for a stage.
  std::int64_t copies() const {
    return ceil_div(tile_m / 4, kWeightOnlyWaves) + ceil_div(tile_n / 16, kWeightOnlyWaves) +
           ceil_div(scale_copies, kWeightOnlyWaves);
  }
};

class HipWeightOnly final : public Family {
 public:
  std::string_view name() const override { return "hip_weight_only"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::amd; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::gemm) return "multiplies by a quantised operand: op = gemm";
    if (auto reason = refuse_target(t); !reason.empty()) return reason;
    if (p.a_type != DType::bf16 && p.a_type != DType::f16) return "needs A in bf16 or f16";
    if (p.b_type != DType::mxfp4) return "needs B in mxfp4";
    if (p.rotation != 0) return "multiplies A as it is: rotation = 0 (else use hadamard_gemm)";
    if (p.a_major != Major::k) return "reads A along K: a_major = k";
    if (p.grouping == Grouping::k_grouped) return "has no form for grouped tokens";
    if (p.grouping != Grouping::none && p.epilogue != Epilogue::none)
      return "has no activation in the epilogue of groups";
    if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
    if (p.a_layout != Layout::chosen && p.a_layout != Layout::plain)
      return fmt::format("a_layout = {}: reads plain", name_of(p.a_layout));
    for (const Layout layout : {Layout::chosen, Layout::plain, Layout::aiter, Layout::aiter_16x16})
      if (p.b_layout == layout) return {};
    return fmt::format("b_layout = {}: reads plain, aiter and aiter_16x16", name_of(p.b_layout));
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> rows = {128, 64, 32};
    if (p.m.hi <= 128) rows = {64, 128, 32};
    if (p.m.hi <= 32) rows = {32, 16, 64};
    if (p.m.hi <= 16) rows = {16, 32, 64};
    std::vector<Parameter> out = {
        {"tile_m", rows, ParameterStage::compile, "rows of D that one block computes"},
        {"tile_n", {128, 64, 256}, ParameterStage::compile, "columns of D that one block computes"},
        {"stages", {3, 4, 2}, ParameterStage::compile, "chunks of K in LDS"},
        {"raster",
         {8, 1},
         ParameterStage::compile,
         "rows of tiles walked together, to share B in L2"},
        {"weights",
         {kInRows, kShuffled, kScalesInTiles},
         ParameterStage::compile,
         "B's layout: 0 plain, 1 aiter, 2 aiter_16x16"}};
    if (auto splits = splits_axis(p, rows.front(), kUnitsOfChip)) out.push_back(std::move(*splits));
    return out;
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    const WeightOnlyTile tile(v);
    if (p.b_layout != Layout::chosen && p.b_layout != layout_of(v))
      return fmt::format("b_layout = {}: reads {}", name_of(p.b_layout), name_of(layout_of(v)));
    if (v.value("weights") != kInRows && p.grouping != Grouping::none)
      return "weights in tiles: those of groups begin anywhere";
    if (v.value("weights") != kInRows && is_gated(p.epilogue))
      return "scales in tiles: a SwiGLU's gates and values lie apart";
    const auto wave_n = tile.tile_n / tile.waves_n;
    if (is_gated(p.epilogue) && wave_n < 32) return "a wave needs columns of gates and of values";
    if (p.epilogue != Epilogue::none && tile.sums() > kSumsActivated)
      return "a lane activates 128 sums at most";
    if (auto reason = refuse_splits(p, split_tile(v), {kStageOfK}); !reason.empty()) return reason;
    if ((v.value("stages") - 1) * tile.copies() > kCopiesInFlight)
      return "more copies are in flight than a wave can count";
    const auto bytes = v.value("stages") * tile.stage_bytes();
    if (bytes > t.shared_bytes)
      return fmt::format("its stages need {} bytes of LDS, a block has {}", bytes, t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const WeightOnlyTile tile(v);
    cuda::ConfigText text;
    text.grouping(p);
    text.constant("qt::cuda::DType", "input", fmt::format("qt::cuda::DType::{}", name_of(p.a_type)),
                  "of A");
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "B's k is padded to");
    text.epilogue(p);
    text.descale(p);
    text.integer("tile_m", tile.tile_m, "what one block computes");
    text.integer("tile_n", tile.tile_n, "");
    text.flag("b_tiled", v.value("weights") != kInRows, "B's scales in 32 x 8 tiles");
    text.flag("b_shuffled", v.value("weights") == kShuffled, "B's codes in panels of 16 rows");
    text.integer("waves_m", tile.waves_m, "how its four waves share it");
    text.integer("waves_n", tile.waves_n, "");
    text.integer("stages", v.value("stages"), "chunks of K in LDS");
    text.integer("raster", v.value("raster"), "rows of tiles walked together");
    text.constant("unsigned", "splits", fmt::format("{}", v.value("splits", 1)),
                  "blocks that share a tile's K");
    const auto name = fmt::format("quarterturn_weight_only_{}_{}_{}x{}", name_of(p.role),
                                  name_of(p.a_type), tile.tile_m, tile.tile_n);
    return text.source(
        p, t, v, "hip/weight_only.h", "weight_only",
        {name, static_cast<int>(kWeightOnlyThreads), static_cast<int>(tile.waves()), {}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    const WeightOnlyTile tile(v);
    Launch out;
    out.grid = tile_grid(p, args, tile.tile_m, tile.tile_n);
    out.grid[0] *= static_cast<std::uint32_t>(v.value("splits", 1));
    out.block = {static_cast<std::uint32_t>(kWeightOnlyThreads), 1, 1};
    out.shared_bytes = v.value("stages") * tile.stage_bytes();
    return out;
  }

  Layout b_layout(const Problem&, const Variant& v) const override { return layout_of(v); }

  // As of hip_gemm_mfma_scale, and a rounding more for every block.
  double relative_error(const Problem&, const Variant& v, std::int64_t k) const override {
    return static_cast<double>(ceil_div(k, 8)) * 10 * 0x1p-23 + 6 * 0x1p-24 +
           split_error(v.value("splits", 1));
  }

  std::int64_t workspace_bytes(const Problem& p, const Variant& v,
                               const Sizes& sizes) const override {
    return split_bytes(p, split_tile(v), sizes);
  }

  // Matrix time of whole tiles, at a quarter of the scaled instruction's rate, with small tiles
  // reading their operands more often; fewer tiles than units leave some without work.
  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    const double tile_m = static_cast<double>(v.value("tile_m")),
                 tile_n = static_cast<double>(v.value("tile_n"));
    const double rows = likely_tiles_down(p, v.value("tile_m")) * tile_m;
    const double columns = static_cast<double>(ceil_div(p.n.hi, v.value("tile_n"))) * tile_n;
    const double reuse = 1.0 + 32.0 / tile_m + 32.0 / tile_n;
    const double overlap = v.value("stages") == 3 ? 1.0 : v.value("stages") == 4 ? 1.01 : 1.15;
    const double raster = v.value("raster") == 8 ? 1.0 : 1.02;
    const double weights = v.value("weights") == kInRows ? 1.0 : 1.005;
    const auto shared = split_cost(p, split_tile(v), {kStageOfK}, parameters(p, t)[0].values[0],
                                   units > 0 ? units : kUnitsOfChip);
    return (rows * columns * static_cast<double>(likely_k(p)) * 4 * reuse * overlap * raster *
                weights * shared.fill * 1e-3 +
            shared.seconds / kWeightOnlyCostSeconds) /
           shared.idle;
  }

 private:
  static SplitTile split_tile(const Variant& v) {
    return {v.value("tile_m"), v.value("tile_n"), 1, v.value("splits", 1)};
  }
};

}  // namespace

const Family& weight_only() {
  static const HipWeightOnly family;
  return family;
}

}  // namespace quarterturn::hip
