// cpu_gemm: both operands MXFP4, exact block sums in integers. Its kernel text is
// templates/cpu/gemm.h.
#include "generator/cpu/families.hpp"
#include "generator/cpu/tile.hpp"

namespace quarterturn::cpu {
namespace {

class Gemm : public Family {
 public:
  std::string_view name() const override { return "cpu_gemm"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::gemm) return "multiplies quantised operands: op = gemm";
    if (p.a_type != DType::mxfp4 || p.b_type != DType::mxfp4) return "needs both operands in mxfp4";
    return refuse_product(p, Layout::int8_blocks);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    auto out = tile_parameters(p, t);
    out.push_back({"block_m", rows_up_to_m({96, 48, 192, 384}, p, 48), ParameterStage::compile,
                   "rows of a part"});
    out.push_back({"part_n", {96, 192, 384, 48}, ParameterStage::compile, "columns of a part"});
    return out;
  }

  std::string illegal(const Problem&, const Target&, const Variant& v) const override {
    return illegal_tile(v);
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", isa_type(isa), "");
    text.product(p);
    text.descale(p.scale_rule == ScaleRule::ts34 ? "16.0f / 9.0f" : "1.0f",
                 "takes 3/4 of TS34 out of both operands");
    add_tile(text, v);
    return text.source(p, t, v, {"args.h", std::string(isa_text(isa)), "cpu/gemm.h"},
                       "qt::cpu::gemm");
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.parts = gemm_parts(p, v, args.batch, args.m, args.n);
    return out;
  }

  Layout a_layout(const Problem&, const Variant&) const override { return Layout::int8_blocks; }
  Layout b_layout(const Problem&, const Variant&) const override { return Layout::panel16; }

  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    return tile_cost(p, t, v) * starved(p, v, units);
  }
};

}  // namespace

const Family& gemm() {
  static const Gemm family;
  return family;
}

}  // namespace quarterturn::cpu
