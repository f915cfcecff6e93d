// cpu_weight_only: A in high precision as it is, B in MXFP4, binary32 sums. Its kernel text is
// templates/cpu/weight_only.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/cpu/families.hpp"
#include "generator/cpu/tile.hpp"

namespace quarterturn::cpu {
namespace {

class WeightOnly : public Family {
 public:
  std::string_view name() const override { return "cpu_weight_only"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::gemm) return "multiplies by a quantised operand: op = gemm";
    if (bytes_of(p.a_type) == 0) return "needs A in bf16, f16 or f32";
    if (p.b_type != DType::mxfp4) return "needs B in mxfp4";
    if (p.rotation != 0) return "multiplies A as it is: rotation = 0 (else use hadamard_gemm)";
    if (p.a_major != Major::k) return "reads A along K: a_major = k";
    return refuse_product(p, Layout::plain);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    const auto isa = static_cast<Isa>(isas(t).front());
    std::vector<std::int64_t> tile_m{8, 6, 4, 2, 1}, tile_n{48, 32, 16};
    if (isa != Isa::avx512) tile_m = {4, 2, 6, 1}, tile_n = {16, 32};
    return {
        {"isa", isas(t), ParameterStage::compile, "vector width: 512, 256 AVX2, 0 portable"},
        {"tile_m", rows_up_to_m(tile_m, p, 1), ParameterStage::compile,
         "rows whose terms stay in registers"},
        {"tile_n", tile_n, ParameterStage::compile, "columns whose terms stay in registers"},
        {"block_m", rows_up_to_m({48, 96}, p, 48), ParameterStage::compile, "rows of a part"},
        {"part_n", {96, 192, 48}, ParameterStage::compile, "columns of a part"},
        {"prefetch", {8, 0, 16}, ParameterStage::compile, "blocks of K to fetch ahead"},
    };
  }

  std::string illegal(const Problem&, const Target&, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    const auto rows = v.value("tile_m"), panels = v.value("tile_n") / kPanel;
    // A block's terms, a few decoded weights of each panel, one broadcast of A.
    const auto needed = rows * panels + 2 * panels + 1;
    if (isa == Isa::avx512 && needed > 32)
      return fmt::format("a tile of {} x {} needs {} registers, there are 32", rows,
                         v.value("tile_n"), needed);
    if (isa != Isa::avx512 && rows * panels > 6) return "16 registers hold no tile this large";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", isa_type(isa), "");
    text.product(p);
    text.constant("qt::cpu::DType", "a_type", dtype_text(p.a_type), "of A");
    text.descale(p.scale_rule == ScaleRule::ts34 ? "4.0f / 3.0f" : "1.0f",
                 "takes 3/4 of TS34 out of the weights");
    text.integer("tile_m", v.value("tile_m"), "rows whose terms stay in registers");
    text.integer("tile_n", v.value("tile_n"), "columns whose terms stay in registers");
    text.integer("block_m", v.value("block_m"), "rows of a part");
    text.integer("part_n", v.value("part_n"), "columns of a part");
    text.integer("prefetch", v.value("prefetch"), "blocks of K to fetch ahead");
    return text.source(p, t, v, {"args.h", std::string(isa_text(isa)), "cpu/weight_only.h"},
                       "qt::cpu::weight_only");
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.parts = gemm_parts(p, v, args.batch, args.m, args.n);
    return out;
  }

  Layout b_layout(const Problem&, const Variant&) const override { return Layout::panel16; }

  // Cycles of AVX-512: 32 multiply-adds for each row and panel of a block, two a cycle; two
  // operations to decode each of 32 vectors of weights once for each tile; the broadcasts of A.
  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t units) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    const double width = isa == Isa::avx512 ? 1.0 : isa == Isa::avx2 ? 2.5 : 8.0;
    const auto m = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1));
    const double rows = std::min(m, static_cast<double>(v.value("tile_m")));
    const double panels = static_cast<double>(v.value("tile_n")) / kPanel;
    return typical(p.batch) * typical(p.n) / kPanel * typical(p.k) / kBlock * width *
           (16 * m + 32 * std::ceil(m / rows) + 16 * m / panels) * starved(p, v, units);
  }
};

}  // namespace

const Family& weight_only() {
  static const WeightOnly family;
  return family;
}

}  // namespace quarterturn::cpu
