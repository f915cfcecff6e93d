// cuda_stand_in: the exact kernel that follows a GEMM over expanded operands and computes the rows
// that do not fit its window (templates/cuda/stand_in.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"

namespace quarterturn::cuda {
namespace {

// Constants of stand_in.h.
constexpr std::int64_t kSlab = 2048, kAcross = 128, kGathered = 64;
constexpr std::int64_t kResident = 2;  // blocks of an SM, at most
constexpr std::int64_t kSharedBytes = 2 * (kGathered + kAcross) * 272 + kSlab * 2 + 64 * 4;

class StandIn final : public Family {
 public:
  std::string_view name() const override { return "cuda_stand_in"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  // Layouts are given by the GEMM before it, never chosen: so it is no candidate of its own.
  std::string refuses(const Problem& p, const Target& t) const override {
    if (capability(t) < 80) return "needs sm_80 or later (bf16 mma.sync)";
    if (p.op != Op::gemm || p.a_layout != p.b_layout ||
        (p.a_layout != Layout::e5m2 && p.a_layout != Layout::int8_rows))
      return "only follows a GEMM over expanded operands";
    return {};
  }

  std::vector<Parameter> parameters(const Problem&, const Target&) const override { return {}; }
  std::string illegal(const Problem&, const Target&, const Variant&) const override { return {}; }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const std::string type = p.a_layout == Layout::int8_rows ? "int8" : "e5m2";
    ConfigText text;
    text.constant("qt::cuda::Expanded", "element", "qt::cuda::Expanded::" + type, "");
    text.grouping(p);
    text.epilogue(p);
    text.descale(p);
    text.constant("long long", "k_unit", fmt::format("{}", unit_of(p)), "k is padded to");
    return text.source(
        p, t, v, "cuda/stand_in.h", "stand_in_tiles",
        {fmt::format("quarterturn_stand_in_{}_{}_{}", type, name_of(p.role), name_of(p.d_type)),
         256,
         1,
         {}});
  }

  Launch launch(const Problem& p, const Variant&, const qt_args& args,
                std::int64_t units) const override {
    Launch out;
    const auto down = [&](std::int64_t rows) {
      return most_tiles_down(p, args.m, args.batch, args.groups, rows);
    };
    const auto items =
        down(kSlab) * ceil_div(args.n, kAcross) + ceil_div(args.n, kSlab) * down(kAcross);
    out.grid = {static_cast<std::uint32_t>(std::min(items, kResident * units)), 1, 1};
    out.block = {256, 1, 1};
    out.shared_bytes = kSharedBytes;
    return out;
  }

  Layout a_layout(const Problem& p, const Variant&) const override { return p.a_layout; }
  Layout b_layout(const Problem& p, const Variant&) const override { return p.b_layout; }

  double relative_error(const Problem& p, const Variant&, std::int64_t k) const override {
    return gemm_mma().relative_error(p, {}, k);
  }

  double predicted_cost(const Problem&, const Target&, const Variant&,
                        std::int64_t) const override {
    return 0;
  }
};

}  // namespace

const Family& stand_in() {
  static const StandIn family;
  return family;
}

}  // namespace quarterturn::cuda
