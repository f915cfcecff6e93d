#include "generator/variant.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>

namespace quarterturn {
namespace {

constexpr std::array<std::string_view, 9> step_names = {
    "quantize_a", "quantize_b", "pack_a",     "pack_b",       "gemm",
    "whole",      "stand_in",   "quantize_d", "bias_gradient"};

template <class Int>
bool parse_integer(std::string_view text, Int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Status malformed(std::string_view text) {
  return Status(
      Code::invalid_argument,
      fmt::format("'{}' is not a variant; it reads family/revision{{name=value,...}}", text));
}

// Calls visit(part) for each part of `text` between separators; stops at the first failure.
template <class Visit>
Status for_each_part(std::string_view text, char separator, Visit visit) {
  while (!text.empty()) {
    const auto end = text.find(separator);
    if (auto status = visit(text.substr(0, end)); !status.ok()) return status;
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return {};
}

}  // namespace

std::string Variant::family_text() const { return fmt::format("{}/{}", family, revision); }

std::int64_t Variant::value(const std::string& name, std::int64_t fallback) const {
  const auto found = values.find(name);
  return found == values.end() ? fallback : found->second;
}

std::string Variant::text() const {
  std::string inner;
  for (const auto& [name, value] : values)
    inner += fmt::format("{}{}={}", inner.empty() ? "" : ",", name, value);
  return fmt::format("{}/{}{{{}}}", family, revision, inner);
}

Result<Variant> parse_variant(std::string_view text) {
  Variant variant;
  const auto slash = text.find('/');
  const auto brace = text.find('{');
  if (slash == std::string_view::npos || brace == std::string_view::npos || brace < slash ||
      text.back() != '}' || slash == 0)
    return malformed(text);
  variant.family = std::string(text.substr(0, slash));
  if (!parse_integer(text.substr(slash + 1, brace - slash - 1), variant.revision))
    return malformed(text);
  const auto inner = text.substr(brace + 1, text.size() - brace - 2);
  auto status = for_each_part(inner, ',', [&](std::string_view part) -> Status {
    const auto equals = part.find('=');
    std::int64_t value = 0;
    if (equals == std::string_view::npos || equals == 0 ||
        !parse_integer(part.substr(equals + 1), value))
      return malformed(text);
    variant.values[std::string(part.substr(0, equals))] = value;
    return {};
  });
  if (!status.ok()) return status;
  return variant;
}

std::string_view step_name(StepKind kind) { return step_names[static_cast<std::size_t>(kind)]; }

std::string Plan::text() const {
  std::string out;
  for (const auto& step : steps)
    out +=
        fmt::format("{}{}={}", out.empty() ? "" : ";", step_name(step.kind), step.variant.text());
  return out;
}

const Step* Plan::find(StepKind kind) const {
  for (const auto& step : steps)
    if (step.kind == kind) return &step;
  return nullptr;
}

const Step& Plan::main_step() const {
  const Step* gemm = find(StepKind::gemm);
  if (gemm) return *gemm;
  const Step* whole = find(StepKind::whole);
  return whole ? *whole : steps.back();
}

Result<Plan> parse_plan(std::string_view text) {
  Plan plan;
  auto status = for_each_part(text, ';', [&](std::string_view part) -> Status {
    const auto equals = part.find('=');
    for (std::size_t i = 0; i < step_names.size(); ++i) {
      if (step_names[i] != part.substr(0, equals)) continue;
      auto variant = parse_variant(part.substr(equals + 1));
      if (!variant.ok()) return variant.status();
      plan.steps.push_back({static_cast<StepKind>(i), std::move(*variant)});
      return {};
    }
    return Status(Code::invalid_argument, fmt::format("'{}' is not a step of a plan", part));
  });
  if (!status.ok()) return status;
  if (plan.steps.empty()) return Status(Code::invalid_argument, "a plan has at least one step");
  return plan;
}

}  // namespace quarterturn
