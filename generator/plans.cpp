// Puts families together: which steps solve a problem, in which variants, and with what scratch
// memory.
#include <fmt/format.h>

#include <algorithm>

#include "generator/family.hpp"

namespace quarterturn {
namespace {

bool multiplies(Op op) { return op == Op::gemm || op == Op::hadamard_gemm; }

// An operand that some step must bring into the layout that the GEMM kernel reads.
Problem operand_problem(const Problem& p, bool is_b, Layout wanted) {
  Problem step;
  const Extent rows = is_b ? p.n : p.m;
  const DType type = is_b ? p.b_type : p.a_type;
  const Major major = is_b ? p.b_major : p.a_major;
  step.op = type == DType::mxfp4 ? Op::pack : Op::quantize;
  step.role = p.role;
  step.batch = p.batch;
  step.a_type = type;
  step.d_type = DType::mxfp4;
  step.a_layout = type == DType::mxfp4 ? (is_b ? p.b_layout : p.a_layout) : Layout::chosen;
  step.d_layout = wanted;
  step.rotation = p.rotation;
  step.m = rows;
  step.k = p.k;
  if (type != DType::mxfp4) {
    step.signs = p.signs;
    step.scale_rule = p.scale_rule;
    step.scale_block = p.scale_block;
    step.a_rounding = is_b ? p.b_rounding : p.a_rounding;
    step.biased = p.biased;
    if (major == Major::rows) {
      step.copies = Copies::columns;
      std::swap(step.m, step.k);
    }
  }
  return step;
}

Problem multiply_problem(const Problem& p, Layout a_layout, Layout b_layout) {
  Problem step = p;
  step.op = Op::gemm;
  step.a_layout = a_layout;
  step.b_layout = b_layout;
  if (p.op == Op::hadamard_gemm) step.a_type = DType::mxfp4;
  step.b_type = DType::mxfp4;
  step.a_major = step.b_major = Major::k;
  return step;
}

// The steps that solve `p` when `gemm` does the multiplication: what must run before it, and on
// what.
struct Skeleton {
  std::vector<std::pair<StepKind, Problem>> before;
  const Family* gemm = nullptr;
  Variant gemm_variant;
};

Skeleton skeleton(const Problem& p, const Family& gemm, const Variant& variant) {
  Skeleton out;
  out.gemm = &gemm;
  out.gemm_variant = variant;
  const Layout a = gemm.a_layout(p, variant);
  const Layout b = gemm.b_layout(p, variant);
  if (p.op == Op::hadamard_gemm)
    out.before.emplace_back(StepKind::quantize_a, operand_problem(p, false, a));
  else if (p.a_type == DType::mxfp4 && p.a_layout != Layout::chosen && p.a_layout != a)
    out.before.emplace_back(StepKind::pack_a, operand_problem(p, false, a));
  if (p.b_type != DType::mxfp4)
    out.before.emplace_back(StepKind::quantize_b, operand_problem(p, true, b));
  else if (p.b_layout != Layout::chosen && p.b_layout != b)
    out.before.emplace_back(StepKind::pack_b, operand_problem(p, true, b));
  return out;
}

std::vector<Variant> accepted(const Problem& p, const Target& t, const Family& family,
                              std::vector<std::string>* reasons) {
  if (family.vendor() != t.vendor) return {};
  if (const auto reason = family.refuses(p, t); !reason.empty()) {
    if (reasons) reasons->push_back(fmt::format("{}: {}", family.name(), reason));
    return {};
  }
  auto out = family.variants(p, t);
  if (out.empty() && reasons)
    reasons->push_back(fmt::format("{}: no legal variant", family.name()));
  return out;
}

struct Choice {
  const Family* family;
  Variant variant;
  double cost;
};

std::vector<Choice> choices(const Problem& p, const Target& t, std::vector<std::string>* reasons) {
  std::vector<Choice> out;
  for (const Family* family : families())
    for (auto& variant : accepted(p, t, *family, reasons)) {
      const double cost = family->predicted_cost(p, t, variant);
      out.push_back({family, std::move(variant), cost});
    }
  std::stable_sort(out.begin(), out.end(),
                   [](const Choice& x, const Choice& y) { return x.cost < y.cost; });
  return out;
}

void append_unique(std::vector<Plan>& out, Plan plan) {
  if (std::find(out.begin(), out.end(), plan) == out.end()) out.push_back(std::move(plan));
}

// Plans around one GEMM variant: its preparation steps at their best prediction, then each of them
// varied.
void append_gemm_plans(const Problem& p, const Target& t, const Choice& gemm, std::size_t limit,
                       std::vector<std::string>* reasons, std::vector<Plan>& out) {
  const auto bones = skeleton(p, *gemm.family, gemm.variant);
  std::vector<std::vector<Choice>> options;
  for (const auto& [kind, problem] : bones.before) {
    options.push_back(choices(problem, t, reasons));
    if (options.back().empty()) return;
  }
  const auto assemble = [&](std::size_t varied, std::size_t index) {
    Plan plan;
    for (std::size_t i = 0; i < options.size(); ++i)
      plan.steps.push_back({bones.before[i].first, options[i][i == varied ? index : 0].variant});
    plan.steps.push_back({StepKind::gemm, gemm.variant});
    return plan;
  };
  append_unique(out, assemble(options.size(), 0));
  for (std::size_t i = 0; i < options.size(); ++i)
    for (std::size_t j = 1; j < options[i].size() && out.size() < limit; ++j)
      append_unique(out, assemble(i, j));
}

std::vector<Plan> enumerate(const Problem& p, const Target& t, std::size_t limit,
                            std::vector<std::string>* reasons) {
  std::vector<Plan> out;
  struct Ranked {
    Choice choice;
    bool whole;
  };
  std::vector<Ranked> ranked;
  for (auto& choice : choices(p, t, reasons)) ranked.push_back({std::move(choice), true});
  if (multiplies(p.op)) {
    const auto whole = ranked.size();
    for (auto& choice : choices(multiply_problem(p, Layout::chosen, Layout::chosen), t, reasons))
      ranked.push_back({std::move(choice), false});
    // `gemm` over operands already in place is one kernel: not listed twice.
    if (p.op == Op::gemm)
      ranked.erase(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(whole));
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& x, const Ranked& y) { return x.choice.cost < y.choice.cost; });
  // Every GEMM first with its best preparation, then the preparations varied around the best GEMM.
  for (std::size_t i = 0; i < ranked.size() && out.size() < limit; ++i) {
    if (ranked[i].whole)
      append_unique(out, Plan{{{StepKind::whole, ranked[i].choice.variant}}});
    else
      append_gemm_plans(p, t, ranked[i].choice, out.size() + 1, reasons, out);
  }
  for (std::size_t i = 0; i < ranked.size() && out.size() < limit; ++i)
    if (!ranked[i].whole) append_gemm_plans(p, t, ranked[i].choice, limit, reasons, out);
  return out;
}

}  // namespace

