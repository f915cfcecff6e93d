#include "tuner/plan_features.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace quarterturn {
namespace {

double log2_ratio(double value, double least) {
  return value > 0 && least > 0 ? std::log2(value / least) : 0;
}

double log2_of(const Extent& extent) {
  return std::log2(static_cast<double>(std::max<std::int64_t>(1, extent.hi)));
}

double family_number(const std::string& name) {
  const auto all = families();
  const auto at = std::find_if(all.begin(), all.end(),
                               [&](const Family* family) { return family->name() == name; });
  return static_cast<double>(at - all.begin());
}

}  // namespace

std::int64_t units_of(std::string_view performance_class) {
  for (const std::string_view name : {"units=", "cores="}) {
    const auto at = performance_class.find(name);
    if (at == std::string_view::npos) continue;
    std::int64_t value = 0;
    std::from_chars(performance_class.data() + at + name.size(),
                    performance_class.data() + performance_class.size(), value);
    return value;
  }
  return 0;
}

PlanCost predicted_cost(const Problem& problem, const Target& target, const Plan& plan,
                        std::int64_t units) {
  PlanCost out;
  const StepKind main = plan.main_step().kind;
  for (const Step& step : plan.steps) {
    const Family* family = find_family(step.variant.family);
    if (!family || step.kind == StepKind::stand_in) continue;
    const Problem own = step_problem(problem, target, plan, step.kind);
    const double cost = family->predicted_cost(own, target, step.variant, units);
    (step.kind == main ? out.main : out.preparation) += cost;
  }
  return out;
}

void PlanFeatures::set(std::vector<float>& features, const std::string& name, double value) {
  const std::size_t column = columns_.try_emplace(name, columns_.size()).first->second;
  if (features.size() <= column) features.resize(column + 1, -1);
  features[column] = static_cast<float>(value);
}

std::vector<float> PlanFeatures::of(const Problem& problem, const Plan& plan, const PlanCost& cost,
                                    const PlanCost& least) {
  std::vector<float> out;
  set(out, "m", log2_of(problem.m));
  set(out, "n", log2_of(problem.n));
  set(out, "k", log2_of(problem.k));
  set(out, "cost", log2_ratio(cost.main, least.main));
  set(out, "preparation cost", log2_ratio(cost.preparation, least.preparation));
  const StepKind main = plan.main_step().kind;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::stand_in) continue;
    const std::string prefix(step.kind == main ? "main" : step_name(step.kind));
    set(out, prefix, family_number(step.variant.family));
    for (const auto& [name, value] : step.variant.values)
      set(out, prefix + "." + name, static_cast<double>(value));
  }
  // Tiles and the share of them that is padding: what decides waves.
  const Variant& variant = plan.main_step().variant;
  const auto tile_m = variant.value("tile_m"), tile_n = variant.value("tile_n");
  if (tile_m > 0 && tile_n > 0 && problem.m.hi > 0 && problem.n.hi > 0) {
    const auto rows = ceil_div(problem.m.hi, tile_m), columns = ceil_div(problem.n.hi, tile_n);
    set(out, "tiles", std::log2(static_cast<double>(rows * columns)));
    set(out, "padding",
        static_cast<double>(rows * tile_m) / static_cast<double>(problem.m.hi) *
            static_cast<double>(columns * tile_n) / static_cast<double>(problem.n.hi));
    if (units_ > 0)
      set(out, "last wave",
          static_cast<double>(rows * columns) /
              static_cast<double>(round_up(rows * columns, units_)));
    set(out, "area", std::log2(static_cast<double>(tile_m * tile_n)));
  }
  return padded(std::move(out));
}

std::vector<float> PlanFeatures::padded(std::vector<float> features) const {
  features.resize(columns_.size(), -1);
  return features;
}

}  // namespace quarterturn
