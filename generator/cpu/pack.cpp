// cpu_pack: MXFP4 operands from plain into the layouts that CPU kernels multiply from, and back.
// Its kernel text is templates/cpu/pack.h.
#include <fmt/format.h>

#include <algorithm>

#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"
#include "generator/cpu/moving.hpp"
#include "generator/grouping.hpp"

namespace quarterturn::cpu {
namespace {

class Pack final : public MovingFamily {
 public:
  std::string_view name() const override { return "cpu_pack"; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::pack) return "changes the layout of a quantised operand: op = pack";
    if (p.a_type != DType::mxfp4 || p.d_type != DType::mxfp4) return "moves mxfp4";
    const auto one_of = [](Layout given, std::initializer_list<Layout> allowed) {
      return std::find(allowed.begin(), allowed.end(), given) != allowed.end();
    };
    if (!one_of(p.a_layout, {Layout::plain, Layout::panel16}))
      return fmt::format("a_layout = {}: reads plain or panel16", name_of(p.a_layout));
    if (!one_of(p.d_layout, {Layout::plain, Layout::int8_blocks, Layout::panel16}))
      return fmt::format("d_layout = {}: writes plain, int8_blocks or panel16",
                         name_of(p.d_layout));
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", lanes_type(isa), "blocks side by side in registers");
    text.dimension("m", p.m);
    text.dimension("k", p.k);
    text.integer("k_unit", unit_of(p), "k is padded to a multiple with zero blocks");
    text.grouping(p);
    text.constant("qt::cpu::Layout", "a_layout", layout_text(p.a_layout), "read");
    text.constant("qt::cpu::Layout", "d_layout", layout_text(p.d_layout), "written");
    text.integer("tile_m", v.value("tile_m"), "rows in a part");
    text.integer("tile_k", v.value("tile_k"), "columns in a part");
    return text.source(p, t, v, {"args.h", std::string(lanes_text(isa)), "cpu/pack.h"},
                       "qt::cpu::pack");
  }

 private:
  double bytes_an_element(const Problem& p) const override {
    return p.d_layout == Layout::int8_blocks ? 1.8 : 1.1;
  }
};

}  // namespace

const Family& pack() {
  static const Pack family;
  return family;
}

}  // namespace quarterturn::cpu
