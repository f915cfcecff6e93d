// cuda_column_sums: the columns of X added up, for gradients of biases
// (templates/cuda/column_sums.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"
#include "templates/sum_order.h"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kColumns = 64, kThreads = 512;

class ColumnSums final : public Family {
 public:
  std::string_view name() const override { return "cuda_column_sums"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::column_sums) return "adds up columns: op = column_sums";
    if (capability(t) < 80) return "needs sm_80 or later";
    if (p.a_major != Major::k) return "reads X row-major";
    if (p.grouping != Grouping::none) return "has no grouped form";
    return {};
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override { return {}; }
  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    ConfigText text;
    text.constant("qt::cuda::DType", "input", fmt::format("qt::cuda::DType::{}", name_of(p.a_type)),
                  "of X");
    return text.source(p, t, v, "cuda/column_sums.h", "column_sums",
                       {fmt::format("quarterturn_column_sums_{}", name_of(p.a_type)),
                        static_cast<int>(kThreads),
                        1,
                        {}});
  }

  Launch launch(const Problem&, const Variant&, const qt_args& args, std::int64_t) const override {
    Launch out;
    out.grid = {static_cast<std::uint32_t>(ceil_div(args.k, kColumns)), 1,
                static_cast<std::uint32_t>(args.batch)};
    out.block = {static_cast<std::uint32_t>(kThreads), 1, 1};
    out.shared_bytes = qt::kSumLanes / 2 * (kColumns + 4) * 4;
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant&,
                        std::int64_t) const override {
    return static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
           static_cast<double>(std::max<std::int64_t>(p.k.hi, 1)) * 1e-3;
  }
};

}  // namespace

const Family& column_sums() {
  static const ColumnSums family;
  return family;
}

}  // namespace quarterturn::cuda
