#include "tuner/workload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace quarterturn {
namespace {

// Longer axes than this are typing errors, and keep products inside 64 bits.
constexpr std::int64_t kMostSize = std::int64_t{1} << 30;

Status bad(std::string message) { return Status(Code::invalid_argument, std::move(message)); }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> out;
  for (;;) {
    const auto at = text.find(separator);
    out.push_back(trimmed(text.substr(0, at)));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

Result<std::int64_t> parse_size(std::string_view what, std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least ||
      value > kMostSize)
    return bad(
        fmt::format("{} '{}' is not a whole number from {} to {}", what, text, least, kMostSize));
  return value;
}

Result<Extent> parse_extent(std::string_view what, std::string_view text, std::int64_t least) {
  const auto dots = text.find("..");
  if (dots == std::string_view::npos) {
    auto value = parse_size(what, text, least);
    if (!value.ok()) return value.status();
    return Extent::exactly(*value);
  }
  auto lo = parse_size(what, text.substr(0, dots), least);
  if (!lo.ok()) return lo.status();
  auto hi = parse_size(what, text.substr(dots + 2), least);
  if (!hi.ok()) return hi.status();
  if (*lo > *hi)
    return bad(fmt::format("{} '{}': a range goes from the smaller to the larger", what, text));
  return Extent{*lo, *hi};
}

std::string print(const Extent& extent) {
  return extent.is_static() ? fmt::format("{}", extent.lo)
                            : fmt::format("{}..{}", extent.lo, extent.hi);
}

// Adds what every role shares.
Problem from_recipe(const Recipe& recipe, Role role) {
  Problem p;
  p.op = recipe.op;
  p.role = role;
  p.rotation = recipe.rotation;
  p.signs = recipe.signs;
  p.scale_rule = recipe.scale_rule;
  p.a_rounding = recipe.a_rounding;
  p.biased = recipe.biased;
  return p;
}

Problem one_operand_problem(const Linear& linear, const Extent& tokens, const Recipe& recipe) {
  Problem p = from_recipe(recipe, Role::none);
  p.m = tokens;
  p.k = Extent::exactly(linear.in);
  const bool reads_codes = recipe.op == Op::dequantize || recipe.op == Op::pack;
  const bool writes_codes = recipe.op == Op::quantize || recipe.op == Op::pack;
  p.a_type = reads_codes ? DType::mxfp4 : recipe.in_type;
  if (recipe.op == Op::quantize) {
    p.prologue = recipe.prologue;
    p.bias_gradient = recipe.bias_gradient;
  }
  p.d_type = writes_codes                     ? DType::mxfp4
             : recipe.out_type == DType::none ? recipe.in_type
                                              : recipe.out_type;
  return p;
}

}  // namespace

Layers linear_layers(const Model& model, std::int64_t tp) {
  Layers out;
  const auto refuse = [&](std::string layer, std::string reason) {
    out.refused.push_back({std::move(layer), std::move(reason)});
  };
  const auto indivisible = [&](std::string_view what, std::int64_t size) {
    return fmt::format("{} {} {} cannot be split over {} ranks", model.name, what, size, tp);
  };
  if (model.heads % tp != 0) {
    refuse("qkv", indivisible("num_attention_heads", model.heads));
    refuse("o", indivisible("num_attention_heads", model.heads));
  } else if (model.kv_heads % tp != 0 && tp % model.kv_heads != 0) {
    refuse("qkv", indivisible("num_key_value_heads", model.kv_heads));
    out.linears.push_back({"o", model.hidden, model.heads / tp * model.head_dim, model.layers});
  } else {
    const std::int64_t kv = std::max<std::int64_t>(1, model.kv_heads / tp);
    const std::int64_t heads = model.heads / tp;
    out.linears.push_back({"qkv", (heads + 2 * kv) * model.head_dim, model.hidden, model.layers});
    out.linears.push_back({"o", model.hidden, heads * model.head_dim, model.layers});
  }
  const auto add_mlp = [&](const std::string& prefix, std::int64_t intermediate,
                           std::int64_t count) {
    if (intermediate == 0) return;
    if (intermediate % tp != 0) {
      refuse(prefix + "gate_up", indivisible("intermediate size", intermediate));
      refuse(prefix + "down", indivisible("intermediate size", intermediate));
      return;
    }
    out.linears.push_back({prefix + "gate_up", 2 * (intermediate / tp), model.hidden, count});
    out.linears.push_back({prefix + "down", model.hidden, intermediate / tp, count});
  };
  add_mlp("", model.intermediate, model.layers);
  add_mlp("shared_", model.shared_intermediate, model.layers);
  add_mlp("expert_", model.expert_intermediate, model.layers * model.experts);
  return out;
}

