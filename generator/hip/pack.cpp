// hip_pack: packed operands from one layout of gfx950's kernels to another (templates/hip/pack.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"

namespace quarterturn::hip {
namespace {

constexpr std::int64_t kPackThreads = 256;

bool is_packed(Layout layout) {
  return layout == Layout::plain || layout == Layout::aiter || layout == Layout::aiter_16x16;
}

class HipPack final : public Family {
 public:
  std::string_view name() const override { return "hip_pack"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::amd; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::pack) return "changes the layout of a quantised operand: op = pack";
    if (auto reason = refuse_target(t); !reason.empty()) return reason;
    for (const auto& [field, layout] :
         {std::pair("a_layout", p.a_layout), std::pair("d_layout", p.d_layout)})
      if (!is_packed(layout))
        return fmt::format("{} = {}: moves plain, aiter and aiter_16x16", field, name_of(layout));
    if (p.grouping == Grouping::k_grouped &&
        (p.a_layout == Layout::aiter_16x16 || p.d_layout == Layout::aiter_16x16))
      return "shuffles weights, not tokens of groups";
    return {};
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override {
    return {{"threads", {kPackThreads}, ParameterStage::compile, "of a block"}};
  }
  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    cuda::ConfigText text;
    text.grouping(p);
    text.dimension("k", p.k);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    text.integer("threads", v.value("threads"), "of a block");
    for (const auto& [field, layout] : {std::pair("from", p.a_layout), std::pair("to", p.d_layout)})
      text.constant("qt::hip::PackLayout", field,
                    fmt::format("qt::hip::PackLayout::{}", name_of(layout)), "");
    return text.source(
        p, t, v, "hip/pack.h", "pack",
        {fmt::format("quarterturn_pack_{}_{}", name_of(p.a_layout), name_of(p.d_layout)),
         static_cast<int>(v.value("threads")),
         1,
         {}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    const auto rows = p.d_layout == Layout::aiter_16x16 ? round_up(args.m, 16) : args.m;
    Launch out;
    out.block = {static_cast<std::uint32_t>(v.value("threads")), 1, 1};
    out.grid = {static_cast<std::uint32_t>(ceil_div(
                    rows * (copy_length(p, args.k, args.groups) / 32), v.value("threads"))),
                1, static_cast<std::uint32_t>(args.batch)};
    return out;
  }

  Layout a_layout(const Problem& p, const Variant&) const override { return p.a_layout; }

  // In hip_gemm_mfma_scale's units: memory moves a block while matrix cores multiply 500 rows by
  // it.
  double predicted_cost(const Problem& p, const Target&, const Variant&,
                        std::int64_t) const override {
    return static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
           static_cast<double>(std::max<std::int64_t>(p.k.hi, 1)) * 0.5;
  }
};

}  // namespace

const Family& pack() {
  static const HipPack family;
  return family;
}

}  // namespace quarterturn::hip
