// cuda_gemm_sm100: MXFP4 products as the tensor cores of sm_100 and sm_103 multiply them, in tensor
// memory (templates/cuda/gemm_sm100.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/blackwell.hpp"
#include "generator/cuda/config_text.hpp"
#include "generator/cuda/expanded.hpp"
#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"
#include "generator/quantized_result.hpp"
#include "generator/split_k.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kRows = 128;   // of A and D of a block
constexpr std::int64_t kChunk = 256;  // elements of K in a stage
constexpr std::int64_t kTensorColumns = 512;
constexpr std::int64_t kUnits = 148;       // of a usual chip
constexpr double kCostSeconds = 12.3e-12;  // of a predicted cost of 1, roughly
constexpr std::int64_t kScaleTile = 512;   // bytes of 128 rows by 128 of K

// Scales [entries, tiles of rows, tiles along K, 512] in boxes of two tiles along K by `box_rows`.
TensorMap scale_map(TensorMap::Memory memory, const Problem& p, const qt_tensor& tensor,
                    std::int64_t rows, const qt_args& args, std::int64_t box_rows) {
  const auto along = ceil_div(copy_length(p, std::max<std::int64_t>(args.k, 1), args.groups), 128);
  const auto down = std::max<std::int64_t>(ceil_div(rows, 128), 1);
  const auto all = entries_of(p, args.batch, args.groups);
  const auto entries = memory == TensorMap::Memory::b_scales ? all.b : all.a;
  TensorMap out;
  out.memory = memory;
  out.type = TensorMap::Type::u8;
  out.swizzle = TensorMap::Swizzle::none;
  out.rank = 4;
  out.sizes = {256, static_cast<std::uint64_t>(2 * along), static_cast<std::uint64_t>(down),
               static_cast<std::uint64_t>(entries)};
  const auto row_bytes = static_cast<std::uint64_t>(along * kScaleTile);
  out.strides_bytes = {256, row_bytes,
                       entries > 1 ? static_cast<std::uint64_t>(tensor.scale_batch_stride)
                                   : row_bytes * static_cast<std::uint64_t>(down)};
  out.box = {256, 4, static_cast<std::uint32_t>(box_rows), 1};
  return out;
}

