// cuda_dequantize: MXFP4 to high precision (templates/cuda/dequantize.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kThreads = 256;

class Dequantize final : public Family {
 public:
  std::string_view name() const override { return "cuda_dequantize"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::dequantize) return "dequantises: op = dequantize";
    if (capability(t) < 80) return "needs sm_80 or later";
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (p.a_layout != Layout::plain)
      return fmt::format("a_layout = {}: reads plain", name_of(p.a_layout));
    if (p.d_layout != Layout::plain) return "writes D row-major: d_layout = plain";
    return {};
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override { return {}; }
  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    ConfigText text;
    text.constant("qt::cuda::DType", "output",
                  fmt::format("qt::cuda::DType::{}", name_of(p.d_type)), "of D");
    text.dimension("k", p.k);
    text.integer("threads", kThreads, "of a block");
    return text.source(p, t, v, "cuda/dequantize.h", "dequantize",
                       {fmt::format("quarterturn_dequantize_{}", name_of(p.d_type)),
                        static_cast<int>(kThreads),
                        1,
                        {}});
  }

  Launch launch(const Problem&, const Variant&, const qt_args& args, std::int64_t) const override {
    Launch out;
    out.grid = {static_cast<std::uint32_t>(ceil_div(args.m * ceil_div(args.k, 8), kThreads)), 1,
                static_cast<std::uint32_t>(args.batch)};
    out.block = {static_cast<std::uint32_t>(kThreads), 1, 1};
    return out;
  }

  Layout a_layout(const Problem& p, const Variant&) const override { return p.a_layout; }

  double predicted_cost(const Problem& p, const Target&, const Variant&,
                        std::int64_t) const override {
    return static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
           static_cast<double>(std::max<std::int64_t>(p.k.hi, 1)) * 1e-3;
  }
};

}  // namespace

const Family& dequantize() {
  static const Dequantize family;
  return family;
}

}  // namespace quarterturn::cuda