Problem linear_problem(const Linear& linear, Role role, const Extent& tokens,
                       const Recipe& recipe) {
  if (!multiplies(recipe.op)) return one_operand_problem(linear, tokens, recipe);
  Problem p = from_recipe(recipe, role);
  p.b_rounding = recipe.b_rounding;
  p.contract = recipe.contract;
  p.spread = recipe.spread;
  p.repro = recipe.repro;
  p.accumulate = recipe.accumulate;
  p.bias = recipe.bias;
  p.d_type = recipe.op == Op::gemm_quantize   ? DType::mxfp4
             : recipe.out_type != DType::none ? recipe.out_type
             : role == Role::wgrad            ? DType::f32
                                              : recipe.in_type;
  const Role of_epilogue = is_derivative(recipe.epilogue) ? Role::dgrad : Role::fprop;
  if (role == of_epilogue || role == Role::none) {
    p.epilogue = recipe.epilogue;
    p.pre_activation = recipe.pre_activation;
  }
  if (role == Role::wgrad) p.bias_gradient = recipe.bias_gradient;
  if (recipe.grouping != Grouping::none) {
    p.grouping = role == Role::wgrad ? Grouping::k_grouped : recipe.grouping;
    p.groups = Extent::exactly(recipe.groups);
  }
  const auto out = Extent::exactly(linear.out), in = Extent::exactly(linear.in);
  switch (role) {
    case Role::none:
    case Role::fprop:
      p.m = tokens, p.n = out, p.k = in;
      break;
    case Role::dgrad:
      p.m = tokens, p.n = in, p.k = out;
      break;
    case Role::wgrad:
      p.m = out, p.n = in, p.k = tokens;
      break;
  }
  if (recipe.op == Op::gemm) {
    p.a_type = recipe.in_type;
    p.b_type = DType::mxfp4;
    return p;
  }
  p.a_type = recipe.in_type;
  p.b_type = role == Role::fprop || role == Role::none ? DType::mxfp4 : recipe.in_type;
  if (role == Role::dgrad) p.b_major = Major::rows;
  if (role == Role::wgrad) p.a_major = p.b_major = Major::rows;
  return p;
}

Workload make_workload(const Layers& layers, const Recipe& recipe) {
  Workload out;
  out.refused = layers.refused;
  const auto roles = !multiplies(recipe.op) ? std::vector<Role>{Role::none} : recipe.roles;
  for (const Role role : roles)
    for (const auto& linear : layers.linears)
      for (const auto& tokens : recipe.tokens) {
        const Problem problem = linear_problem(linear, role, tokens, recipe);
        if (const auto status = validate(problem); !status.ok()) {
          const auto layer =
              role == Role::none ? linear.name : fmt::format("{} {}", linear.name, name_of(role));
          // A refusal for the layer's own sizes would repeat for every range of tokens.
          if (out.refused.empty() || out.refused.back().layer != layer)
            out.refused.push_back({layer, status.message()});
          continue;
        }
        const auto same = std::find_if(out.items.begin(), out.items.end(),
                                       [&](const Item& item) { return item.problem == problem; });
        if (same == out.items.end()) {
          out.items.push_back({linear.name, problem, linear.count});
        } else {
          same->layers += "," + linear.name;
          same->calls += linear.count;
        }
      }
  return out;
}

Result<std::vector<Extent>> parse_tokens(std::string_view text) {
  std::vector<Extent> out;
  for (const auto word : split(text, ',')) {
    auto extent = parse_extent("token count", word, 0);
    if (!extent.ok())
      return bad(fmt::format("{}; write counts and ranges, for example 1,16,512 or 1..16,17..512",
                             extent.status().message()));
    if (std::find(out.begin(), out.end(), *extent) == out.end()) out.push_back(*extent);
  }
  return out;
}

Result<Shape> parse_shape(std::string_view text, Op op) {
  const auto words = split(text, 'x');
  const std::size_t wanted = !multiplies(op) ? 2 : 3;
  const auto form = !multiplies(op) ? "MxK, for example 512x4096"
                                    : "MxNxK, for example 16x4096x14336 or 1..16x4096x14336";
  if (words.size() != wanted)
    return bad(fmt::format("shape '{}' has {} sizes: op {} takes {}", text, words.size(),
                           name_of(op), form));
  auto tokens = parse_extent("M of a shape", words[0], 0);
  if (!tokens.ok()) return bad(fmt::format("{} (shape {})", tokens.status().message(), form));
  Shape shape;
  shape.tokens = *tokens;
  shape.linear.name = std::string(text);
  auto in = parse_size("K of a shape", words.back(), 1);
  if (!in.ok()) return bad(fmt::format("{} (shape {})", in.status().message(), form));
  shape.linear.in = *in;
  if (wanted == 3) {
    auto out = parse_size("N of a shape", words[1], 1);
    if (!out.ok()) return bad(fmt::format("{} (shape {})", out.status().message(), form));
    shape.linear.out = *out;
  }
  return shape;
}

Result<std::vector<Role>> parse_roles(std::string_view text) {
  std::vector<Role> out;
  for (const auto word : split(text, ',')) {
    const auto role = parse_enum<Role>(word);
    if (!role || *role == Role::none)
      return bad(fmt::format("role '{}' is not fprop, dgrad or wgrad", word));
    if (std::find(out.begin(), out.end(), *role) == out.end()) out.push_back(*role);
  }
  return out;
}

std::string short_name(const Problem& p) {
  const auto what = p.role == Role::none ? name_of(p.op) : name_of(p.role);
  if (!multiplies(p.op)) return fmt::format("{} {}x{}", what, print(p.m), print(p.k));
  return fmt::format("{} {}x{}x{}", what, print(p.m), print(p.n), print(p.k));
}

}  // namespace quarterturn