std::vector<Plan> plans(const Problem& problem, const Target& target, std::size_t limit) {
  return enumerate(problem, target, limit, nullptr);
}

Result<Plan> default_plan(const Problem& problem, const Target& target) {
  std::vector<std::string> reasons;
  auto found = enumerate(problem, target, 1, &reasons);
  if (!found.empty()) return std::move(found.front());
  std::sort(reasons.begin(), reasons.end());
  reasons.erase(std::unique(reasons.begin(), reasons.end()), reasons.end());
  return Status(
      Code::not_supported,
      fmt::format("no kernel family computes this on {} ({}): {}", target.key(), problem.key(),
                  reasons.empty() ? "no family for this vendor"
                                  : fmt::format("{}", fmt::join(reasons, "; "))));
}

Problem step_problem(const Problem& problem, const Target&, const Plan& plan, StepKind kind) {
  if (kind == StepKind::whole) return problem;
  const Step* gemm = plan.find(StepKind::gemm);
  const Family* family = gemm ? find_family(gemm->variant.family) : nullptr;
  if (!family) return problem;
  const Layout a = family->a_layout(problem, gemm->variant);
  const Layout b = family->b_layout(problem, gemm->variant);
  if (kind == StepKind::gemm) return multiply_problem(problem, a, b);
  const bool is_b = kind == StepKind::quantize_b || kind == StepKind::pack_b;
  return operand_problem(problem, is_b, is_b ? b : a);
}

