#include "generator/cuda/config_text.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/families.hpp"

namespace quarterturn::cuda {
namespace {

// Stands in for the primitives that the texts themselves include.
constexpr const char* kAmdPrimitives = "#include \"hip/primitives.h\"\n";

// AMD bounds registers by the waves, of 64 threads, that each of a unit's four SIMDs holds.
std::string amd_entry(const EntryShape& entry, std::string_view space, std::string_view function) {
  const int waves = std::max(1, entry.min_blocks * entry.threads / 256);
  return fmt::format(
      "}};\n\nQT_KERNEL({}, {}) {}(const qt_args args) {{\n  qt::{}::{}(Config{{}}, args);\n}}\n",
      entry.threads, waves, entry.name, space, function);
}

}  // namespace

void ConfigText::constant(std::string_view type, std::string_view name, std::string_view value,
                          std::string_view comment) {
  lines_.push_back(
      {fmt::format("static constexpr {} {} = {};", type, name, value), std::string(comment)});
}

void ConfigText::integer(std::string_view name, std::int64_t value, std::string_view comment) {
  constant("int", name, fmt::format("{}", value), comment);
}

void ConfigText::flag(std::string_view name, bool value, std::string_view comment) {
  constant("bool", name, value ? "true" : "false", comment);
}

void ConfigText::dimension(std::string_view name, const Extent& extent) {
  if (extent.is_static())
    constant("long long", name, fmt::format("{}", extent.lo), "");
  else
    constant("long long", name, "0",
             fmt::format("given at run time: {} to {}", extent.lo, extent.hi));
}

bool has_fast_activation(const Problem& p) {
  return p.epilogue != Epilogue::none && p.contract == Contract::fast;
}

void ConfigText::epilogue(const Problem& p) {
  // Of a D that is quantised, before it is.
  const DType output = p.op == Op::gemm_quantize ? DType::f32 : p.d_type;
  constant("qt::cuda::DType", "output", fmt::format("qt::cuda::DType::{}", name_of(output)),
           "of D");
  constant("qt::cuda::DType", "side", fmt::format("qt::cuda::DType::{}", name_of(side_type(p))),
           "of C, bias, aux and z");
  flag("accumulate", p.accumulate == Accumulate::accumulate, "adds beta * C");
  flag("bias", p.bias == Bias::per_column, "adds a vector of n");
  constant("qt::Epilogue", "epilogue", fmt::format("qt::Epilogue::{}", name_of(p.epilogue)),
           "from z to D");
  flag("keeps_z", p.pre_activation == PreActivation::kept, "stores z too");
  flag("fast_activation", has_fast_activation(p), "activates with approximate instructions");
  flag("quantizes", p.op == Op::gemm_quantize, "D, as `quantize` would");
  if (p.op == Op::gemm_quantize) quantized_result(p);
}

void ConfigText::quantized_result(const Problem& p) {
  const auto choice = [this](std::string_view type, std::string_view field, std::string_view value,
                             std::string_view comment) {
    constant(fmt::format("qt::{}", type), field, fmt::format("qt::{}::{}", type, value), comment);
  };
  choice("cuda::Output", "result_layout",
         p.d_layout == Layout::scales_128x4 ? "scales_128x4" : name_of(p.d_layout),
         "how D's codes and scales lie");
  integer("rotation", p.rotation, "Hadamard segment, 0 for none");
  choice("Signs", "signs", name_of(p.signs), "");
  choice("ScaleRule", "scale_rule", name_of(p.scale_rule), "");
  choice("Rounding", "result_rounding", name_of(p.d_rounding), "");
  choice("cuda::Copies", "result_copies", name_of(p.copies), "rows, columns (transposed), or both");
}

void ConfigText::descale(const Problem& problem) {
  const bool ts34 = problem.scale_rule == ScaleRule::ts34;
  const bool both = problem.a_type == DType::mxfp4 && problem.b_type == DType::mxfp4;
  constant("float", "descale",
           !ts34  ? "1.0f"
           : both ? "16.0f / 9.0f"
                  : "4.0f / 3.0f",
           ts34 ? "takes 3/4 of TS34 out of quantised operands" : "the scale rule needs no factor");
}

Source ConfigText::source(const Problem& problem, const Target& target, const Variant& variant,
                          std::string_view text, std::string_view function,
                          const EntryShape& entry) const {
  const bool amd = target.vendor == Vendor::amd;
  Source out;
  out.language = amd ? Language::hip : Language::cuda;
  out.entry = entry.name;
  out.text =
      fmt::format("// {}\n//   solves {}\n//   on     {}\n{}#include \"{}\"\n\nstruct Config {{\n",
                  variant.text(), problem.key(), target.key(), amd ? kAmdPrimitives : "", text);
  std::size_t width = 0;
  for (const auto& line : lines_)
    if (!line.comment.empty()) width = std::max(width, line.code.size());
  for (const auto& line : lines_)
    out.text += line.comment.empty()
                    ? fmt::format("  {}\n", line.code)
                    : fmt::format("  {:<{}}  // {}\n", line.code, width, line.comment);
  if (amd) {
    out.text += amd_entry(entry, text.substr(0, text.find('/')), function);
    return out;
  }
  std::string parameters = "const __grid_constant__ qt_args args", arguments = "Config{}, args";
  for (const auto map : entry.maps) {
    parameters += fmt::format(", const __grid_constant__ qt_tensor_map {}", map);
    arguments += fmt::format(", {}", map);
  }
  out.waits = entry.waits == EntryShape::Waits::first && capability(target) >= 90;
  out.text += fmt::format(
      "}};\n\nextern \"C\" __global__ void __launch_bounds__({}, {})\n{}({}) {{\n"
      "{}  qt::cuda::{}({});\n}}\n",
      entry.threads, entry.min_blocks, entry.name, parameters,
      out.waits ? "  qt::cuda::wait_for_previous();\n  qt::cuda::let_next_start();\n" : "",
      function, arguments);
  return out;
}

std::string refuse_layout(std::string_view field, Layout given, Layout wanted) {
  if (given == Layout::chosen || given == wanted) return {};
  return fmt::format("{} = {}: reads {} (pack it first)", field, name_of(given), name_of(wanted));
}

}  // namespace quarterturn::cuda
