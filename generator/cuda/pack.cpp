// cuda_pack: quantised operands from packed codes and scales to the layouts that GEMMs read
// (templates/cuda/pack.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/expanded.hpp"
#include "generator/cuda/families.hpp"

namespace quarterturn::cuda {
namespace {

// A thread has a block of 32.
bool by_blocks(Layout layout) { return layout == Layout::bf16 || layout == Layout::scales_128x4; }

class Pack final : public Family {
 public:
  std::string_view name() const override { return "cuda_pack"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::pack) return "changes the layout of a quantised operand: op = pack";
    if (capability(t) < 80) return "needs sm_80 or later";
    if (p.a_layout != Layout::plain) return "reads layout plain";
    if (p.d_layout == Layout::permuted)
      return p.batch.hi > 1 || p.grouping != Grouping::none ? "permutes one weight, not a batch"
                                                            : "";
    if (by_blocks(p.d_layout)) return {};
    if (!is_expanded(p.d_layout)) return "writes layouts e5m2, int8_rows, bf16, permuted and 128x4";
    return refuse_length(p, t);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> threads = {256};
    if (is_expanded(p.d_layout)) threads = {256, 512, 128};
    return {{"threads", threads, ParameterStage::compile, "of a block"}};
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    const ExpandedRows rows(p, v.value("threads"));
    if (is_expanded(p.d_layout) && rows.shared_bytes(p.k.hi) > t.shared_bytes)
      return "its rows do not fit shared memory";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const ExpandedRows rows(p, v.value("threads"));
    const std::string name = fmt::format("quarterturn_pack_{}", name_of(p.d_layout));
    ConfigText text;
    text.grouping(p);
    text.dimension("k", p.k);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    const EntryShape entry{name, static_cast<int>(rows.threads), 1, {}};
    if (p.d_layout == Layout::permuted)
      return text.source(p, t, v, "cuda/pack.h", "pack_permuted", entry);
    text.integer("threads", rows.threads, "of a block");
    if (p.d_layout == Layout::bf16) return text.source(p, t, v, "cuda/pack.h", "pack_bf16", entry);
    if (p.d_layout == Layout::scales_128x4)
      return text.source(p, t, v, "cuda/pack.h", "pack_128x4", entry);
    text.constant("qt::cuda::Expanded", "element", rows.element(), "");
    text.integer("threads_per_row", rows.threads_per_row, "that share a row");
    return text.source(p, t, v, "cuda/pack.h", "pack", entry);
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    const ExpandedRows rows(p, v.value("threads"));
    Launch out;
    out.block = {static_cast<std::uint32_t>(rows.threads), 1, 1};
    if (p.d_layout == Layout::permuted) {
      out.grid = {static_cast<std::uint32_t>(ceil_div(args.m, 64)), 1, 1};
      return out;
    }
    if (by_blocks(p.d_layout)) {
      const auto blocks = args.m * (copy_length(p, args.k, args.groups) / 32);
      out.grid = {static_cast<std::uint32_t>(ceil_div(blocks, rows.threads)), 1,
                  static_cast<std::uint32_t>(args.batch)};
      return out;
    }
    const auto entries = p.grouping == Grouping::k_grouped ? args.groups : args.batch;
    out.grid = {static_cast<std::uint32_t>(ceil_div(args.m, rows.rows_of_block())), 1,
                static_cast<std::uint32_t>(entries)};
    out.shared_bytes = rows.shared_bytes(args.k);
    return out;
  }

  Layout a_layout(const Problem& p, const Variant&) const override { return p.a_layout; }

  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t) const override {
    const double elements = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
                            static_cast<double>(std::max<std::int64_t>(p.k.hi, 1));
    return elements * (v.value("threads") == 256 ? 1.0 : 1.01) * 0.5e-3;
  }
};

}  // namespace

const Family& pack() {
  static const Pack family;
  return family;
}

}  // namespace quarterturn::cuda
