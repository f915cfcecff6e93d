// cpu_quantize: high precision to MXFP4, along rows, along columns, or both in one pass. Its kernel
// text is templates/cpu/quantize.h.
#include <fmt/format.h>

#include <algorithm>

#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"
#include "generator/cpu/lane_text.hpp"
#include "generator/grouping.hpp"
#include "templates/cpu/quantize_parts.h"

namespace quarterturn::cpu {
namespace {

using qt::cpu::QuantizeParts;

// Where tokens are grouped, tiles run over the column copy's length.
QuantizeParts parts_of(const Problem& p, const Variant& v, std::int64_t m, std::int64_t k,
                       std::int64_t groups) {
  if (p.grouping == Grouping::k_grouped) m = copy_length(p, m, groups);
  return QuantizeParts::of(m, k, padding_unit(p), p.copies != Copies::columns,
                           p.copies != Copies::rows, p.d_layout == Layout::panel16,
                           v.value("tile_m"), v.value("tile_k"));
}

class Quantize : public Family {
 public:
  std::string_view name() const override { return "cpu_quantize"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::quantize) return "quantises: op = quantize";
    if (bytes_of(p.a_type) == 0) return "reads bf16, f16 or f32";
    if (p.d_type != DType::mxfp4) return "writes mxfp4";
    if (p.d_layout != Layout::plain && p.d_layout != Layout::int8_blocks &&
        p.d_layout != Layout::panel16)
      return fmt::format("d_layout = {}: writes plain, int8_blocks or panel16",
                         name_of(p.d_layout));
    if (p.a_major != Major::k) return "reads X row-major: state copies = columns for X^T";
    if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
    return {};
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    const bool rows_only = p.copies == Copies::rows;
    // A row's sum of squares is taken for each part.
    if (p.prologue == Prologue::rmsnorm)
      return {{"isa", isas(t), ParameterStage::compile, "vector width: 512, 256 AVX2, 0 portable"},
              {"tile_m", {32, 128}, ParameterStage::compile, "rows of X in a part"},
              {"tile_k",
               {round_up(std::max<std::int64_t>(p.k.hi, 1), 256)},
               ParameterStage::compile,
               "columns of X in a part"}};
    return {
        {"isa", isas(t), ParameterStage::compile, "vector width: 512, 256 AVX2, 0 portable"},
        {"tile_m",
         rows_only ? std::vector<std::int64_t>{32, 128} : std::vector<std::int64_t>{256, 512},
         ParameterStage::compile, "rows of X in a part"},
        {"tile_k",
         rows_only ? std::vector<std::int64_t>{4096, 1024} : std::vector<std::int64_t>{2048, 512},
         ParameterStage::compile, "columns of X in a part"},
    };
  }

  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    KernelText text;
    const auto named = [&text](std::string_view type, std::string_view name, auto value,
                               std::string_view comment) {
      text.constant(
          fmt::format("qt::{}", type), name,
          fmt::format("qt::{}::{}{}", type, type == "cpu::ScaleBlock" ? "b" : "", name_of(value)),
          comment);
    };
    const auto isa = static_cast<Isa>(v.value("isa"));
    text.alias("Isa", lanes_type(isa), "blocks side by side in registers");
    text.dimension("m", p.m);
    text.dimension("k", p.k);
    named("cpu::DType", "a_type", p.a_type, "elements of X");
    named("cpu::Copies", "copies", p.copies, "of X, of X^T, or of both");
    named("cpu::Layout", "d_layout", p.d_layout, "of codes and scales");
    text.integer("rotation", p.rotation, "elements of a Hadamard segment; 0: none");
    named("Signs", "signs", p.signs, "flipped before the rotation");
    named("ScaleRule", "scale_rule", p.scale_rule, "from a block's values to its scale");
    named("cpu::ScaleBlock", "scale_block", p.scale_block, "elements that share a scale");
    named("Rounding", "rounding", p.a_rounding, "to E2M1");
    text.grouping(p);
    named("Prologue", "prologue", p.prologue, "applied to X first");
    text.integer("tile_m", v.value("tile_m"), "rows of X in a part");
    text.integer("tile_k", v.value("tile_k"), "columns of X in a part");
    return text.source(p, t, v, {"args.h", std::string(lanes_text(isa)), "cpu/quantize.h"},
                       "qt::cpu::quantize");
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.parts = args.batch * parts_of(p, v, args.m, args.k, args.groups).per_entry();
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t) const override {
    const double copies = p.copies == Copies::both ? 2 : 1;
    const double bytes = static_cast<double>(bytes_of(p.a_type)) + copies * 0.53;
    return moving_cost(parts_of(p, v, p.m.hi, p.k.hi, p.groups.hi), bytes,
                       static_cast<Isa>(v.value("isa")));
  }
};

}  // namespace

const Family& quantize() {
  static const Quantize family;
  return family;
}

}  // namespace quarterturn::cpu
