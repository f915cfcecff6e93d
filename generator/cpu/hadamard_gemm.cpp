// cpu_hadamard_gemm: quantises A on the way and multiplies by a prepared weight, in one kernel. Its
// kernel text is templates/cpu/hadamard_gemm.h.
#include <fmt/format.h>

#include <algorithm>

#include "generator/cpu/families.hpp"
#include "generator/cpu/lane_text.hpp"
#include "generator/cpu/tile.hpp"
#include "templates/cpu/gemm_parts.h"

namespace quarterturn::cpu {
namespace {

// Each part quantises its rows again. Below this many columns that costs more than the pass over A
// and the wait between two kernels which it saves (480 columns: 20 % more at 16 rows, measured).
constexpr std::int64_t kLeastColumns = 960;

class HadamardGemm : public Family {
 public:
  std::string_view name() const override { return "cpu_hadamard_gemm"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::hadamard_gemm) return "quantises A and multiplies: op = hadamard_gemm";
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (p.b_type != DType::mxfp4) return "needs a prepared weight: b_type = mxfp4";
    if (p.a_major != Major::k) return "reads A along K: a_major = k";
    if (p.scale_block != ScaleBlock::b1x32) return "quantises a row at a time: scale_block = 1x32";
    return refuse_product(p, Layout::plain);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    auto out = tile_parameters(p, t);
    out.push_back({"block_m", rows_up_to_m({48, 96, 192}, p, 48), ParameterStage::compile,
                   "rows of a part, which it quantises for itself"});
    std::vector<std::int64_t> part_n;
    for (const std::int64_t share : {2, 1, 4}) {
      const auto columns = round_up(ceil_div(p.n.hi, share), 96);
      if (columns >= std::min(kLeastColumns, round_up(p.n.hi, 96)) &&
          std::find(part_n.begin(), part_n.end(), columns) == part_n.end())
        part_n.push_back(columns);
    }
    out.push_back({"part_n", part_n, ParameterStage::compile, "columns of a part"});
    return out;
  }

  std::string illegal(const Problem&, const Target&, const Variant& v) const override {
    return illegal_tile(v);
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", isa_type(isa), "");
    text.alias("Lanes", lanes_type(isa), "");
    text.product(p);
    text.constant("qt::cpu::DType", "a_type", dtype_text(p.a_type), "of A");
    text.integer("rotation", p.rotation, "elements of a Hadamard segment; 0: none");
    text.constant("qt::Signs", "signs", fmt::format("qt::Signs::{}", name_of(p.signs)),
                  "flipped before the rotation");
    text.constant("qt::ScaleRule", "scale_rule",
                  fmt::format("qt::ScaleRule::{}", name_of(p.scale_rule)),
                  "from a block's values to its scale");
    text.constant("qt::Rounding", "rounding",
                  fmt::format("qt::Rounding::{}", name_of(p.a_rounding)), "to E2M1");
    text.descale(p.scale_rule == ScaleRule::ts34 ? "16.0f / 9.0f" : "1.0f",
                 "takes 3/4 of TS34 out of both operands");
    add_tile(text, v);
    return text.source(
        p, t, v,
        {"args.h", std::string(isa_text(isa)), std::string(lanes_text(isa)), "cpu/hadamard_gemm.h"},
        "qt::cpu::hadamard_gemm");
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.parts = gemm_parts(p, v, args.batch, args.m, args.n);
    return out;
  }

  Layout b_layout(const Problem&, const Variant&) const override { return Layout::panel16; }

  std::int64_t workspace_bytes(const Problem& p, const Variant& v,
                               const Sizes& sizes) const override {
    const auto blocks = round_up(sizes.k, padding_unit(p)) / kBlock;
    return gemm_parts(p, v, sizes.batch, sizes.m, sizes.n) *
           qt::cpu::QuantizedRows::of(sizes.m, blocks, v.value("block_m")).bytes();
  }

  // The product, and each pass over A beyond the one that a quantise step makes as well, at about a
  // cycle an element. A twentieth on top keeps two steps the default where both look alike: the
  // tuner finds out, and only two steps have a prebuilt form.
  double predicted_cost(const Problem& p, const Target& t, const Variant& v,
                        std::int64_t units) const override {
    const double m = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1));
    const double passes = static_cast<double>(ceil_div(p.n.hi, v.value("part_n")));
    return 1.05 * (tile_cost(p, t, v) + (passes - 1) * m * typical(p.k) * typical(p.batch)) *
           starved(p, v, units);
  }
};

}  // namespace

const Family& hadamard_gemm() {
  static const HadamardGemm family;
  return family;
}

}  // namespace quarterturn::cpu
