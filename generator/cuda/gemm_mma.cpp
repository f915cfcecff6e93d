// cuda_gemm_mma: the exact GEMM that every NVIDIA GPU from sm_80 on runs
// (templates/cuda/gemm_mma.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kStageRowPacked = 80;
constexpr std::int64_t kStageRowWide = 272;
constexpr std::int64_t kUnits = 132;  // of a usual chip

class GemmMma final : public Family {
 public:
  std::string_view name() const override { return "cuda_gemm_mma"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::gemm) return "computes gemm only";
    if (capability(t) < 80) return "needs sm_80 or later (bf16 mma.sync)";
    if (p.a_type != DType::mxfp4 && p.a_type != DType::bf16)
      return "A must be mxfp4, or bf16 (weight-only)";
    if (p.b_type != DType::mxfp4) return "B must be mxfp4";
    if (p.grouping != Grouping::none && p.epilogue != Epilogue::none)
      return "has no activation in the epilogue of groups";
    if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
    if (p.a_layout != Layout::chosen && p.a_layout != Layout::plain)
      return "reads A in layout plain";
    if (p.b_layout != Layout::chosen && p.b_layout != Layout::plain)
      return "reads B in layout plain";
    return {};
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    const bool small = p.m.hi <= 32;
    std::vector<std::int64_t> rows =
        small ? std::vector<std::int64_t>{16, 64, 128} : std::vector<std::int64_t>{128, 64, 16};
    return {{"tile_m", rows, ParameterStage::compile, "rows of D that one block computes"},
            {"tile_n", {128, 64}, ParameterStage::compile, "columns of D that one block computes"},
            {"stages", {4, 3, 2}, ParameterStage::compile, "chunks of K in flight"},
            {"raster",
             {8, 1},
             ParameterStage::compile,
             "rows of tiles walked together, to share B in L2"}};
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    if (is_gated(p.epilogue) && v.value("tile_m") < 64 && v.value("tile_n") < 128)
      return "eight warps side by side need 16 columns each, gates and values";
    const auto bytes = shared_bytes(p, v);
    if (bytes > t.shared_bytes)
      return fmt::format("its stages need {} bytes of shared memory, a block has {}", bytes,
                         t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto tile_m = v.value("tile_m");
    const auto warps_m = tile_m >= 64 ? 2 : 1;
    Source source;
    source.language = Language::cuda;
    source.entry =
        fmt::format("quarterturn_gemm_mma_{}_{}x{}", name_of(p.role), tile_m, v.value("tile_n"));
    source.text = fmt::format(
        R"(// {problem}
// {variant} for {target}
#include "cuda/gemm_mma.h"

struct Config {{
  static constexpr auto a_type = qt::cuda::GemmType::{a_type};
  static constexpr auto grouping = qt::Grouping::{grouping};  // of rows or tokens by experts
  static constexpr long long k_unit = {k_unit};               // k is padded to
  static constexpr auto output = qt::cuda::DType::{d_type};  // of D
  static constexpr auto side = qt::cuda::DType::{side};      // of C, bias, aux and z
  static constexpr bool accumulate = {accumulate};
  static constexpr bool bias = {bias};
  static constexpr auto epilogue = qt::Epilogue::{epilogue};  // from z to D
  static constexpr bool keeps_z = {keeps_z};
  static constexpr bool fast_activation = {fast_activation};
  static constexpr float descale = {descale};  // takes 3/4 of TS34 out of quantised operands
  static constexpr int tile_m = {tile_m}, tile_n = {tile_n};    // what one block computes
  static constexpr int warps_m = {warps_m}, warps_n = {warps_n};  // how its eight warps share it
  static constexpr int stages = {stages};                  // chunks of K in flight
  static constexpr int raster = {raster};                  // rows of tiles walked together
}};

extern "C" __global__ void __launch_bounds__(256) {entry}(const __grid_constant__ qt_args args) {{
  qt::cuda::gemm_mma_tile(Config{{}}, args);
}}
)",
        fmt::arg("problem", p.key()), fmt::arg("variant", v.text()), fmt::arg("target", t.key()),
        fmt::arg("grouping", name_of(p.grouping)), fmt::arg("k_unit", unit_of(p)),
        fmt::arg("a_type", name_of(p.a_type)), fmt::arg("d_type", name_of(p.d_type)),
        fmt::arg("side", name_of(side_type(p))), fmt::arg("epilogue", name_of(p.epilogue)),
        fmt::arg("keeps_z", p.pre_activation == PreActivation::kept),
        fmt::arg("fast_activation", has_fast_activation(p)),
        fmt::arg("accumulate", p.accumulate == Accumulate::accumulate),
        fmt::arg("bias", p.bias == Bias::per_column),
        fmt::arg("descale", p.scale_rule != ScaleRule::ts34 ? "1.0f"
                            : p.a_type == DType::mxfp4      ? "16.0f / 9.0f"
                                                            : "4.0f / 3.0f"),
        fmt::arg("tile_m", tile_m), fmt::arg("tile_n", v.value("tile_n")),
        fmt::arg("warps_m", warps_m), fmt::arg("warps_n", 8 / warps_m),
        fmt::arg("stages", v.value("stages")), fmt::arg("raster", v.value("raster")),
        fmt::arg("entry", source.entry));
    return source;
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch launch;
    launch.grid = tile_grid(p, args, v.value("tile_m"), v.value("tile_n"));
    launch.block = {256, 1, 1};
    launch.shared_bytes = shared_bytes(p, v);
    return launch;
  }

  // In each step of 8 (sm_80) or 16 products, those and the sum so far are cut below the 24th bit
  // of the largest, and the result once more: at most 10 units of 2^-23 for every 8 of K.
  double relative_error(const Problem&, const Variant&, std::int64_t k) const override {
    return static_cast<double>(ceil_div(k, 8)) * 10 * 0x1p-23 + 6 * 0x1p-24;
  }

  // Tensor time of whole tiles, with small tiles reading their operands more often.
  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t units) const override {
    const double tile_m = static_cast<double>(v.value("tile_m")),
                 tile_n = static_cast<double>(v.value("tile_n"));
    const double rows = likely_tiles_down(p, v.value("tile_m")) * tile_m;
    const double columns = static_cast<double>(ceil_div(p.n.hi, v.value("tile_n"))) * tile_n;
    const double reuse = 1.0 + 32.0 / tile_m + 32.0 / tile_n;
    const double overlap = v.value("stages") == 4 ? 1.0 : v.value("stages") == 3 ? 1.03 : 1.15;
    const double raster = v.value("raster") == 8 ? 1.0 : 1.02;
    // Few rows wait for their weights, whichever units read them.
    const double tiles = rows * columns / (tile_m * tile_n) * static_cast<double>(p.batch.hi);
    const double chip = static_cast<double>(units > 0 ? units : kUnits);
    const double fill = p.m.hi > 64 ? std::max(1.0, chip / tiles) : 1.0;
    return fill * rows * columns * static_cast<double>(likely_k(p)) * reuse * overlap * raster *
           1e-3;
  }

 private:
  static std::int64_t shared_bytes(const Problem& p, const Variant& v) {
    const auto a_row = p.a_type == DType::bf16 ? kStageRowWide : kStageRowPacked;
    return v.value("stages") * (v.value("tile_m") * a_row + v.value("tile_n") * kStageRowPacked);
  }
};

}  // namespace

const Family& gemm_mma() {
  static const GemmMma family;
  return family;
}

}  // namespace quarterturn::cuda
