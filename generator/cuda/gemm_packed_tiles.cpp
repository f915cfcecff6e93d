// cuda_gemm_packed_tiles, ..._int8 and ..._bf16: many tokens against packed weights on Hopper
// (templates/cuda/gemm_packed_tiles.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/families.hpp"
#include "generator/cuda/packed.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kStripes = 2;  // of gemm_packed_tiles.h

class GemmPackedTiles final : public Family {
 public:
  explicit GemmPackedTiles(Layout a_layout) : layout_(a_layout) {}

  std::string_view name() const override {
    return is_int8()   ? "cuda_gemm_packed_tiles_int8"
           : is_bf16() ? "cuda_gemm_packed_tiles_bf16"
                       : "cuda_gemm_packed_tiles";
  }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    return refuse_packed(p, t, layout_);
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override {
    std::vector<std::int64_t> tokens = {192, 160, 128, 96}, stages = {5, 4, 6}, promote = {4, 2};
    if (is_int8()) {
      tokens = {256, 192, 160, 128, 96};
      stages = {4, 5, 6};
      promote = {0};
    }
    if (is_bf16()) {
      tokens = {256, 192, 128, 64};
      stages = {3, 4, 5};
      promote = {0};
    }
    return {{"tokens", tokens, ParameterStage::compile, "of a tile of 128 weights"},
            {"stages", stages, ParameterStage::compile, "chunks of 128 of K in flight"},
            {"promote", promote, ParameterStage::compile,
             "times 128 of K that the tensor core sums; 0 all of it"},
            {"raster", {8, 4, 16}, ParameterStage::compile, "tiles of tokens walked together"}};
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    if (const auto bytes = shared_bytes(p, v); bytes > t.shared_bytes)
      return fmt::format("its stages need {} bytes of shared memory, a block has {}", bytes,
                         t.shared_bytes);
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const std::string entry =
        fmt::format("quarterturn_gemm_packed_tiles_{}_{}_{}_{}x{}", element_name(layout_),
                    name_of(p.role), name_of(p.d_type), v.value("tokens"), kStripes * kStripe);
    ConfigText text;
    describe_packed(text, p, layout_);
    text.integer("tokens", v.value("tokens"), "of a tile");
    const auto counted = [&](std::string_view name, std::string_view comment) {
      text.constant("unsigned", name, fmt::format("{}", v.value(std::string(name))), comment);
    };
    counted("stages", "chunks of 128 of K in flight");
    counted("promote", "times 128 of K that the tensor core sums; 0 all of it");
    counted("raster", "tiles of tokens walked together");
    return text.source(p, t, v, "cuda/gemm_packed_tiles.h", "gemm_packed_tiles",
                       {entry, 384, 1, {"a_map"}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t units) const override {
    Launch out;
    const auto tiles = ceil_div(args.n, kStripes * kStripe) * ceil_div(args.m, v.value("tokens"));
    out.grid = {static_cast<std::uint32_t>(std::min(units, tiles)), 1, 1};
    out.block = {384, 1, 1};
    out.shared_bytes = shared_bytes(p, v);
    out.map_count = 1;
    out.maps[0] = a_map_of(p, layout_, args, v.value("tokens"));
    return out;
  }

  Layout a_layout(const Problem& p, const Variant&) const override {
    return takes_given(p) ? Layout::plain : layout_;
  }
  Layout b_layout(const Problem&, const Variant&) const override { return Layout::permuted; }

  double relative_error(const Problem& p, const Variant& v, std::int64_t k) const override {
    if (is_int8()) return Family::relative_error(p, v, k);  // what does not fit
    if (is_bf16()) return gemm_mma().relative_error(p, {}, k);
    Variant same;
    same.values = {{"promote", v.value("promote")}};
    return gemm_e5m2().relative_error(p, same, k);
  }

  // cuda_gemm_e5m2's model, slower by what decoding was measured to cost on an H200.
  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t units) const override {
    const std::int64_t chip = units > 0 ? units : 132;
    const auto tokens = v.value("tokens");
    const auto count =
        ceil_div(std::max<std::int64_t>(p.m.hi, 1), tokens) * ceil_div(p.n.hi, kStripes * kStripe);
    const double area = static_cast<double>(tokens * kStripes * kStripe);
    double factor = (1.0 + 2000.0 / area) * (is_int8() ? 1.04 : 1.2);
    if (tokens < 128) factor *= 128.0 / static_cast<double>(tokens);
    if (is_bf16()) factor = 1.42 * (1.0 + 80.0 / static_cast<double>(tokens));
    factor *= v.value("promote") != 2 ? 1.0 : 1.002;
    factor *= v.value("stages") == (is_int8() ? 4 : is_bf16() ? 3 : 5) ? 1.0 : 1.002;
    factor *= v.value("raster") == 8 ? 1.0 : 1.001;
    return static_cast<double>(ceil_div(count, chip) * chip) * area * static_cast<double>(p.k.hi) *
           factor * 1e-3 / 8.0;
  }

 private:
  bool is_int8() const { return layout_ == Layout::int8_rows; }
  bool is_bf16() const { return layout_ == Layout::bf16; }
  // Shared of gemm_packed_tiles.h.
  std::int64_t shared_bytes(const Problem& p, const Variant& v) const {
    const auto tokens = v.value("tokens");
    const auto elements = is_bf16() ? 2 * tokens : tokens;  // bytes of each of K
    const auto factors = is_bf16() ? 0 : kStripes * tokens * 4;
    return v.value("stages") * (elements * kChunk + kStripes * kChunkBytes + 16) + factors +
           (p.d_type == DType::f32 ? 0 : 8 * 16 * 48);
  }

  Layout layout_;
};

}  // namespace

const Family& gemm_packed_tiles() {
  static const GemmPackedTiles family(Layout::e5m2);
  return family;
}
const Family& gemm_packed_tiles_int8() {
  static const GemmPackedTiles family(Layout::int8_rows);
  return family;
}

const Family& gemm_packed_tiles_bf16() {
  static const GemmPackedTiles family(Layout::bf16);
  return family;
}

}  // namespace quarterturn::cuda
