// cpu_column_sums: the columns of X added up, for gradients of biases. Its kernel text is
// templates/cpu/column_sums.h.
#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"

namespace quarterturn::cpu {
namespace {

constexpr std::int64_t kColumns = 64;  // kSumColumns of column_sums.h

class ColumnSums final : public Family {
 public:
  std::string_view name() const override { return "cpu_column_sums"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::column_sums) return "adds up columns: op = column_sums";
    if (bytes_of(p.a_type) == 0) return "reads bf16, f16 or f32";
    if (p.d_type != DType::f32) return "writes f32";
    if (p.a_major != Major::k) return "reads X row-major";
    if (p.grouping != Grouping::none) return "has no grouped form";
    return {};
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override { return {}; }
  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    KernelText text;
    text.constant("qt::cpu::DType", "a_type", dtype_text(p.a_type), "elements of X");
    return text.source(p, t, v, {"args.h", "cpu/column_sums.h"}, "qt::cpu::column_sums");
  }

  Launch launch(const Problem&, const Variant&, const qt_args& args, std::int64_t) const override {
    Launch out;
    out.parts = args.batch * ceil_div(args.k, kColumns);
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant&,
                        std::int64_t) const override {
    return typical(p.m) * typical(p.k) * static_cast<double>(bytes_of(p.a_type));
  }
};

}  // namespace

const Family& column_sums() {
  static const ColumnSums family;
  return family;
}

}  // namespace quarterturn::cpu
