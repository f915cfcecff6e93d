#include "generator/problem.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <vector>

#include "generator/grouping.hpp"

namespace quarterturn {
namespace {

template <class E>
std::string print(E value) {
  return std::string(name_of(value));
}
std::string print(const Extent& extent) {
  return extent.is_static() ? fmt::format("{}", extent.lo)
                            : fmt::format("{}..{}", extent.lo, extent.hi);
}
std::string print(std::int32_t value) { return fmt::format("{}", value); }

bool parse_integer(std::string_view text, std::int64_t& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

template <class E>
bool parse(std::string_view text, E& out) {
  const auto value = parse_enum<E>(text);
  if (value) out = *value;
  return value.has_value();
}
bool parse(std::string_view text, Extent& out) {
  const auto dots = text.find("..");
  if (dots == std::string_view::npos) return parse_integer(text, out.lo) && (out.hi = out.lo, true);
  return parse_integer(text.substr(0, dots), out.lo) &&
         parse_integer(text.substr(dots + 2), out.hi);
}
bool parse(std::string_view text, std::int32_t& out) {
  std::int64_t wide = 0;
  if (!parse_integer(text, wide) || wide != static_cast<std::int32_t>(wide)) return false;
  out = static_cast<std::int32_t>(wide);
  return true;
}

struct Field {
  std::string_view name;
  bool (*read)(std::string_view text, Problem& problem);
};
constexpr Field kFields[] = {
#define X(type, field, value) \
  {#field, [](std::string_view text, Problem& problem) { return parse(text, problem.field); }},
    QTURN_PROBLEM_FIELDS(X)
#undef X
};

// `next`: where the search begins, since keys name fields in the order of the list. It is moved
// behind the field.
Status set_field(Problem& problem, std::string_view name, std::string_view text,
                 std::size_t& next) {
  constexpr std::size_t count = std::size(kFields);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = next + i < count ? next + i : next + i - count;
    if (kFields[at].name != name) continue;
    next = at + 1 < count ? at + 1 : 0;
    if (kFields[at].read(text, problem)) return {};
    return Status(Code::invalid_problem,
                  fmt::format("problem field '{}' cannot be '{}'", name, text));
  }
  return Status(Code::invalid_problem, fmt::format("no problem field is called '{}'", name));
}

Status bad(std::string message) { return Status(Code::invalid_problem, std::move(message)); }

Status check_extent(std::string_view name, const Extent& extent, std::int64_t least) {
  if (extent.lo < least || extent.hi < extent.lo)
    return bad(fmt::format("{} is {}: it must be a size, or a range lo..hi with {} <= lo <= hi",
                           name, print(extent), least));
  return {};
}

// Rotations that fit `size`, or the sizes that fit at all.
std::string remedy(std::string_view name, std::int64_t size) {
  if (size % 32 != 0) return fmt::format("Pad {} to {}", name, round_up(size, 32));
  std::vector<std::int32_t> fit;
  for (const std::int32_t rotation : {0, 16, 32, 64, 128, 256})
    if (rotation <= 32 || size % rotation == 0) fit.push_back(rotation);
  return fmt::format("Rotations {} fit it", fmt::join(fit, ", "));
}

// A static contraction axis is a feature dimension: a remainder there is the caller's fault. A
// run-time one counts tokens and is padded.
Status check_contraction(std::string_view name, const Extent& extent, const Problem& problem) {
  const std::int64_t unit = padding_unit(problem);
  const bool tokens = problem.role == Role::wgrad || problem.grouping == Grouping::k_grouped;
  if (!extent.is_static() || tokens || extent.lo % unit == 0) return {};
  return bad(fmt::format(
      "{} = {} is not a multiple of {}: the contraction axis of features must be a multiple of the "
      "MX block 32 and of the rotation size ({}). {}, or state a run-time range if these are "
      "tokens",
      name, extent.lo, unit, problem.rotation, remedy(name, extent.lo)));
}

}  // namespace

std::string Problem::key() const {
  static const Problem defaults;
  std::string out;
#define X(type, name, value)      \
  if (!(name == defaults.name)) { \
    if (!out.empty()) out += ' '; \
    out += #name "=";             \
    out += print(name);           \
  }
  QTURN_PROBLEM_FIELDS(X)
#undef X
  return out;
}

Result<Problem> parse_problem(std::string_view key) {
  Problem problem;
  std::size_t next = 0;
  while (!key.empty()) {
    const auto space = key.find(' ');
    const auto word = key.substr(0, space);
    key = space == std::string_view::npos ? std::string_view{} : key.substr(space + 1);
    if (word.empty()) continue;
    const auto equals = word.find('=');
    if (equals == std::string_view::npos)
      return bad(fmt::format("'{}' is not of the form field=value", word));
    if (auto status = set_field(problem, word.substr(0, equals), word.substr(equals + 1), next);
        !status.ok())
      return status;
  }
  return problem;
}

namespace {

std::string_view first_word(std::string_view& text) {
  const auto space = std::min(text.find(' '), text.size());
  const auto word = text.substr(0, space);
  text.remove_prefix(std::min(space + 1, text.size()));
  return word;
}

}  // namespace

// Applies what differs, where both keys name the same fields in the same order.
bool ProblemReader::read_changes(std::string_view key) {
  std::string_view before = last_;
  std::size_t next = 0;
  while (!key.empty() && !before.empty()) {
    const auto word = first_word(key), known = first_word(before);
    if (word == known) continue;
    const auto equals = word.find('=');
    if (equals == std::string_view::npos || equals != known.find('=') ||
        word.substr(0, equals) != known.substr(0, equals) ||
        !set_field(problem_, word.substr(0, equals), word.substr(equals + 1), next).ok())
      return false;
  }
  return key.empty() && before.empty();
}

Result<Problem> ProblemReader::read(std::string_view key) {
  if (!last_.empty() && read_changes(key)) {
    last_ = key;
    return problem_;
  }
  last_.clear();
  auto problem = parse_problem(key);
  if (!problem.ok()) return problem.status();
  // In the canonical order no field stands there twice.
  if (problem->key() == key) {
    problem_ = *problem;
    last_ = key;
  }
  return problem;
}

bool clips(ScaleRule rule) {
  switch (rule) {
    case ScaleRule::floor:
    case ScaleRule::even:
    case ScaleRule::quest:
    case ScaleRule::quest_qutlass:
    case ScaleRule::search:
      return true;
    case ScaleRule::rceil:
    case ScaleRule::ceil:
    case ScaleRule::ts34:
      return false;
  }
  return true;
}

bool multiplies(Op op) {
  return op == Op::gemm || op == Op::hadamard_gemm || op == Op::gemm_quantize;
}

bool is_derivative(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::dgelu:
    case Epilogue::dgelu_tanh:
    case Epilogue::dswiglu:
    case Epilogue::dswiglu_interleaved:
      return true;
    case Epilogue::none:
    case Epilogue::gelu:
    case Epilogue::gelu_tanh:
    case Epilogue::swiglu_split:
    case Epilogue::swiglu_interleaved:
      return false;
  }
  return false;
}

bool is_gated(Epilogue epilogue) {
  return epilogue == Epilogue::swiglu_split || epilogue == Epilogue::swiglu_interleaved;
}

std::int64_t output_columns(Epilogue epilogue, std::int64_t n) {
  if (is_gated(epilogue)) return n / 2;
  const bool both = epilogue == Epilogue::dswiglu || epilogue == Epilogue::dswiglu_interleaved;
  return both ? 2 * n : n;
}

std::int64_t aux_columns(Epilogue epilogue, std::int64_t n) {
  return is_derivative(epilogue) ? output_columns(epilogue, n) : 0;
}

DType side_type(const Problem& problem) {
  if (problem.c_type != DType::none) return problem.c_type;
  return problem.d_type == DType::mxfp4 ? DType::f32 : problem.d_type;
}

std::int64_t input_columns(Prologue prologue, std::int64_t k) {
  const bool gated = prologue == Prologue::swiglu_split || prologue == Prologue::swiglu_interleaved;
  return gated ? 2 * k : k;
}

bool is_of_hardware(Rounding rounding) {
  return rounding == Rounding::sr_cvt_rs || rounding == Rounding::sr_cvt_scalef32;
}

bool is_stochastic(Rounding rounding) {
  return rounding == Rounding::sr16 || rounding == Rounding::sr22 || rounding == Rounding::sr8 ||
         is_of_hardware(rounding);
}

std::int64_t padding_unit(const Problem& problem) {
  return problem.rotation > 32 ? problem.rotation : 32;
}

std::int64_t bytes_of(DType type) {
  switch (type) {
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f32:
      return 4;
    case DType::none:
    case DType::mxfp4:
      return 0;
  }
  return 0;
}

namespace {

Status check_numerics(const Problem& p) {
  const auto g = p.rotation;
  if (g != 0 && g != 16 && g != 32 && g != 64 && g != 128 && g != 256)
    return bad(fmt::format("rotation = {}: it must be 0 (none), 16, 32, 64, 128 or 256", g));
  if (g == 0 && p.signs != Signs::none)
    return bad(
        fmt::format("signs = {} without a rotation: random signs belong to a Hadamard rotation; "
                    "set rotation, or signs = none",
                    name_of(p.signs)));
  if (p.scale_block == ScaleBlock::b32x32) {
    if (g != 0)
      return bad(
          "scale_block = 32x32 with a rotation: a rotated weight and its transpose differ, so they "
          "cannot share codes; use 1x32, or rotation = 0");
    if (p.scale_rule != ScaleRule::floor && p.scale_rule != ScaleRule::even &&
        p.scale_rule != ScaleRule::rceil && p.scale_rule != ScaleRule::ceil)
      return bad(fmt::format(
          "scale_rule = {} with scale_block = 32x32: floor, even, rceil or ceil are allowed",
          name_of(p.scale_rule)));
  }
  const bool stochastic =
      is_stochastic(p.a_rounding) || is_stochastic(p.b_rounding) || is_stochastic(p.d_rounding);
  if (stochastic && clips(p.scale_rule) && p.biased == BiasedRounding::refused)
    return bad(fmt::format(
        "stochastic rounding with scale_rule = {} is biased, because that rule clips; use "
        "rceil, ceil or ts34, or allow it with biased = allowed",
        name_of(p.scale_rule)));
  return {};
}

bool high_precision(DType type) {
  return type == DType::bf16 || type == DType::f16 || type == DType::f32;
}

Status check_types(const Problem& p) {
  const auto needs = [](std::string_view field, DType given, std::string_view allowed) {
    return bad(fmt::format("{} = {}: this op takes {}", field, name_of(given), allowed));
  };
  switch (p.op) {
    case Op::quantize:
    case Op::hadamard:
      if (!high_precision(p.a_type)) return needs("a_type", p.a_type, "bf16, f16 or f32");
      if (p.op == Op::quantize && p.d_type != DType::mxfp4)
        return needs("d_type", p.d_type, "mxfp4");
      if (p.op == Op::hadamard && !high_precision(p.d_type))
        return needs("d_type", p.d_type, "bf16, f16 or f32");
      return {};
    case Op::column_sums:
      if (!high_precision(p.a_type)) return needs("a_type", p.a_type, "bf16, f16 or f32");
      if (p.d_type != DType::f32) return needs("d_type", p.d_type, "f32");
      return {};
    case Op::dequantize:
    case Op::pack:
      if (p.a_type != DType::mxfp4) return needs("a_type", p.a_type, "mxfp4");
      if (p.op == Op::pack && p.d_type != DType::mxfp4) return needs("d_type", p.d_type, "mxfp4");
      if (p.op == Op::dequantize && !high_precision(p.d_type))
        return needs("d_type", p.d_type, "bf16, f16 or f32");
      return {};
    case Op::gemm:
      if (p.b_type != DType::mxfp4)
        return needs("b_type", p.b_type, "mxfp4 (for high precision, use hadamard_gemm)");
      if (p.a_type == DType::none)
        return needs("a_type", p.a_type, "mxfp4, or bf16, f16, f32 (weight-only)");
      if (!high_precision(p.d_type)) return needs("d_type", p.d_type, "bf16, f16 or f32");
      return {};
    case Op::hadamard_gemm:
      if (!high_precision(p.a_type)) return needs("a_type", p.a_type, "bf16, f16 or f32");
      if (p.b_type == DType::none)
        return needs("b_type", p.b_type, "bf16, f16, f32, or mxfp4 (a prepared weight)");
      if (!high_precision(p.d_type)) return needs("d_type", p.d_type, "bf16, f16 or f32");
      return {};
    case Op::gemm_quantize:
      if (p.a_type == DType::none || p.b_type == DType::none)
        return needs("a_type", p.a_type, "two operands");
      if (p.d_type != DType::mxfp4) return needs("d_type", p.d_type, "mxfp4");
      return {};
  }
  return bad("unknown op");
}

Status check_epilogue(const Problem& p) {
  const auto name = name_of(p.epilogue);
  if (p.epilogue != Epilogue::none && !multiplies(p.op))
    return bad(fmt::format(
        "epilogue = {} needs a GEMM; what `quantize` applies first is a prologue", name));
  if (is_gated(p.epilogue) && (p.n.lo % 2 != 0 || p.n.hi % 2 != 0))
    return bad(fmt::format("n = {} with epilogue = {}: gates and values are pairs, so n is even",
                           print(p.n), name));
  if (p.pre_activation == PreActivation::kept &&
      (p.epilogue == Epilogue::none || is_derivative(p.epilogue)))
    return bad(
        fmt::format("pre_activation = kept with epilogue = {}: an activation's argument is "
                    "kept; gelu, gelu_tanh, swiglu_split or swiglu_interleaved are allowed",
                    name));
  if (p.c_type != DType::none && !(multiplies(p.op) && high_precision(p.c_type)))
    return bad(fmt::format("c_type = {}: it is bf16, f16 or f32, of what a GEMM's epilogue reads",
                           name_of(p.c_type)));
  if (p.d_rounding != Rounding::rne && p.op != Op::gemm_quantize)
    return bad(fmt::format("d_rounding = {} is of gemm_quantize; `quantize` rounds by a_rounding",
                           name_of(p.d_rounding)));
  return {};
}

Status check_prologue(const Problem& p) {
  if (p.prologue == Prologue::none) return {};
  const auto name = name_of(p.prologue);
  if (p.grouping != Grouping::none)
    return bad(fmt::format("prologue = {} with grouping = {}: prologues are of ungrouped calls",
                           name, name_of(p.grouping)));
  if (p.op != Op::quantize)
    return bad(fmt::format("prologue = {} is of op quantize, not of {}", name, name_of(p.op)));
  if (p.scale_block != ScaleBlock::b1x32)
    return bad(fmt::format("prologue = {} with scale_block = 32x32: activations take 1x32", name));
  if (p.prologue == Prologue::rmsnorm && p.copies != Copies::rows)
    return bad("prologue = rmsnorm gives copies = rows: a row's factor is known at its end");
  return {};
}

Status check_bias_gradient(const Problem& p) {
  if (p.bias_gradient == BiasGradient::none) return {};
  if (p.grouping != Grouping::none)
    return bad(fmt::format("bias_gradient = f32 with grouping = {}: sums are of ungrouped calls",
                           name_of(p.grouping)));
  if (p.op == Op::quantize)
    return p.prologue == Prologue::none
               ? Status{}
               : bad("bias_gradient = f32 with a prologue: X itself is no gradient there");
  if (p.op == Op::hadamard_gemm && p.role == Role::wgrad && p.a_major == Major::rows) return {};
  return bad(
      "bias_gradient = f32 is of op quantize (columns of X), or of op hadamard_gemm in role wgrad "
      "with a_major = rows (dY as it is stored, [tokens, m])");
}

// Where D's columns are the next product's features.
Status check_quantized_result(const Problem& p) {
  if (p.op != Op::gemm_quantize) return {};
  if (p.grouping != Grouping::none)
    return bad(
        fmt::format("op = gemm_quantize with grouping = {}: quantise what a grouped product "
                    "gives in a call of its own",
                    name_of(p.grouping)));
  const auto columns =
      Extent{output_columns(p.epilogue, p.n.lo), output_columns(p.epilogue, p.n.hi)};
  if (p.copies != Copies::columns)
    if (auto s = check_contraction("columns of D", columns, p); !s.ok()) return s;
  if (p.copies != Copies::rows && p.m.is_static() && p.role == Role::none)
    if (auto s = check_contraction("m", p.m, p); !s.ok()) return s;
  return {};
}

}  // namespace

Status validate(const Problem& p) {
  if (auto s = check_extent("m", p.m, 0); !s.ok()) return s;
  const bool tokens = p.role == Role::wgrad || p.grouping == Grouping::k_grouped;
  if (auto s = check_extent("k", p.k, p.k.is_static() && !tokens ? 1 : 0); !s.ok()) return s;
  if (multiplies(p.op)) {
    if (auto s = check_extent("n", p.n, 1); !s.ok()) return s;
  } else if (p.n != Extent{}) {
    return bad(fmt::format("n = {}: this op has one operand, A [m, k]; leave n at 0", print(p.n)));
  }
  if (auto s = check_extent("batch", p.batch, 1); !s.ok()) return s;
  if (auto s = check_extent("groups", p.groups, 1); !s.ok()) return s;
  if (auto s = check_types(p); !s.ok()) return s;
  if (auto s = check_numerics(p); !s.ok()) return s;
  if (auto s = check_grouping(p); !s.ok()) return s;
  if (p.op == Op::hadamard && p.rotation == 0)
    return bad("op hadamard needs a rotation size: 16, 32, 64, 128 or 256");
  const bool along_rows =
      multiplies(p.op) || (p.copies != Copies::columns && p.op != Op::column_sums);
  if (along_rows)
    if (auto s = check_contraction("k", p.k, p); !s.ok()) return s;
  if (!multiplies(p.op) && p.copies != Copies::rows && p.m.is_static() && p.role == Role::none)
    if (auto s = check_contraction("m", p.m, p); !s.ok()) return s;
  if (auto s = check_epilogue(p); !s.ok()) return s;
  if (auto s = check_prologue(p); !s.ok()) return s;
  if (auto s = check_bias_gradient(p); !s.ok()) return s;
  if (auto s = check_quantized_result(p); !s.ok()) return s;
  if (p.accumulate == Accumulate::accumulate && !multiplies(p.op))
    return bad("accumulate needs a GEMM: this op overwrites its result");
  return {};
}

}  // namespace quarterturn