class GemmSm100 final : public Family {
 public:
  std::string_view name() const override { return "cuda_gemm_sm100"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (!has_tcgen05(t)) return "needs sm_100a, sm_100f or sm_103a (tcgen05)";
    if (auto reason = refuse_blocked(p, QuantizedCopies::rows); !reason.empty()) return reason;
    if (p.grouping == Grouping::m_contiguous)
      return "brings scales in tiles of 128 rows, and groups of m_contiguous begin anywhere: use "
             "m_masked";
    if (p.epilogue == Epilogue::swiglu_split && (!p.n.is_static() || p.n.lo % 256 != 0))
      return "brings gates and values in tiles of 128 rows: swiglu_split needs a static n that is "
             "a "
             "multiple of 256 (swiglu_interleaved does not)";
    return {};
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> widths = {128, 256, 192, 64}, sums = {2, 1}, stages = {5, 4, 6, 3, 2};
    if (is_halved(p)) {
      widths = {256};
      sums = {1};
      stages = {4, 3, 2};
    }
    std::vector<std::int64_t> blocks = {1, 2};
    if (p.m.hi <= kRows) blocks = {1};
    std::vector<Parameter> out = {
        {"tile_n", widths, ParameterStage::compile, "columns of D of a tile"},
        {"blocks", blocks, ParameterStage::compile, "of 128 rows that multiply together"},
        {"sums", sums, ParameterStage::compile, "tiles that tensor memory holds"},
        {"stages", stages, ParameterStage::compile, "chunks of 256 of K in flight"},
        {"raster",
         {16, 8},
         ParameterStage::compile,
         "rows of tiles walked together, to share B in L2"}};
    if (auto splits = splits_axis(p, kRows, kUnits)) out.push_back(std::move(*splits));
    return out;
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    if (const auto columns = tensor_columns(v); columns > kTensorColumns)
      return fmt::format("sums and scales need {} columns of tensor memory, there are {}", columns,
                         kTensorColumns);
    if (quantized_width(p, v) == 0) return refuse_quantized_tile(p, v.value("tile_n"));
    if (auto reason = refuse_splits(p, split_tile(v), {kChunk}); !reason.empty()) return reason;
    if (const auto bytes = shared_bytes(p, v); bytes > t.shared_bytes)
      return fmt::format("its stages and results need {} bytes of shared memory, a block has {}",
                         bytes, t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    ConfigText text;
    text.grouping(p);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    text.epilogue(p);
    text.descale(p);
    text.integer("tile_n", v.value("tile_n"), "columns of D of a tile");
    const auto counted = [&](std::string_view name, std::string_view comment) {
      text.constant("unsigned", name, fmt::format("{}", v.value(std::string(name))), comment);
    };
    counted("blocks", "of 128 rows that multiply together");
    counted("sums", "tiles that tensor memory holds");
    counted("stages", "chunks of K in flight");
    counted("raster", "rows of tiles walked together");
    text.constant("unsigned", "splits", fmt::format("{}", v.value("splits", 1)),
                  "blocks, or pairs, that share a tile's K");
    if (quantizes_result(p))
      text.integer("quantized_width", quantized_width(p, v), "columns of z quantised at once");
    const std::string entry =
        fmt::format("quarterturn_gemm_tcgen05_{}_{}_{}x{}", name_of(p.role), name_of(p.d_type),
                    v.value("blocks") * kRows, v.value("tile_n"));
    return text.source(p, t, v, "cuda/gemm_sm100.h", "gemm_sm100_tiles",
                       {entry, 192, 1, {"a_map", "b_map", "a_scale_map", "b_scale_map"}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t units) const override {
    Launch out;
    const auto blocks = v.value("blocks"), tile_n = v.value("tile_n");
    const auto tiles = most_tiles_down(p, args.m, args.batch, args.groups, kRows * blocks) *
                       ceil_div(args.n, tile_n);
    const auto splits = v.value("splits", 1);
    // Of blocks that wait for others each has one part of a tile: split_k.h.
    const auto clusters =
        splits > 1 ? tiles * splits : std::min(tiles, std::max<std::int64_t>(1, units / blocks));
    out.grid = {static_cast<std::uint32_t>(clusters * blocks), 1, 1};
    out.block = {192, 1, 1};
    out.cluster = {static_cast<std::uint32_t>(blocks), 1, 1};
    out.shared_bytes = shared_bytes(p, v);
    out.map_count = 4;
    constexpr auto layout = Layout::scales_128x4;
    const bool halved = is_halved(p);
    out.maps[0] = expanded_map(TensorMap::Memory::a_data, layout, p, args.a, args.m, args, kRows);
    out.maps[1] = expanded_map(TensorMap::Memory::b_data, layout, p, args.b, args.n, args,
                               halved ? kRows : tile_n / blocks);
    out.maps[2] = scale_map(TensorMap::Memory::a_scales, p, args.a, args.m, args, 1);
    out.maps[3] = scale_map(TensorMap::Memory::b_scales, p, args.b, args.n, args,
                            halved ? 1 : ceil_div(tile_n, 128));
    return out;
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

  // Tensor time of whole waves of tiles (of a chip of 148 units where it is not known), in the
  // units of cuda_gemm_mma's model at 16 times its rate: the published ratio of MXFP4 to bf16 by
  // mma.sync is about that.
  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t units) const override {
    const std::int64_t chip = units > 0 ? units : kUnits;
    const auto blocks = v.value("blocks");
    const double tile_n = static_cast<double>(v.value("tile_n"));
    const auto tiles = static_cast<std::int64_t>(likely_tiles_down(p, kRows * blocks)) *
                       ceil_div(p.n.hi, v.value("tile_n")) * blocks;
    const double waves = static_cast<double>(ceil_div(tiles, chip));
    // Operands that shared memory gives for each product.
    const double loads = 1.0 + 64.0 / tile_n + 32.0 / static_cast<double>(kRows * blocks);
    const double overlap =
        v.value("sums") == 2 ? 1.0 : 1.0 + 512.0 / static_cast<double>(likely_k(p) + 1);
    const double depth = v.value("stages") >= 4 ? 1.0 : 1.05;
    const double raster = v.value("raster") == 16 ? 1.0 : 1.002;
    const auto shared = split_cost(p, split_tile(v), {kChunk}, kRows, chip);
    const double cost = waves * static_cast<double>(chip * kRows) * tile_n *
                            static_cast<double>(likely_k(p)) * loads * overlap * depth * raster *
                            shared.waves * 1e-3 / 16.0 +
                        shared.seconds / kCostSeconds;
    return quantized_cost(p, cost, kCostSeconds);
  }

 private:
  static SplitTile split_tile(const Variant& v) {
    return {kRows, v.value("tile_n"), v.value("blocks"), v.value("splits", 1)};
  }
  static bool is_halved(const Problem& p) { return p.epilogue == Epilogue::swiglu_split; }

  // Columns of z that a storing warp quantises at once: the fewest of those it finishes at once
  // that make whole rotation segments, and a part of the tile; 0 where none are.
  static std::int64_t quantized_width(const Problem& p, const Variant& v) {
    const auto tile_n = v.value("tile_n");
    const std::int64_t finished = is_halved(p) || tile_n < 64 ? tile_n : 64;
    for (auto width = finished; width <= tile_n; width += finished)
      if (tile_n % width == 0 && refuse_quantized_tile(p, width).empty()) return width;
    return 0;
  }

  // Tensor100 of gemm_sm100.h.
  static std::int64_t tensor_columns(const Variant& v) {
    const auto tile_n = v.value("tile_n");
    return v.value("sums") * tile_n + v.value("stages") * 2 * (4 + 4 * ceil_div(tile_n, 128));
  }
  // Shared100 of gemm_sm100.h.
  static std::int64_t shared_bytes(const Problem& p, const Variant& v) {
    const auto tile_n = v.value("tile_n"), stages = v.value("stages");
    const auto codes = (kRows + tile_n / v.value("blocks")) * kChunk / 2;
    const auto scales = 2 * kScaleTile * (1 + ceil_div(tile_n, 128));
    const bool narrow = !quantizes_result(p) && p.d_type != DType::f32;
    const bool staged = narrow || p.epilogue != Epilogue::none;
    const auto waiting = 4 * quantized_rows_bytes(p, 16, quantized_width(p, v));
    return stages * (codes + scales + 16) + (staged ? 4 * 2048 : 0) + waiting +
           v.value("sums") * 16 + 8;
  }
};

}  // namespace

const Family& gemm_sm100() {
  static const GemmSm100 family;
  return family;
}

}  // namespace quarterturn::cuda
