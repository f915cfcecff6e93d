#include "tuner/search.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "tuner/random.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kOfEachFamily = 3;

// The best few of each family that multiplies before all others: models err more between families,
// whose speed may depend on the data, than within one.
std::vector<Plan> families_first(const std::vector<Plan>& plans) {
  std::map<std::string_view, std::size_t> seen;
  std::vector<Plan> first, rest;
  for (const auto& plan : plans) {
    const bool early = seen[plan.main_step().variant.family]++ < kOfEachFamily;
    (early ? first : rest).push_back(plan);
  }
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

class InOrder : public Strategy {
 public:
  InOrder(std::string_view name, std::vector<Plan> plans, std::size_t most, std::size_t patience)
      : name_(name), plans_(std::move(plans)), patience_(patience) {
    if (plans_.size() > most) plans_.resize(most);
  }

  std::string_view name() const override { return name_; }

  std::vector<Plan> next(const std::vector<Outcome>& so_far, std::size_t most) override {
    if (satisfied(so_far)) at_ = plans_.size();
    std::vector<Plan> out;
    while (at_ < plans_.size() && out.size() < most) {
      const auto& plan = plans_[at_++];
      const bool tried = std::any_of(so_far.begin(), so_far.end(),
                                     [&](const Outcome& outcome) { return outcome.plan == plan; });
      if (!tried) out.push_back(plan);
    }
    return out;
  }

  std::size_t remaining() const override { return plans_.size() - at_; }

  bool satisfied(const std::vector<Outcome>& so_far) const override {
    double best = 0;
    std::size_t idle = 0;
    for (const auto& outcome : so_far) {
      ++idle;
      if (outcome.status != TrialStatus::ok || outcome.log_speedup < best + 0.01) continue;
      best = outcome.log_speedup;
      idle = 0;
    }
    return idle >= patience_;
  }

 private:
  std::string_view name_;
  std::vector<Plan> plans_;
  std::size_t patience_;
  std::size_t at_ = 0;
};

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

std::size_t most_of(const SearchSettings& settings) {
  return settings.most == 0 ? kAll : settings.most;
}

}  // namespace

std::vector<Plan> ordered_plans(const Space& space) {
  std::vector<Plan> out;
  for (const auto& seed : space.seeds)
    if (check_plan(space.problem, space.target, seed).ok() &&
        std::find(out.begin(), out.end(), seed) == out.end())
      out.push_back(seed);
  const std::vector<Plan> seeds = out;
  for (const auto& plan : families_first(space.plans))
    if (std::find(seeds.begin(), seeds.end(), plan) == seeds.end()) out.push_back(plan);
  return out;
}

std::size_t leading_plans(const std::vector<Plan>& plans) {
  std::map<std::string_view, std::size_t> seen;
  std::size_t out = 0;
  for (const auto& plan : plans) out += seen[plan.main_step().variant.family]++ < kOfEachFamily;
  return out;
}

std::unique_ptr<Strategy> in_predicted_order(const Space& space, const SearchSettings& settings) {
  return std::make_unique<InOrder>("predicted", ordered_plans(space), most_of(settings),
                                   settings.patience);
}

std::unique_ptr<Strategy> at_random(const Space& space, const SearchSettings& settings) {
  std::vector<Plan> plans = space.plans;
  Random(settings.seed).shuffle(plans);
  return std::make_unique<InOrder>("random", std::move(plans), most_of(settings), kAll);
}

std::unique_ptr<Strategy> exhaustive(const Space& space) {
  return std::make_unique<InOrder>("exhaustive", ordered_plans(space), kAll, kAll);
}

}  // namespace quarterturn
