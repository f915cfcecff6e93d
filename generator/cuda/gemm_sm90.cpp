// cuda_gemm_e5m2, cuda_gemm_int8 and cuda_gemm_bf16: Hopper's warp-group products over expanded
// operands (templates/cuda/gemm_sm90.h).
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/expanded.hpp"
#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"
#include "generator/quantized_result.hpp"
#include "generator/split_k.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kChunk = 128;      // bytes of K in a stage: one swizzle span
constexpr std::int64_t kRegisters = 232;  // of a multiplying thread, less than the 240 it gets
constexpr std::int64_t kOtherRegisters = 40;
constexpr std::int64_t kBlockRegisters = 64;   // of a block of 32 that is quantised
constexpr std::int64_t kRowRegisters = 40;     // of a row's aux or kept z, while it is activated
constexpr std::int64_t kLongestInt8 = 131072;  // of K before int32 sums of 96 * 96 could overflow
constexpr std::int64_t kUnits = 132;           // of an H200
constexpr std::int64_t kShortTile = 128;       // rows of the shorter tile
constexpr double kQuantising = 0.9;            // of a product that quantises its result
constexpr double kQuantisingActivated = 1.1;   // and activates it
constexpr double kCostSeconds = 12.3e-12;      // of a predicted cost of 1, on an H200

class GemmSm90 final : public Family {
 public:
  explicit GemmSm90(Layout layout) : layout_(layout) {}

