// Puts families together: which steps solve a problem, in which variants, and with what scratch
// memory.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_set>

#include "generator/family.hpp"
#include "generator/grouping.hpp"
#include "generator/hip/families.hpp"

namespace quarterturn {
namespace {

DType type_of(const Problem& p, bool is_b) { return is_b ? p.b_type : p.a_type; }

// What a step leaves of an operand: MXFP4 [rows, k] in a layout.
Problem operand_problem(const Problem& p, bool is_b, Layout wanted) {
  Problem step;
  step.role = p.role;
  step.batch = p.batch;
  if (is_b && (p.grouping == Grouping::m_contiguous || p.grouping == Grouping::m_masked)) {
    step.batch = p.groups;
  } else if (p.grouping == Grouping::m_masked || p.grouping == Grouping::k_grouped) {
    step.grouping = p.grouping;
    step.groups = p.groups;
  }
  step.d_type = DType::mxfp4;
  step.d_layout = wanted;
  step.rotation = p.rotation;
  step.m = is_b ? p.n : p.m;
  step.k = p.k;
  return step;
}

Problem quantize_problem(const Problem& p, bool is_b, Layout wanted) {
  Problem step = operand_problem(p, is_b, wanted);
  step.op = Op::quantize;
  step.a_type = type_of(p, is_b);
  step.signs = p.signs;
  step.scale_rule = p.scale_rule;
  step.scale_block = p.scale_block;
  step.a_rounding = is_b ? p.b_rounding : p.a_rounding;
  step.biased = p.biased;
  if ((is_b ? p.b_major : p.a_major) == Major::rows) {
    step.copies = Copies::columns;
    std::swap(step.m, step.k);
  }
  return step;
}

Problem pack_problem(const Problem& p, bool is_b, Layout from, Layout wanted) {
  Problem step = operand_problem(p, is_b, wanted);
  step.op = Op::pack;
  step.a_type = DType::mxfp4;
  step.a_layout = from;
  return step;
}

// High-precision operands are quantised on the way.
bool quantizes_operands(const Problem& p) {
  return p.op == Op::hadamard_gemm || p.op == Op::gemm_quantize;
}

// What the multiplying step leaves of a `gemm_quantize`: D in binary32 for a step behind it, or D
// as it is asked for.
enum class ResultForm { binary32, quantized };

ResultForm result_of(const Problem& p, const Plan& plan) {
  return quantizes_in_product(p, plan) ? ResultForm::quantized : ResultForm::binary32;
}

Problem multiply_problem(const Problem& p, Layout a_layout, Layout b_layout, ResultForm result) {
  Problem step = p;
  step.op = result == ResultForm::quantized ? Op::gemm_quantize : Op::gemm;
  step.a_layout = a_layout;
  step.b_layout = b_layout;
  if (quantizes_operands(p)) step.a_type = DType::mxfp4;
  if (p.op == Op::gemm_quantize && result == ResultForm::binary32) {
    step.d_type = DType::f32;
    step.d_layout = Layout::plain;
    step.copies = Copies::rows;
    step.d_rounding = Rounding::rne;
  }
  step.bias_gradient = BiasGradient::none;
  step.b_type = DType::mxfp4;
  step.a_major = step.b_major = Major::k;
  return step;
}

// From a GEMM's binary32 result to what `gemm_quantize` gives.
Problem result_problem(const Problem& p) {
  Problem step;
  step.op = Op::quantize;
  step.role = p.role;
  step.batch = p.batch;
  step.m = p.m;
  step.k = {output_columns(p.epilogue, p.n.lo), output_columns(p.epilogue, p.n.hi)};
  step.a_type = DType::f32;
  step.d_type = DType::mxfp4;
  step.d_layout = p.d_layout;
  step.copies = p.copies;
  step.rotation = p.rotation;
  step.signs = p.signs;
  step.scale_rule = p.scale_rule;
  step.scale_block = p.scale_block;
  step.a_rounding = p.d_rounding;
  step.biased = p.biased;
  return step;
}

// The columns of A as it is stored, added up.
Problem sums_problem(const Problem& p) {
  Problem step;
  step.op = Op::column_sums;
  step.batch = p.batch;
  const bool transposed = multiplies(p.op);
  step.m = transposed ? p.k : p.m;
  step.k = transposed ? p.m : p.k;
  step.a_type = p.a_type;
  step.d_type = DType::f32;
  return step;
}

Problem whole_problem(const Problem& p) {
  Problem step = p;
  step.bias_gradient = BiasGradient::none;
  return step;
}

// What runs behind the step that computes D.
std::vector<std::pair<StepKind, Problem>> steps_after(const Problem& p, ResultForm result) {
  std::vector<std::pair<StepKind, Problem>> out;
  if (p.op == Op::gemm_quantize && result == ResultForm::binary32)
    out.emplace_back(StepKind::quantize_d, result_problem(p));
  if (p.bias_gradient != BiasGradient::none)
    out.emplace_back(StepKind::bias_gradient, sums_problem(p));
  return out;
}

// How a high-precision operand becomes what the GEMM reads: in one kernel, or quantised into layout
// plain and packed from there.
enum class Route { direct, by_plain };

// The steps that solve `p` when `gemm` does the multiplication: what must run before it and after,
// and on what.
struct Skeleton {
  std::vector<std::pair<StepKind, Problem>> before, after;
  std::optional<Variant> stand_in;
};

void append_operand(const Problem& p, bool is_b, Layout wanted, Route route, Skeleton& out) {
  const auto quantize = is_b ? StepKind::quantize_b : StepKind::quantize_a;
  const auto pack = is_b ? StepKind::pack_b : StepKind::pack_a;
  const Layout given = is_b ? p.b_layout : p.a_layout;
  if (type_of(p, is_b) == DType::mxfp4) {
    if (given != Layout::chosen && given != wanted)
      out.before.emplace_back(pack, pack_problem(p, is_b, given, wanted));
  } else if (!quantizes_operands(p)) {
    return;  // weight-only: A stays as it is
  } else if (route == Route::direct) {
    out.before.emplace_back(quantize, quantize_problem(p, is_b, wanted));
  } else {
    out.before.emplace_back(quantize, quantize_problem(p, is_b, Layout::plain));
    out.before.emplace_back(pack, pack_problem(p, is_b, Layout::plain, wanted));
  }
}

Skeleton skeleton(const Problem& p, const Family& gemm, const Variant& variant, ResultForm result,
                  Route a, Route b) {
  Skeleton out;
  const Layout a_layout = gemm.a_layout(p, variant), b_layout = gemm.b_layout(p, variant);
  out.after = steps_after(p, result);
  append_operand(p, false, a_layout, a, out);
  append_operand(p, true, b_layout, b, out);
  out.stand_in = gemm.stand_in(multiply_problem(p, a_layout, b_layout, result), variant);
  return out;
}

Route route_of(const Plan& plan, bool is_b) {
  const bool both = plan.find(is_b ? StepKind::quantize_b : StepKind::quantize_a) &&
                    plan.find(is_b ? StepKind::pack_b : StepKind::pack_a);
  return both ? Route::by_plain : Route::direct;
}

// The direct route, unless no family takes it.
Route route_for(const Problem& p, const Target& t, bool is_b, Layout wanted) {
  if (wanted == Layout::plain || type_of(p, is_b) == DType::mxfp4) return Route::direct;
  const Problem direct = quantize_problem(p, is_b, wanted);
  const auto all = families();
  const bool taken = std::any_of(all.begin(), all.end(), [&](const Family* family) {
    return family->vendor() == t.vendor && family->refuses(direct, t).empty() &&
           refuse_rounding(*family, direct).empty();
  });
  return taken ? Route::direct : Route::by_plain;
}

std::vector<Variant> accepted(const Problem& p, const Target& t, const Family& family,
                              std::vector<std::string>* reasons) {
  if (family.vendor() != t.vendor) return {};
  auto reason = family.refuses(p, t);
  if (reason.empty()) reason = refuse_rounding(family, p);
  if (!reason.empty()) {
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

bool costs_less(const Choice& x, const Choice& y) { return x.cost < y.cost; }

std::vector<Choice> choices(const Problem& p, const Target& t, std::vector<std::string>* reasons) {
  std::vector<Choice> out;
  for (const Family* family : families())
    for (auto& variant : accepted(p, t, *family, reasons)) {
      const double cost = family->predicted_cost(p, t, variant, 0);
      out.push_back({family, std::move(variant), cost});
    }
  std::stable_sort(out.begin(), out.end(), costs_less);
  return out;
}

// What it costs to repack operands that come in a layout of some kernel's own, where a variant
// reads another: without it, a weight that was laid out once would be moved in every call.
class Repacking {
 public:
  Repacking(const Problem& p, const Target& t) : problem_(p), target_(t) {}
  double cost(const Choice& gemm) {
    return cost(false, gemm.family->a_layout(problem_, gemm.variant)) +
           cost(true, gemm.family->b_layout(problem_, gemm.variant));
  }

 private:
  double cost(bool is_b, Layout wanted) {
    const Layout given = is_b ? problem_.b_layout : problem_.a_layout;
    if (type_of(problem_, is_b) != DType::mxfp4 || given == Layout::chosen ||
        given == Layout::plain || given == wanted)
      return 0;
    const auto [at, is_new] = known_.try_emplace({is_b, wanted}, 0.0);
    if (is_new)
      if (const auto packs = choices(pack_problem(problem_, is_b, given, wanted), target_, nullptr);
          !packs.empty())
        at->second = packs.front().cost;
    return at->second;
  }

  const Problem& problem_;
  const Target& target_;
  std::map<std::pair<bool, Layout>, double> known_;
};

// Plans in the order in which they were found, each once. There may be tens of thousands.
class PlanList {
 public:
  void add(Plan plan) {
    if (texts_.insert(plan.text()).second) plans_.push_back(std::move(plan));
  }
  std::size_t size() const { return plans_.size(); }
  std::vector<Plan> take() { return std::move(plans_); }

 private:
  std::vector<Plan> plans_;
  std::unordered_set<std::string> texts_;
};

// Plans around one GEMM variant: its preparation steps at their best prediction, then each of them
// varied.
void append_gemm_plans(const Problem& p, const Target& t, const Choice& gemm, ResultForm result,
                       std::size_t limit, std::vector<std::string>* reasons, PlanList& out) {
  const auto route = [&](bool is_b) {
    return route_for(
        p, t, is_b,
        is_b ? gemm.family->b_layout(p, gemm.variant) : gemm.family->a_layout(p, gemm.variant));
  };
  const auto bones = skeleton(p, *gemm.family, gemm.variant, result, route(false), route(true));
  std::vector<std::vector<Choice>> options;
  for (const auto& steps : {bones.before, bones.after})
    for (const auto& [kind, problem] : steps) {
      options.push_back(choices(problem, t, reasons));
      if (options.back().empty()) return;
    }
  const auto assemble = [&](std::size_t varied, std::size_t index) {
    Plan plan;
    std::size_t next = 0;
    const auto append = [&](const auto& steps) {
      for (const auto& [kind, problem] : steps) {
        plan.steps.push_back({kind, options[next][next == varied ? index : 0].variant});
        ++next;
      }
    };
    append(bones.before);
    plan.steps.push_back({StepKind::gemm, gemm.variant});
    if (bones.stand_in) plan.steps.push_back({StepKind::stand_in, *bones.stand_in});
    append(bones.after);
    return plan;
  };
  out.add(assemble(options.size(), 0));
  for (std::size_t i = 0; i < options.size(); ++i)
    for (std::size_t j = 1; j < options[i].size() && out.size() < limit; ++j)
      out.add(assemble(i, j));
}

// Plans around a kernel that computes D alone.
void append_whole_plans(const Problem& p, const Target& t, const Choice& whole, std::size_t limit,
                        std::vector<std::string>* reasons, PlanList& out) {
  Plan plan{{{StepKind::whole, whole.variant}}};
  const auto after = steps_after(p, ResultForm::binary32);
  if (after.empty()) return out.add(std::move(plan));
  const auto options = choices(after[0].second, t, reasons);
  for (std::size_t i = 0; i < options.size() && out.size() < limit; ++i) {
    Plan now = plan;
    now.steps.push_back({after[0].first, options[i].variant});
    out.add(std::move(now));
  }
}

// A kernel that computes D, and what of D.
struct Ranked {
  enum class Form { whole, gemm, gemm_and_result };
  Choice choice;
  Form form;
};

std::vector<Ranked> ranked_choices(const Problem& p, const Target& t,
                                   std::vector<std::string>* reasons) {
  std::vector<Ranked> out;
  // `gemm` over operands already in place is one kernel: not listed twice. And what multiplies and
  // quantises reads operands in a layout of its own.
  if (p.op != Op::gemm && p.op != Op::gemm_quantize)
    for (auto& choice : choices(whole_problem(p), t, reasons))
      out.push_back({std::move(choice), Ranked::Form::whole});
  if (multiplies(p.op)) {
    Repacking repacking(p, t);
    const auto add = [&](ResultForm result, Ranked::Form form, std::vector<std::string>* why) {
      for (auto& choice :
           choices(multiply_problem(p, Layout::chosen, Layout::chosen, result), t, why)) {
        choice.cost += repacking.cost(choice);
        out.push_back({std::move(choice), form});
      }
    };
    if (p.op == Op::gemm_quantize)
      add(ResultForm::quantized, Ranked::Form::gemm_and_result, nullptr);
    add(ResultForm::binary32, Ranked::Form::gemm, reasons);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Ranked& x, const Ranked& y) { return costs_less(x.choice, y.choice); });
  return out;
}

std::vector<Plan> enumerate(const Problem& p, const Target& t, std::size_t limit,
                            std::vector<std::string>* reasons) {
  PlanList out;
  const auto ranked = ranked_choices(p, t, reasons);
  const auto append = [&](const Ranked& entry, std::size_t most) {
    const bool one = entry.form == Ranked::Form::gemm_and_result;
    append_gemm_plans(p, t, entry.choice, one ? ResultForm::quantized : ResultForm::binary32, most,
                      reasons, out);
  };
  // Every GEMM first with its best preparation, then the preparations varied around the best GEMM.
  for (std::size_t i = 0; i < ranked.size() && out.size() < limit; ++i) {
    if (ranked[i].form == Ranked::Form::whole)
      append_whole_plans(p, t, ranked[i].choice, out.size() + 1, reasons, out);
    else
      append(ranked[i], out.size() + 1);
  }
  for (std::size_t i = 0; i < ranked.size() && out.size() < limit; ++i)
    if (ranked[i].form != Ranked::Form::whole) append(ranked[i], limit);
  return out.take();
}

}  // namespace

std::vector<Plan> plans(const Problem& problem, const Target& target, std::size_t limit) {
  return enumerate(problem, target, limit, nullptr);
}

Result<Plan> default_plan(const Problem& problem, const Target& target) {
  if (target.vendor == Vendor::amd)
    if (const auto reason = hip::refuse_target(target); !reason.empty())
      return Status(Code::not_supported, reason);
  for (const Rounding rounding : {problem.a_rounding, problem.b_rounding, problem.d_rounding})
    if (const auto reason = refuse_rounding(rounding, target); !reason.empty())
      return Status(Code::not_supported, reason);
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
  if (kind == StepKind::whole) return whole_problem(problem);
  if (kind == StepKind::quantize_d) return result_problem(problem);
  if (kind == StepKind::bias_gradient) return sums_problem(problem);
  const Step* gemm = plan.find(StepKind::gemm);
  const Family* family = gemm ? find_family(gemm->variant.family) : nullptr;
  if (!family) return problem;
  const Layout a = family->a_layout(problem, gemm->variant);
  const Layout b = family->b_layout(problem, gemm->variant);
  if (kind == StepKind::gemm || kind == StepKind::stand_in)
    return multiply_problem(problem, a, b, result_of(problem, plan));
  const bool is_b = kind == StepKind::quantize_b || kind == StepKind::pack_b;
  const Layout wanted = is_b ? b : a;
  const bool by_plain = route_of(plan, is_b) == Route::by_plain;
  if (kind == StepKind::quantize_a || kind == StepKind::quantize_b)
    return quantize_problem(problem, is_b, by_plain ? Layout::plain : wanted);
  const Layout given = is_b ? problem.b_layout : problem.a_layout;
  return pack_problem(problem, is_b, by_plain ? Layout::plain : given, wanted);
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
    if (const auto reason = refuse_rounding(*family, part); !reason.empty())
      return Status(Code::not_supported, fmt::format("{}: {}", family->name(), reason));
    if (auto status = family->check(part, target, step.variant); !status.ok()) return status;
  }
  const Step* gemm = plan.find(StepKind::gemm);
  if (!gemm && !plan.find(StepKind::whole))
    return Status(Code::invalid_argument,
                  fmt::format("plan '{}' has no GEMM and is not one kernel", plan.text()));
  if (!gemm && problem.op == Op::gemm_quantize)
    return Status(Code::invalid_argument,
                  fmt::format("plan '{}' has no step 'gemm', which a gemm_quantize begins with",
                              plan.text()));
  Skeleton bones;
  if (gemm)
    bones = skeleton(problem, *find_family(gemm->variant.family), gemm->variant,
                     result_of(problem, plan), route_of(plan, false), route_of(plan, true));
  else
    bones.after = steps_after(problem, ResultForm::binary32);
  std::vector<StepKind> kinds;
  for (const auto& [kind, part] : bones.before) kinds.push_back(kind);
  kinds.push_back(gemm ? StepKind::gemm : StepKind::whole);
  if (bones.stand_in) kinds.push_back(StepKind::stand_in);
  for (const auto& [kind, part] : bones.after) kinds.push_back(kind);
  if (kinds.size() != plan.steps.size())
    return Status(Code::invalid_argument,
                  fmt::format("plan '{}' does not have the steps this problem needs", plan.text()));
  for (std::size_t i = 0; i < kinds.size(); ++i)
    if (plan.steps[i].kind != kinds[i])
      return Status(Code::invalid_argument,
                    fmt::format("plan '{}' has its steps in another order", plan.text()));
  if (bones.stand_in && plan.find(StepKind::stand_in)->variant != *bones.stand_in)
    return Status(Code::invalid_argument,
                  fmt::format("'{}' must be followed by '{}', its exact stand-in",
                              gemm->variant.text(), bones.stand_in->text()));
  return {};
}

bool quantizes_in_product(const Problem& problem, const Plan& plan) {
  return problem.op == Op::gemm_quantize && plan.find(StepKind::gemm) &&
         !plan.find(StepKind::quantize_d);
}

std::optional<Plan> with_result_step(const Problem& problem, const Target& target, Plan plan) {
  const auto options = choices(result_problem(problem), target, nullptr);
  if (options.empty()) return {};
  plan.steps.push_back({StepKind::quantize_d, options.front().variant});
  return plan;
}

Workspace workspace_of(const Problem& problem, const Target& target, const Plan& plan,
                       const Sizes& sizes) {
  Workspace out;
  const Entries entries = entries_of(problem, sizes.batch, sizes.groups);
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
      const auto bytes = copy_bytes(problem, family->a_layout(problem, gemm->variant), sizes.m,
                                    sizes.k, sizes.groups);
      out.a_codes = reserve(bytes.codes * entries.a);
      out.a_scales = reserve(bytes.scales * entries.a);
    }
    if (plan.find(StepKind::quantize_b) || plan.find(StepKind::pack_b)) {
      const auto bytes = copy_bytes(problem, family->b_layout(problem, gemm->variant), sizes.n,
                                    sizes.k, sizes.groups);
      out.b_codes = reserve(bytes.codes * entries.b);
      out.b_scales = reserve(bytes.scales * entries.b);
    }
  }
  OperandBytes plain;
  for (const bool is_b : {false, true})
    if (route_of(plan, is_b) == Route::by_plain) {
      const auto bytes =
          copy_bytes(problem, Layout::plain, is_b ? sizes.n : sizes.m, sizes.k, sizes.groups);
      const auto matrices = is_b ? entries.b : entries.a;
      plain.codes = std::max(plain.codes, bytes.codes * matrices);
      plain.scales = std::max(plain.scales, bytes.scales * matrices);
    }
  if (plan.find(StepKind::quantize_d))
    out.result = reserve(sizes.m * output_columns(problem.epilogue, sizes.n) * entries.d *
                         bytes_of(DType::f32));
  out.plain_codes = reserve(plain.codes);
  out.plain_scales = reserve(plain.scales);
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
