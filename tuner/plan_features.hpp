// PlanFeatures: a plan as numbers that trees can split: families, parameters, and what an analytic
// model says of it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "generator/family.hpp"

namespace quarterturn {

/// What the families predict; comparable within a problem, and each kind of step with itself only.
/// 0 = not known.
struct PlanCost {
  double main = 0;         ///< of the step that multiplies, or of the only one
  double preparation = 0;  ///< of those before it
};

/// How many run tiles side by side, by a device's performance class; 0 = it does not say.
std::int64_t units_of(std::string_view performance_class);

/// By the families' own models. `units`: that run parts side by side; 0 = not known.
PlanCost predicted_cost(const Problem& problem, const Target& target, const Plan& plan,
                        std::int64_t units);

class PlanFeatures {
 public:
  /// `units`: of the device that run tiles side by side; 0 = not known.
  explicit PlanFeatures(std::int64_t units) : units_(units) {}

  /// Without names of their own, parameters of two plans mean the same where step and name do. A
  /// plan that lacks a feature has -1 there. Vectors made early may be shorter than later ones:
  /// `padded` makes them equal.
  std::vector<float> of(const Problem& problem, const Plan& plan, const PlanCost& cost,
                        const PlanCost& least);
  std::vector<float> padded(std::vector<float> features) const;
  std::size_t size() const { return columns_.size(); }

 private:
  void set(std::vector<float>& features, const std::string& name, double value);

  std::int64_t units_;
  std::map<std::string, std::size_t> columns_;
};

}  // namespace quarterturn