  std::string_view name() const override {
    return is_int8() ? "cuda_gemm_int8" : is_bf16() ? "cuda_gemm_bf16" : "cuda_gemm_e5m2";
  }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.arch != "sm_90a") return "needs sm_90a (wgmma)";
    if (p.op != Op::gemm && p.op != Op::gemm_quantize)
      return "multiplies quantised operands: op = gemm or gemm_quantize";
    if (quantizes_result(p) && !is_bf16())
      return "leaves rows out of its window to another kernel, so D is quantised behind both";
    if (auto reason = refuse_quantized_result(p, {Layout::plain, Layout::scales_128x4});
        !reason.empty())
      return reason;
    if (p.a_type != DType::mxfp4 || p.b_type != DType::mxfp4) return "needs both operands in mxfp4";
    if (p.grouping != Grouping::none && p.epilogue != Epilogue::none)
      return "has no activation in the epilogue of groups";
    if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
    if (!quantizes_result(p) && p.d_layout != Layout::plain) return "writes D row-major";
    if (is_int8() && p.spread == Spread::any)
      return "its window of 4 binades a row is for spread = narrow (rotated forward operands)";
    if (is_e5m2() && p.contract == Contract::exact)
      return "FP8 accumulation is not contract = exact";
    if (is_int8() && p.k.hi > kLongestInt8)
      return fmt::format("int32 sums hold K up to {}", kLongestInt8);
    if (auto reason = refuse_layout("a_layout", p.a_layout, layout_); !reason.empty())
      return reason;
    return refuse_layout("b_layout", p.b_layout, layout_);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> widths = {192, 256, 160, 128, 96, 64};
    std::vector<std::int64_t> promote = {4, 2};
    if (!is_e5m2()) {
      widths = {256, 192, 160, 128, 96, 64};
      promote = {0};
    } else if (p.k.hi <= 4 * kChunk) {
      promote = {0};
    }
    std::vector<Parameter> out = {
        {"tile_m", {128, 256}, ParameterStage::compile, "rows of D of a block"},
        {"tile_n", widths, ParameterStage::compile, "columns of D of a block"},
        {"stages", {4, 3, 5, 6, 8}, ParameterStage::compile, "tiles of 128 bytes of K in flight"},
        {"promote", promote, ParameterStage::compile,
         "times 128 of K that the tensor core sums; 0 all of it"},
        {"pieces", {1, 2}, ParameterStage::compile, "parts of the columns multiplied in turn"},
        {"cluster", {1, 2}, ParameterStage::compile, "blocks that share B's tile"},
        {"raster",
         {16, 8, 32},
         ParameterStage::compile,
         "rows of tiles walked together, to share B in L2"}};
    // Weight gradients have small results and long K; few tokens have families of their own.
    if (p.role == Role::wgrad)
      if (auto splits = splits_axis(p, kShortTile, kUnits)) out.push_back(std::move(*splits));
    return out;
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    const auto tile_m = v.value("tile_m"), tile_n = v.value("tile_n");
    const auto promote = v.value("promote"), pieces = v.value("pieces");
    if (pieces == 2 && promote == 0) return "pieces are for promoted sums";
    if (pieces == 2 && tile_m != 128) return "pieces are for tiles of 128 rows";
    if (pieces == 2 && v.value("stages") < 2 * promote)
      return "pieces hold all stages between promotions, and as many must be on their way";
    if (pieces == 2 && tile_n % 64 != 0)
      return "halves of the tile must be multiples of 32 columns";
    const auto sums = tile_m / 128 * tile_n / 2;
    const auto registers =
        sums + (promote == 0 ? 0 : sums / pieces) + kOtherRegisters + (tile_m > 128 ? 8 : 0) +
        (v.value("splits", 1) > 1 ? 8 : 0) +
        (is_gated(p.epilogue) && p.accumulate == Accumulate::accumulate ? 16 : 0);
    if (registers > kRegisters)
      return fmt::format("sums of a {} x {} tile need {} registers, {} are there", tile_m, tile_n,
                         registers, kRegisters);
    // A thread with two rows of fragments reads C and bias of both beside its sums.
    const auto adding = sums + kOtherRegisters + 8 + addend_registers(p);
    if (tile_m > 128 && p.epilogue == Epilogue::none && adding > kRegisters)
      return fmt::format(
          "C and bias beside the sums of a {} x {} tile need {} registers, {} are there", tile_m,
          tile_n, adding, kRegisters);
    // When they are finished, what promotion added to is free again.
    const auto finishing = sums + kOtherRegisters + kRowRegisters;
    if (reads_or_keeps_z(p) && finishing > kRegisters)
      return fmt::format(
          "finishing a {} x {} tile beside aux or z needs {} registers, {} are there", tile_m,
          tile_n, finishing, kRegisters);
    if (quantizes_result(p)) {
      if (tile_m > 128) return "quantises tiles of 128 rows";
      if (quantized_width(p, v) == 0) return refuse_quantized_tile(p, tile_n);
      const auto quantising = sums + kOtherRegisters + kBlockRegisters;
      if (quantising > kRegisters)
        return fmt::format(
            "quantising beside the sums of a {} x {} tile needs {} registers, {} are there", tile_m,
            tile_n, quantising, kRegisters);
    }
    if (auto reason = refuse_splits(p, split_tile(v), k_steps(v)); !reason.empty()) return reason;
    if (v.value("cluster") == 2 && tile_n % 16 != 0)
      return "halves of B's tile must be whole swizzle groups";
    if (v.value("cluster") == 2 && p.m.hi <= tile_m) return "one row of tiles has nothing to share";
    if (const auto bytes = shared_bytes(p, v); bytes > t.shared_bytes)
      return fmt::format("its stages need {} bytes of shared memory, a block has {}", bytes,
                         t.shared_bytes);
    if (v.value("stages") > 4 && shared_bytes(p, v, v.value("stages") - 2) > t.shared_bytes / 2 &&
        tile_m * tile_n >= 128 * 128 && v.value("stages") > 6)
      return "more stages than hide the latency";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const std::string entry =
        fmt::format("quarterturn_gemm_{}_{}_{}_{}x{}", element_name(layout_), name_of(p.role),
                    name_of(p.d_type), v.value("tile_m"), v.value("tile_n"));
    ConfigText text;
    text.constant("qt::cuda::Expanded", "element", element_text(layout_), "");
    text.dimension("m", p.m);
    text.dimension("n", p.n);
    text.dimension("k", p.k);
    text.grouping(p);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    text.epilogue(p);
    text.descale(p);
    text.integer("tile_m", v.value("tile_m"), "rows of D of a block");
    text.integer("tile_n", v.value("tile_n"), "columns");
    const auto counted = [&](std::string_view name, std::string_view comment) {
      text.constant("unsigned", name, fmt::format("{}", v.value(std::string(name))), comment);
    };
    counted("stages", "tiles of 128 bytes of K in flight");
    counted("promote", "times 128 of K that the tensor core sums; 0 all of it");
    counted("pieces", "parts of the columns multiplied in turn");
    counted("cluster", "blocks that share B's tile");
    counted("raster", "rows of tiles walked together");
    text.constant("unsigned", "splits", fmt::format("{}", v.value("splits", 1)),
                  "blocks that share a tile's K");
    if (quantizes_result(p))
      text.integer("quantized_width", quantized_width(p, v), "columns of z quantised at once");
    return text.source(p, t, v, "cuda/gemm_sm90.h", "gemm_sm90",
                       {entry, 384, 1, {"a_map", "b_map"}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t units) const override {
    Launch out;
    const auto cluster = v.value("cluster");
    const bool split = p.epilogue == Epilogue::swiglu_split;  // B's tile comes in two slabs
    const auto room = std::max<std::int64_t>(1, units / cluster);
    const auto splits = v.value("splits", 1);
    const auto items = most_tiles(p, v, args) * splits;
    // Of blocks that wait for others each has one part of a tile: split_k.h.
    const auto clusters = splits > 1 ? items : std::min(items, room);
    out.grid = {static_cast<std::uint32_t>(clusters * cluster), 1, 1};
    out.block = {384, 1, 1};
    out.cluster = {static_cast<std::uint32_t>(cluster), 1, 1};
    out.shared_bytes = shared_bytes(p, v);
    out.map_count = 2;
    out.maps[0] = expanded_map(TensorMap::Memory::a_data, layout_, p, args.a, args.m, args,
                               v.value("tile_m"));
    out.maps[1] = expanded_map(TensorMap::Memory::b_data, layout_, p, args.b, args.n, args,
                               split ? v.value("tile_n") / 2 : v.value("tile_n") / cluster);
    return out;
  }

  Layout a_layout(const Problem&, const Variant&) const override { return layout_; }
  Layout b_layout(const Problem&, const Variant&) const override { return layout_; }

  std::int64_t workspace_bytes(const Problem& p, const Variant& v,
                               const Sizes& sizes) const override {
    return split_bytes(p, split_tile(v), sizes);
  }

  std::optional<Variant> stand_in(const Problem&, const Variant&) const override {
    if (is_bf16()) return {};
    return Variant{std::string(cuda::stand_in().name()), cuda::stand_in().revision(), {}};
  }

  // int8: the integer sum is converted once and multiplied three times. E5M2: in each product of
  // 32, those and the sum so far are cut below the largest one's 13th fraction bit, and the result
  // once more when it is promoted. Data whose block scales lie within a few binades lose nothing:
  // their sums over 512 need no more bits. bf16: as cuda_gemm_mma. Parts of a shared K are added
  // in binary32, integers exactly.
  double relative_error(const Problem& p, const Variant& v, std::int64_t k) const override {
    const double joined = split_error(v.value("splits", 1));
    if (is_bf16()) return gemm_mma().relative_error(p, {}, k) + joined;
    constexpr double epilogue = 6 * 0x1p-24;
    if (is_int8()) return epilogue;
    const auto chunk = v.value("promote") == 0 ? k : v.value("promote") * kChunk;
    const auto steps = ceil_div(std::min(chunk, std::max<std::int64_t>(k, 1)), 32);
    const auto chunks = chunk == 0 ? 0 : ceil_div(k, chunk);
    return (33.0 * static_cast<double>(steps) + 1) * 0x1p-13 +
           static_cast<double>(chunks) * 0x1p-24 + joined + epilogue;
  }

  // Tensor time of whole waves of tiles, with what promotion and narrow tiles were measured to cost
  // on an H200.
  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t units) const override {
    const std::int64_t chip = units > 0 ? units : kUnits;
    const double tile_m = static_cast<double>(v.value("tile_m") * v.value("cluster"));
    const double tile_n = static_cast<double>(v.value("tile_n"));
    const double count =
        likely_tiles_down(p, v.value("tile_m") * v.value("cluster")) *
        static_cast<double>(ceil_div(p.n.hi, v.value("tile_n")) * v.value("cluster"));
    const double waves = static_cast<double>(ceil_div(static_cast<std::int64_t>(count), chip));
    const double area = tile_m / static_cast<double>(v.value("cluster")) * tile_n;
    double factor = is_int8() ? 0.92 : is_bf16() ? 1.49 : 1.0;
    factor *= 1.0 + 2000.0 / area;  // operands read again for each tile
    // Narrower products read their operands faster than shared memory gives them.
    const double width = tile_n / static_cast<double>(v.value("pieces"));
    if (width < 128) factor *= 128 / width * 1.03;
    factor *= v.value("pieces") == 2 ? 1.06 : v.value("promote") == 2 ? 1.011 : 1.01;
    const auto stages = v.value("stages");
    // Parts of a shared K keep the L2 cache busy: blocks that share B's tile ask it for less.
    const bool is_part = v.value("splits", 1) > 1;
    factor *=
        stages < 4 ? 1.05 : 1.0 + 0.001 * static_cast<double>(std::abs(stages - (is_part ? 5 : 4)));
    factor *= v.value("cluster") == 1 ? 1.0 : is_part ? 0.98 : 1.01;
    factor *= v.value("raster") == 16 ? 1.0 : 1.002;
    const auto shared = split_cost(p, split_tile(v), k_steps(v), kShortTile, chip);
    // In the units of cuda_gemm_mma's model: multiply-adds over 1000, at 8 times its rate.
    const double cost = waves * static_cast<double>(chip) * area *
                            static_cast<double>(likely_k(p)) * factor * shared.waves * 1e-3 / 8.0 +
                        shared.seconds / kCostSeconds;
    if (!quantizes_result(p)) return cost;
    // Beside a step that quantises, 8192 x 28672 x 4096 took 15 % less on an H200 without an
    // activation, 1 % less with GELU and 19 % more with SwiGLU.
    return cost * (p.epilogue == Epilogue::none ? kQuantising : kQuantisingActivated);
  }

 private:
  // That NVRTC 13 was seen to take for them, whose loads it puts in front.
  static std::int64_t addend_registers(const Problem& p) {
    const bool wide = p.d_type == DType::f32;
    return (p.accumulate != Accumulate::accumulate ? 0
            : wide                                 ? 40
                                                   : 28) +
           (p.bias == Bias::per_column && wide ? 28 : 0);
  }
  static bool reads_or_keeps_z(const Problem& p) {
    return is_derivative(p.epilogue) || p.pre_activation == PreActivation::kept;
  }
  static SplitTile split_tile(const Variant& v) {
    return {v.value("tile_m"), v.value("tile_n"), v.value("cluster"), v.value("splits", 1)};
  }
  KSteps k_steps(const Variant& v) const {
    return {is_bf16() ? kChunk / 2 : kChunk, std::max<std::int64_t>(v.value("promote"), 1)};
  }
  bool is_int8() const { return layout_ == Layout::int8_rows; }
  bool is_bf16() const { return layout_ == Layout::bf16; }
  bool is_e5m2() const { return layout_ == Layout::e5m2; }

  // Of a cluster.
  static std::int64_t most_tiles(const Problem& p, const Variant& v, const qt_args& args) {
    return most_tiles_down(p, args.m, args.batch, args.groups,
                           v.value("tile_m") * v.value("cluster")) *
           ceil_div(args.n, v.value("tile_n"));
  }

  // Shared90 of gemm_sm90.h.
  static std::int64_t shared_bytes(const Problem& p, const Variant& v, std::int64_t stages) {
    const auto tile_m = v.value("tile_m"), tile_n = v.value("tile_n");
    const bool narrow = !quantizes_result(p) && p.d_type != DType::f32;
    const bool staged = narrow || p.epilogue != Epilogue::none;
    const auto waiting = 8 * quantized_rows_bytes(p, 16, quantized_width(p, v));
    return stages * (tile_m + tile_n) * kChunk + (staged ? 8 * 2048 : 0) + waiting +
           2 * 2 * tile_n * 4 + stages * 16;
  }
  // Columns of z that a warp quantises at once: the fewest 32s that make whole rotation segments,
  // and a part of the tile; 0 where none are.
  static std::int64_t quantized_width(const Problem& p, const Variant& v) {
    const auto tile_n = v.value("tile_n");
    const std::int64_t least = p.epilogue == Epilogue::swiglu_split ? tile_n : 64;
    for (auto width = std::min(least, tile_n); width <= tile_n; width += 32)
      if (tile_n % width == 0 && refuse_quantized_tile(p, width).empty()) return width;
    return 0;
  }
  static std::int64_t shared_bytes(const Problem& p, const Variant& v) {
    return shared_bytes(p, v, v.value("stages"));
  }

  Layout layout_;
};

}  // namespace

const Family& gemm_e5m2() {
  static const GemmSm90 family(Layout::e5m2);
  return family;
}
const Family& gemm_int8() {
  static const GemmSm90 family(Layout::int8_rows);
  return family;
}

const Family& gemm_bf16() {
  static const GemmSm90 family(Layout::bf16);
  return family;
}

}  // namespace quarterturn::cuda
