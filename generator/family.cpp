#include "generator/family.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "generator/cpu/families.hpp"
#include "generator/cuda/families.hpp"
#include "generator/hip/families.hpp"

namespace quarterturn {

std::span<const Family* const> families() {
  static const auto all = [] {
    auto out = cpu::families();
    for (const auto& gpu : {cuda::families(), hip::families()})
      out.insert(out.end(), gpu.begin(), gpu.end());
    return out;
  }();
  return all;
}

std::string refuse_beyond_bias(const Problem& p) {
  if (p.epilogue != Epilogue::none) return "has no activation in its epilogue";
  if (side_type(p) != p.d_type) return "reads C and bias in D's type";
  if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
  return {};
}

namespace {

bool is_mxfp4_or_none(DType type) { return type == DType::mxfp4 || type == DType::none; }

// Those of values that this one kernel would round.
std::array<Rounding, 3> roundings_of(const Problem& p) {
  const bool quantises = p.op == Op::quantize || p.op == Op::hadamard_gemm;
  const bool fused = p.op == Op::gemm_quantize;
  return {(quantises || fused) && !is_mxfp4_or_none(p.a_type) ? p.a_rounding : Rounding::rne,
          (quantises || fused) && !is_mxfp4_or_none(p.b_type) ? p.b_rounding : Rounding::rne,
          fused ? p.d_rounding : Rounding::rne};
}

}  // namespace

std::string refuse_rounding(const Family& family, const Problem& p) {
  for (const Rounding rounding : roundings_of(p))
    if (is_of_hardware(rounding) && family.hardware_rounding() != rounding)
      return fmt::format("does not round by an instruction ({})", name_of(rounding));
  return {};
}

std::string refuse_rounding(Rounding rounding, const Target& target) {
  if (rounding == Rounding::sr_cvt_rs && target.arch != "sm_100a" && target.arch != "sm_103a") {
    const bool chip = target.arch == "sm_100f" || target.arch == "sm_103f";
    return fmt::format(
        "sr_cvt_rs is cvt.rs, which code for sm_100a and sm_103a alone has, not {}; {}use sr16",
        target.arch,
        chip ? fmt::format("set QTURN_TARGET={}a for code of this chip alone, or ",
                           target.arch.substr(0, 6))
             : "");
  }
  if (rounding == Rounding::sr_cvt_scalef32 && target.arch != "gfx950")
    return fmt::format(
        "sr_cvt_scalef32 is v_cvt_scalef32_sr_pk_fp4_f32, which gfx950 alone has, not {}; use sr16",
        target.arch);
  return {};
}

const Family* find_family(std::string_view name) {
  for (const Family* family : families())
    if (family->name() == name) return family;
  return nullptr;
}

Family::Evidence Family::evidence(const Target& target) const {
  const bool has_run = target.vendor == Vendor::cpu || target.arch == "sm_90a";
  return has_run ? Evidence::hardware : Evidence::simulated;
}

Variant Family::default_variant(const Problem& problem, const Target& target) const {
  Variant variant{std::string(name()), revision(), {}};
  for (const auto& parameter : parameters(problem, target))
    variant.values[parameter.name] = parameter.values.front();
  return variant;
}

std::vector<Variant> Family::variants(const Problem& problem, const Target& target) const {
  std::vector<Variant> out;
  const auto axes = parameters(problem, target);
  std::vector<std::size_t> at(axes.size(), 0);
  for (bool more = true; more;) {
    Variant variant{std::string(name()), revision(), {}};
    for (std::size_t i = 0; i < axes.size(); ++i)
      variant.values[axes[i].name] = axes[i].values[at[i]];
    if (illegal(problem, target, variant).empty()) out.push_back(std::move(variant));
    more = false;
    for (std::size_t i = 0; i < axes.size() && !more; ++i) {
      more = ++at[i] < axes[i].values.size();
      if (!more) at[i] = 0;
    }
  }
  return out;
}

Status Family::check(const Problem& problem, const Target& target, const Variant& variant) const {
  if (variant.family != name() || variant.revision != revision())
    return Status(Code::invalid_argument,
                  fmt::format("{} is not a variant of {}/{}", variant.text(), name(), revision()));
  const auto axes = parameters(problem, target);
  if (variant.values.size() != axes.size())
    return Status(Code::invalid_argument, fmt::format("{} needs {} parameters, {} given", name(),
                                                      axes.size(), variant.values.size()));
  for (const auto& axis : axes) {
    const auto found = variant.values.find(axis.name);
    if (found == variant.values.end())
      return Status(Code::invalid_argument,
                    fmt::format("{} lacks parameter '{}'", variant.text(), axis.name));
    if (std::find(axis.values.begin(), axis.values.end(), found->second) == axis.values.end())
      return Status(Code::invalid_argument,
                    fmt::format("{}: {} = {} is not one of {}", name(), axis.name, found->second,
                                fmt::join(axis.values, ", ")));
  }
  if (const auto reason = illegal(problem, target, variant); !reason.empty())
    return Status(Code::invalid_argument, fmt::format("{}: {}", variant.text(), reason));
  return {};
}

}  // namespace quarterturn
