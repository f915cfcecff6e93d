// hip_gemm_mfma_scale: MXFP4 products by gfx950's matrix cores (templates/hip/gemm_mfma_scale.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"
#include "generator/quantized_result.hpp"
#include "generator/split_k.hpp"

namespace quarterturn::hip {
namespace {

constexpr std::int64_t kWaves = 4, kThreads = 64 * kWaves;
constexpr std::int64_t kRow = 64;         // bytes of a tile's row of codes in a stage
constexpr std::int64_t kMostCopies = 63;  // of a wave in flight
constexpr std::int64_t kMostActivated = 128;
constexpr std::int64_t kRegisters = 512;  // of a lane, shared by the waves of a SIMD
constexpr std::int64_t kChunk = 128;      // elements of K in a stage
constexpr std::int64_t kUnits = 256;      // of an MI355X
constexpr double kCostSeconds = 0.3e-12;  // of a predicted cost of 1, roughly

// Whose scales come in tiles, and whose codes in panels: the values of `scales`.
enum Tiled : std::int64_t { kNone, kBoth, kOfB, kOfA, kShuffledB, kShuffledBTiledA };

// How the four waves share a tile, and what that takes.
struct Shares {
  std::int64_t tile_m, tile_n, shape, waves_m, waves_n;
  bool a_tiled, b_tiled;  // scales come in tiles
  bool b_shuffled;        // and codes in panels of 16 rows
  explicit Shares(const Variant& v)
      : tile_m(v.value("tile_m")),
        tile_n(v.value("tile_n")),
        shape(v.value("shape")),
        waves_m(tile_m >= 64 ? 2 : 1),
        waves_n(kWaves / waves_m),
        a_tiled(v.value("scales") == kBoth || v.value("scales") == kOfA ||
                v.value("scales") == kShuffledBTiledA),
        b_tiled(v.value("scales") != kNone && v.value("scales") != kOfA),
        b_shuffled(v.value("scales") >= kShuffledB) {}
  static Layout layout(bool tiled) { return tiled ? Layout::aiter : Layout::plain; }
  std::int64_t sums() const { return tile_m * tile_n / kThreads; }  // of a lane
  // Of a SIMD: as many as sums, fragments and addresses leave room for, and the blocks that are
  // quantised while sums wait.
  std::int64_t waves(const Problem& p) const {
    const std::int64_t others = quantizes_result(p) ? 160 : 96;
    return std::clamp<std::int64_t>(kRegisters / (sums() + others), 1, 4);
  }
  // Copies of 256 bytes.
  std::int64_t scale_copies() const {
    return ceil_div(tile_m, a_tiled ? 32 : 64) + ceil_div(tile_n, b_tiled ? 32 : 64);
  }
  std::int64_t stage_bytes() const { return (tile_m + tile_n) * kRow + scale_copies() * 256; }
  // That each wave starts for a stage.
  std::int64_t copies() const {
    return ceil_div((tile_m + tile_n) / 16, kWaves) + ceil_div(scale_copies(), kWaves);
  }
};

// Why a given layout is not what a variant reads; empty when it is.
std::string refuse_given(std::string_view field, Layout given, Layout wanted) {
  if (given == Layout::chosen || given == wanted) return {};
  return fmt::format("{} = {}: reads {}", field, name_of(given), name_of(wanted));
}

bool is_readable(Layout given) {
  return given == Layout::chosen || given == Layout::plain || given == Layout::aiter;
}

class GemmMfmaScale final : public Family {
 public:
  std::string_view name() const override { return "hip_gemm_mfma_scale"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::amd; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::gemm && p.op != Op::gemm_quantize) return "computes gemm and gemm_quantize";
    if (auto reason = refuse_target(t); !reason.empty()) return reason;
    if (p.a_type != DType::mxfp4 || p.b_type != DType::mxfp4) return "multiplies mxfp4 by mxfp4";
    if (p.grouping != Grouping::none && p.epilogue != Epilogue::none)
      return "has no activation in the epilogue of groups";
    if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
    if (auto reason = refuse_quantized_result(
            p, {Layout::plain, Layout::aiter, Layout::aiter_16x16}, QuantizedCopies::all);
        !reason.empty())
      return reason;
    if (quantizes_result(p) && p.scale_rule == ScaleRule::search)
      return "scale_rule = search: errors under three scales take the registers that sums wait in";
    if (!is_readable(p.a_layout))
      return fmt::format("a_layout = {}: reads plain and aiter", name_of(p.a_layout));
    if (!is_readable(p.b_layout) && p.b_layout != Layout::aiter_16x16)
      return fmt::format("b_layout = {}: reads plain, aiter and aiter_16x16", name_of(p.b_layout));
    return {};
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> rows = {128, 256, 64};
    if (p.m.hi <= 128) rows = {64, 128, 32};
    if (p.m.hi <= 32) rows = {32, 16, 64};
    if (p.m.hi <= 16) rows = {16, 32, 64};
    std::vector<Parameter> out = {
        {"tile_m", rows, ParameterStage::compile, "rows of D that one block computes"},
        {"tile_n", {128, 256, 64}, ParameterStage::compile, "columns of D that one block computes"},
        {"shape", {16, 32}, ParameterStage::compile, "of the instruction: 16x16x128 or 32x32x64"},
        {"stages", {3, 4, 2}, ParameterStage::compile, "chunks of K in LDS"},
        {"raster",
         {8, 1},
         ParameterStage::compile,
         "rows of tiles walked together, to share B in L2"},
        {"scales",
         {kNone, kBoth, kOfB, kOfA, kShuffledB, kShuffledBTiledA},
         ParameterStage::compile,
         "in tiles (layout aiter): 0 none, 1 both operands', 2 B's, 3 A's; 4, 5: B aiter_16x16, A "
         "plain or aiter"}};
    if (auto splits = splits_axis(p, rows.front(), kUnits)) out.push_back(std::move(*splits));
    return out;
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    const Shares shares(v);
    const auto scales = v.value("scales");
    if (auto reason = refuse_given("a_layout", p.a_layout, a_layout(p, v)); !reason.empty())
      return reason;
    if (auto reason = refuse_given("b_layout", p.b_layout, b_layout(p, v)); !reason.empty())
      return reason;
    if (scales != kNone && p.grouping != Grouping::none)
      return "scales in tiles: rows or tokens of groups begin anywhere";
    if (shares.b_tiled && is_gated(p.epilogue))
      return "scales in tiles: a SwiGLU's gates and values lie apart";
    if (shares.a_tiled && shares.tile_m % 32 != 0) return "a tile of scales has 32 rows";
    const auto wave_m = shares.tile_m / shares.waves_m, wave_n = shares.tile_n / shares.waves_n;
    if (wave_m % shares.shape != 0 || wave_n % shares.shape != 0)
      return "a wave's part is smaller than the instruction's";
    if (is_gated(p.epilogue) && wave_n % (2 * shares.shape) != 0)
      return "a wave needs columns of gates and of values";
    if (quantizes_result(p) && shares.sums() > kMostActivated)
      return "a lane quantises beside 128 sums at most";
    // Compilers stop unrolling there, and sums that are indexed at run time are no registers.
    if (p.epilogue != Epilogue::none && shares.sums() > kMostActivated)
      return "a lane activates 128 sums at most";
    if (auto reason = refuse_quantized_tile(p, shares.tile_n); !reason.empty()) return reason;
    const auto in_passes = passes(p, v);
    const auto along = in_passes == 1 ? shares.tile_m : wave_m / in_passes;
    if (auto reason = refuse_quantized_columns(p, along); !reason.empty()) return reason;
    // hipRTC 6.4 was seen to spill there.
    if (v.value("splits", 1) > 1 && shares.sums() > kMostActivated &&
        (p.accumulate == Accumulate::accumulate || p.bias != Bias::none))
      return "a lane adds C or bias to 128 sums of a shared K at most";
    if (auto reason = refuse_splits(p, split_tile(v), {kChunk}); !reason.empty()) return reason;
    if ((v.value("stages") - 1) * shares.copies() > kMostCopies)
      return "more copies are in flight than a wave can count";
    const auto bytes = lds_bytes(p, v);
    if (bytes > t.shared_bytes)
      return fmt::format("its stages or results need {} bytes of LDS, a block has {}", bytes,
                         t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const Shares shares(v);
    cuda::ConfigText text;
    text.grouping(p);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    text.epilogue(p);
    text.descale(p);
    text.integer("tile_m", shares.tile_m, "what one block computes");
    text.integer("tile_n", shares.tile_n, "");
    text.flag("a_tiled", shares.a_tiled, "A's scales in 32 x 8 tiles");
    text.flag("b_tiled", shares.b_tiled, "B's");
    text.flag("b_shuffled", shares.b_shuffled, "B's codes in panels of 16 rows");
    text.integer("waves_m", shares.waves_m, "how its four waves share it");
    text.integer("waves_n", shares.waves_n, "");
    text.integer("shape", shares.shape, "of the instruction: 16x16x128 or 32x32x64");
    text.integer("stages", v.value("stages"), "chunks of K in LDS");
    text.integer("raster", v.value("raster"), "rows of tiles walked together");
    text.constant("unsigned", "splits", fmt::format("{}", v.value("splits", 1)),
                  "blocks that share a tile's K");
    if (quantizes_result(p)) text.integer("passes", passes(p, v), "in which a tile is quantised");
    const auto name = fmt::format("quarterturn_gemm_mfma_scale_{}_{}x{}", name_of(p.role),
                                  shares.tile_m, shares.tile_n);
    return text.source(p, t, v, "hip/gemm_mfma_scale.h", "gemm_mfma_scale",
                       {name, static_cast<int>(kThreads), static_cast<int>(shares.waves(p)), {}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    const Shares shares(v);
    Launch out;
    out.grid = tile_grid(p, args, shares.tile_m, shares.tile_n);
    out.grid[0] *= static_cast<std::uint32_t>(v.value("splits", 1));
    out.block = {static_cast<std::uint32_t>(kThreads), 1, 1};
    out.shared_bytes = lds_bytes(p, v);
    return out;
  }

  Layout a_layout(const Problem&, const Variant& v) const override {
    return Shares::layout(Shares(v).a_tiled);
  }
  Layout b_layout(const Problem&, const Variant& v) const override {
    const Shares shares(v);
    return shares.b_shuffled ? Layout::aiter_16x16 : Shares::layout(shares.b_tiled);
  }

  // How the matrix cores sum is not published. As other tensor cores do, they may cut the products
  // of a step and the sum so far below the 24th bit of the largest: at most 10 units of 2^-23 for
  // every 8 of K.
  double relative_error(const Problem&, const Variant& v, std::int64_t k) const override {
    return static_cast<double>(ceil_div(k, 8)) * 10 * 0x1p-23 + 6 * 0x1p-24 +
           split_error(v.value("splits", 1));
  }

  std::int64_t workspace_bytes(const Problem& p, const Variant& v,
                               const Sizes& sizes) const override {
    return split_bytes(p, split_tile(v), sizes);
  }

  // Matrix time of whole tiles, with small tiles reading their operands more often; fewer tiles
  // than units (256 where that is not known) leave some without work.
  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    const double tile_m = static_cast<double>(v.value("tile_m")),
                 tile_n = static_cast<double>(v.value("tile_n"));
    const double rows = likely_tiles_down(p, v.value("tile_m")) * tile_m;
    const double columns = static_cast<double>(ceil_div(p.n.hi, v.value("tile_n"))) * tile_n;
    const double reuse = 1.0 + 32.0 / tile_m + 32.0 / tile_n;
    const double overlap = v.value("stages") == 3 ? 1.0 : v.value("stages") == 4 ? 1.01 : 1.15;
    const double raster = v.value("raster") == 8 ? 1.0 : 1.02;
    const double shape = v.value("shape") == 16 ? 1.0 : 1.02;
    const double scales = v.value("scales") == kNone ? 1.0 : 1.005;
    const auto shared = split_cost(p, split_tile(v), {kChunk}, parameters(p, t)[0].values[0],
                                   units > 0 ? units : kUnits);
    const double cost = (rows * columns * static_cast<double>(likely_k(p)) * reuse * overlap *
                             raster * shape * scales * shared.fill * 1e-3 +
                         shared.seconds / kCostSeconds) /
                        shared.idle;
    return quantized_cost(p, cost, kCostSeconds);
  }

 private:
  // Each quantises as many of every wave's rows of the instruction's tiles.
  static std::int64_t passes(const Problem& p, const Variant& v) {
    const Shares shares(v);
    return quantized_passes(p, shares.tile_m, shares.tile_n,
                            shares.tile_m / shares.waves_m / shares.shape);
  }
  static std::int64_t lds_bytes(const Problem& p, const Variant& v) {
    const Shares shares(v);
    return std::max(v.value("stages") * shares.stage_bytes(),
                    quantized_rows_bytes(p, shares.tile_m / passes(p, v), shares.tile_n));
  }
  static SplitTile split_tile(const Variant& v) {
    return {v.value("tile_m"), v.value("tile_n"), 1, v.value("splits", 1)};
  }
};

}  // namespace

const Family& gemm_mfma_scale() {
  static const GemmMfmaScale family;
  return family;
}

}  // namespace quarterturn::hip
