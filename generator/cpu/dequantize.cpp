// cpu_dequantize: MXFP4 to high precision, code value times 2^(byte - 127); rotation and TS34's
// factor are left in. Its kernel text is templates/cpu/dequantize.h.
#include <fmt/format.h>

#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"
#include "generator/cpu/moving.hpp"

namespace quarterturn::cpu {
namespace {

class Dequantize final : public MovingFamily {
 public:
  std::string_view name() const override { return "cpu_dequantize"; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::dequantize) return "dequantises: op = dequantize";
    if (p.a_type != DType::mxfp4) return "reads mxfp4";
    if (bytes_of(p.d_type) == 0) return "writes bf16, f16 or f32";
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (p.a_layout != Layout::plain && p.a_layout != Layout::panel16)
      return fmt::format("a_layout = {}: reads plain or panel16", name_of(p.a_layout));
    if (p.d_layout != Layout::plain) return "writes D row-major: d_layout = plain";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", lanes_type(isa), "blocks side by side in registers");
    text.dimension("m", p.m);
    text.dimension("k", p.k);
    text.integer("k_unit", padding_unit(p), "the operand's k is padded to a multiple");
    text.constant("qt::cpu::Layout", "a_layout", layout_text(p.a_layout), "of codes and scales");
    text.constant("qt::cpu::DType", "d_type", dtype_text(p.d_type), "elements of D");
    text.integer("tile_m", v.value("tile_m"), "rows in a part");
    text.integer("tile_k", v.value("tile_k"), "columns in a part");
    return text.source(p, t, v, {"args.h", std::string(lanes_text(isa)), "cpu/dequantize.h"},
                       "qt::cpu::dequantize");
  }

  Layout a_layout(const Problem& p, const Variant&) const override { return p.a_layout; }

 private:
  double bytes_an_element(const Problem& p) const override {
    return 0.53 + static_cast<double>(bytes_of(p.d_type));
  }
};

}  // namespace

const Family& dequantize() {
  static const Dequantize family;
  return family;
}

}  // namespace quarterturn::cpu
