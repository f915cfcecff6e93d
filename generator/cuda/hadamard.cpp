// cuda_hadamard: the rotation alone (templates/cuda/hadamard.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kThreads = 256;

class Hadamard final : public Family {
 public:
  std::string_view name() const override { return "cuda_hadamard"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (p.op != Op::hadamard) return "rotates: op = hadamard";
    if (capability(t) < 80) return "needs sm_80 or later";
    if (p.rotation == 0) return "needs a rotation";
    if (p.copies != Copies::rows || p.a_major != Major::k)
      return "rotates along k: copies = rows, a_major = k";
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (!p.k.is_static() || p.k.lo % padding_unit(p) != 0)
      return fmt::format("needs a static k that is a multiple of {}", padding_unit(p));
    return {};
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override { return {}; }
  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    ConfigText text;
    const auto type = [&text](std::string_view field, DType value, std::string_view comment) {
      text.constant("qt::cuda::DType", field, fmt::format("qt::cuda::DType::{}", name_of(value)),
                    comment);
    };
    type("input", p.a_type, "of X");
    type("output", p.d_type, "of D");
    text.integer("rotation", p.rotation, "elements of a segment");
    text.constant("qt::Signs", "signs", fmt::format("qt::Signs::{}", name_of(p.signs)), "");
    text.dimension("k", p.k);
    text.integer("threads", kThreads, "of a block");
    return text.source(p, t, v, "cuda/hadamard.h", "hadamard",
                       {fmt::format("quarterturn_hadamard_h{}_{}_{}", p.rotation, name_of(p.a_type),
                                    name_of(p.d_type)),
                        static_cast<int>(kThreads),
                        1,
                        {}});
  }

  Launch launch(const Problem&, const Variant&, const qt_args& args, std::int64_t) const override {
    Launch out;
    out.grid = {static_cast<std::uint32_t>(ceil_div(args.m * (args.k / 32), kThreads)), 1,
                static_cast<std::uint32_t>(args.batch)};
    out.block = {static_cast<std::uint32_t>(kThreads), 1, 1};
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant&,
                        std::int64_t) const override {
    return static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
           static_cast<double>(std::max<std::int64_t>(p.k.hi, 1)) * 1e-3;
  }
};

}  // namespace

const Family& hadamard() {
  static const Hadamard family;
  return family;
}

}  // namespace quarterturn::cuda