Status check_plan(const Problem& problem, const Target& target, const Plan& plan) {
  for (const auto& step : plan.steps)
    if (!find_family(step.variant.family))
      return Status(Code::unknown_name,
                    fmt::format("no family is called '{}'", step.variant.family));
  for (const auto& step : plan.steps) {
    const Family* family = find_family(step.variant.family);
    const Problem part = step_problem(problem, target, plan, step.kind);
    if (family->vendor() != target.vendor)
      return Status(Code::not_supported,
                    fmt::format("{} does not run on {}", family->name(), target.key()));
    if (const auto reason = family->refuses(part, target); !reason.empty())
      return Status(Code::not_supported, fmt::format("{}: {}", family->name(), reason));
    if (auto status = family->check(part, target, step.variant); !status.ok()) return status;
  }
  const Step* gemm = plan.find(StepKind::gemm);
  if (!gemm) {
    if (plan.steps.size() == 1 && plan.steps[0].kind == StepKind::whole) return {};
    return Status(Code::invalid_argument,
                  fmt::format("plan '{}' has no GEMM and is not one kernel", plan.text()));
  }
  const auto bones = skeleton(problem, *find_family(gemm->variant.family), gemm->variant);
  if (bones.before.size() + 1 != plan.steps.size())
    return Status(Code::invalid_argument,
                  fmt::format("plan '{}' does not have the steps this problem needs", plan.text()));
  for (std::size_t i = 0; i < bones.before.size(); ++i)
    if (plan.steps[i].kind != bones.before[i].first)
      return Status(Code::invalid_argument,
                    fmt::format("plan '{}' has its steps in another order", plan.text()));
  return {};
}

Workspace workspace_of(const Problem& problem, const Target& target, const Plan& plan,
                       const Sizes& sizes) {
  Workspace out;
  std::int64_t at = 0;
  const auto reserve = [&at](std::int64_t bytes) {
    const std::int64_t offset = at;
    at += round_up(bytes, 256);
    return offset;
  };
  const Step* gemm = plan.find(StepKind::gemm);
  const Family* family = gemm ? find_family(gemm->variant.family) : nullptr;
  if (family) {
    if (plan.find(StepKind::quantize_a) || plan.find(StepKind::pack_a)) {
      const auto bytes = operand_bytes(family->a_layout(problem, gemm->variant), sizes.m, sizes.k,
                                       padding_unit(problem));
      out.a_codes = reserve(bytes.codes * sizes.batch);
      out.a_scales = reserve(bytes.scales * sizes.batch);
    }
    if (plan.find(StepKind::quantize_b) || plan.find(StepKind::pack_b)) {
      const auto bytes = operand_bytes(family->b_layout(problem, gemm->variant), sizes.n, sizes.k,
                                       padding_unit(problem));
      out.b_codes = reserve(bytes.codes * sizes.batch);
      out.b_scales = reserve(bytes.scales * sizes.batch);
    }
  }
  std::int64_t scratch = 0;
  for (const auto& step : plan.steps)
    if (const Family* f = find_family(step.variant.family))
      scratch = std::max(scratch, f->workspace_bytes(step_problem(problem, target, plan, step.kind),
                                                     step.variant, sizes));
  out.kernel = reserve(scratch);
  out.bytes = at;
  return out;
}

}  // namespace quarterturn
