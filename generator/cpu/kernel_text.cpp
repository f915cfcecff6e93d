#include "generator/cpu/kernel_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/grouping.hpp"

namespace quarterturn::cpu {

std::vector<std::int64_t> isas(const Target& target) {
  std::vector<std::int64_t> out;
  const auto add = [&out](Isa isa) { out.push_back(static_cast<std::int64_t>(isa)); };
  const bool v4 = target.arch == "x86-64-v4";
  if (v4 && target.has("avx512_vnni")) add(Isa::avx512);
  if (v4 || target.arch == "x86-64-v3") add(Isa::avx2);
  if (out.empty()) add(Isa::portable);
  return out;
}

std::string_view isa_type(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "qt::cpu::Avx512";
    case Isa::avx2:
      return "qt::cpu::Avx2";
    case Isa::portable:
      return "qt::cpu::Portable";
  }
  return "";
}

std::string_view isa_text(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "cpu/primitives_avx512.h";
    case Isa::avx2:
      return "cpu/primitives_avx2.h";
    case Isa::portable:
      return "cpu/primitives_portable.h";
  }
  return "";
}

double typical(const Extent& extent) {
  const auto lo = static_cast<double>(std::max<std::int64_t>(extent.lo, 1));
  const auto hi = static_cast<double>(std::max<std::int64_t>(extent.hi, 1));
  return std::sqrt(lo * hi);
}

void KernelText::alias(std::string_view name, std::string_view type, std::string_view comment) {
  lines_.push_back({fmt::format("using {} = {};", name, type), std::string(comment)});
}

void KernelText::constant(std::string_view type, std::string_view name, std::string_view value,
                          std::string_view comment) {
  lines_.push_back(
      {fmt::format("static constexpr {} {} = {};", type, name, value), std::string(comment)});
}

void KernelText::integer(std::string_view name, std::int64_t value, std::string_view comment) {
  constant("int", name, fmt::format("{}", value), comment);
}

void KernelText::flag(std::string_view name, bool value, std::string_view comment) {
  constant("bool", name, value ? "true" : "false", comment);
}

void KernelText::dimension(std::string_view name, const Extent& extent) {
  if (extent.is_static())
    constant("long long", name, fmt::format("{}", extent.lo), "");
  else
    constant("long long", name, "0",
             fmt::format("given at run time: {} to {}", extent.lo, extent.hi));
}

void KernelText::grouping(const Problem& p) {
  constant("qt::Grouping", "grouping", fmt::format("qt::Grouping::{}", name_of(p.grouping)),
           "of rows or tokens by experts");
}

void KernelText::product(const Problem& p) {
  dimension("m", p.m);
  dimension("n", p.n);
  dimension("k", p.k);
  integer("k_unit", unit_of(p), "operands are padded to a multiple of this along K");
  grouping(p);
  constant("qt::cpu::DType", "d_type", dtype_text(p.d_type), "of D");
  constant("qt::cpu::DType", "side_type", dtype_text(side_type(p)), "of C, bias, aux and z");
  flag("accumulate", p.accumulate == Accumulate::accumulate, "adds beta * C");
  flag("bias", p.bias == Bias::per_column, "adds a vector of n");
  constant("qt::Epilogue", "epilogue", fmt::format("qt::Epilogue::{}", name_of(p.epilogue)),
           "from z to D");
  flag("keeps_z", p.pre_activation == PreActivation::kept, "stores z too");
}

void KernelText::descale(std::string_view value, std::string_view comment) {
  constant("float", "descale", value, value == "1.0f" ? "this scale rule needs none" : comment);
}

Source KernelText::source(const Problem& problem, const Target& target, const Variant& variant,
                          const std::vector<std::string>& texts, std::string_view function) const {
  Source out;
  out.entry = "qturn_kernel";
  out.text = fmt::format("// {}\n//   solves {}\n//   on     {}\n", variant.text(), problem.key(),
                         target.key());
  for (const auto& text : texts) out.text += fmt::format("#include \"{}\"\n", text);
  out.text += "\nstruct Config {\n";
  for (const auto& line : lines_)
    out.text += line.comment.empty() ? fmt::format("  {}\n", line.code)
                                     : fmt::format("  {:<44}  // {}\n", line.code, line.comment);
  out.text += "};\n\n";
  out.text += fmt::format(
      "extern \"C\" __attribute__((visibility(\"default\"))) void {}(const qt_args* args,\n"
      "                                                                    long long part) {{\n"
      "  {}(Config{{}}, args, part);\n}}\n",
      out.entry, function);
  return out;
}

std::string dtype_text(DType type) { return fmt::format("qt::cpu::DType::{}", name_of(type)); }

std::string refuse_layout(std::string_view field, Layout given, Layout wanted) {
  if (given == Layout::chosen || given == wanted) return {};
  return fmt::format("{} = {}: reads {} (pack it first)", field, name_of(given), name_of(wanted));
}

std::string refuse_product(const Problem& p, Layout a) {
  if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
  if (p.grouping != Grouping::none && p.epilogue != Epilogue::none)
    return "has no activation in the epilogue of groups";
  if (p.d_layout != Layout::plain) return "writes D row-major";
  if (auto reason = refuse_layout("a_layout", p.a_layout, a); !reason.empty()) return reason;
  return refuse_layout("b_layout", p.b_layout, Layout::panel16);
}

}  // namespace quarterturn::cpu
