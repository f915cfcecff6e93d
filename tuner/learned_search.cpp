// The strategy that learns (search.hpp).
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "tuner/forest.hpp"
#include "tuner/random.hpp"
#include "tuner/search.hpp"

namespace quarterturn {
namespace {

constexpr double kWorth = 0.01;  // a gain that renews patience
constexpr double kLikelyFailure = 0.5;
constexpr double kNeighbourWeight = 0.3;  // of an example, against one of this problem
constexpr std::size_t kNeighbourExamples = 160;
constexpr std::size_t kFewest = 24, kMost = 160;              // standard budget
constexpr std::size_t kFewestKernels = 48, kStepsBefore = 4;  // of a plan, beside its main one
constexpr std::size_t kOpinion = 8;                           // trees
constexpr std::size_t kExploreEvery = 5;  // the how-manieth pick goes where trees disagree
constexpr std::size_t kBestMains = 3;     // whose preparations are varied

double log_ratio(double value, double least) {
  return value > 0 && least > 0 ? std::log(value / least) : 0;
}

bool has_failed(const Outcome& outcome) {
  return outcome.status != TrialStatus::ok && outcome.status != TrialStatus::pruned;
}

double speed_of(const Outcome& outcome) {
  return outcome.status == TrialStatus::ok ? outcome.log_speedup : -2;
}

// What the family that multiplies reads decides what others write.
using Kernels = std::set<std::tuple<StepKind, Variant, std::string>>;

Kernels with_kernels_of(const Plan& plan, Kernels known) {
  for (const Step& step : plan.steps)
    if (step.kind != StepKind::stand_in)
      known.emplace(step.kind, step.variant, plan.main_step().variant.family);
  return known;
}

std::size_t kernels_of(const std::vector<Plan>& plans) {
  Kernels kernels;
  for (const Plan& plan : plans) kernels = with_kernels_of(plan, std::move(kernels));
  return kernels.size();
}

class Learned final : public Strategy {
 public:
  Learned(const Space& space, const SearchSettings& settings)
      : space_(space),
        settings_(settings),
        most_(settings.most == 0 ? standard_budget(space) : settings.most),
        most_kernels_(
            std::max({kFewestKernels, settings.most + kStepsBefore, kernels_of(space.plans) / 10})),
        random_(settings.seed),
        features_(space.units) {
    if (!space_.cost)
      space_.cost = [problem = space.problem, target = space.target, units = space.units](
                        const Plan& plan) { return predicted_cost(problem, target, plan, units); };
    index_plans();
    for (const auto& seed : space_.seeds) seeds_ += numbers_.count(seed.text());
    learn_from_neighbours();
    choose_first();
  }

  std::string_view name() const override { return "learned"; }

  std::vector<Plan> next(const std::vector<Outcome>& so_far, std::size_t most) override {
    std::vector<Plan> out;
    if (satisfied(so_far)) {
      given_ = most_;
      return out;
    }
    mark_known(so_far);
    while (out.size() < most && given_ < most_) {
      const auto pick = first_.empty() ? pick_by_model(so_far) : pick_first();
      if (!pick) {
        if (first_.empty()) break;
        continue;
      }
      choices_[*pick].tried = true;
      auto kernels = with_kernels_of(choices_[*pick].plan, kernels_);
      if (kernels.size() > most_kernels_) {
        given_ = most_;
        break;
      }
      kernels_ = std::move(kernels);
      ++given_;
      out.push_back(choices_[*pick].plan);
    }
    return out;
  }

  std::size_t remaining() const override {
    return std::min(most_ - std::min(most_, given_), choices_.size());
  }

  bool satisfied(const std::vector<Outcome>& so_far) const override {
    double best = 0;
    std::size_t idle = 0;
    for (std::size_t i = 0; i < so_far.size(); ++i) {
      // What is asked for in the beginning is in no particular order: it tries nobody's patience.
      if (i >= first_count_) ++idle;
      if (so_far[i].status != TrialStatus::ok || so_far[i].log_speedup < best + kWorth) continue;
      best = so_far[i].log_speedup;
      idle = 0;
    }
    return idle >= settings_.patience;
  }

 private:
  struct Choice {
    Plan plan;
    PlanCost cost;
    std::size_t main = 0;  // index of its main variant
    bool is_base = false;  // the first plan with this main variant: its best preparation
    bool tried = false;
    std::vector<float> features;  // when it was needed
  };

  // Costs are worked out for base plans, and for others when their main step is among the best.
  void index_plans() {
    std::map<Variant, std::size_t> mains;
    for (auto& plan : ordered_plans(space_)) {
      Choice choice;
      const auto [at, is_new] = mains.try_emplace(plan.main_step().variant, mains.size());
      choice.main = at->second;
      choice.is_base = is_new;
      numbers_.emplace(plan.text(), choices_.size());
      if (is_new) {
        choice.cost = space_.cost(plan);
        bases_.push_back(choices_.size());
        of_main_.emplace_back();
      }
      of_main_[choice.main].push_back(choices_.size());
      choice.plan = std::move(plan);
      choices_.push_back(std::move(choice));
    }
    for (const auto i : bases_) {
      const PlanCost& cost = choices_[i].cost;
      if (cost.main > 0 && (least_.main == 0 || cost.main < least_.main)) least_.main = cost.main;
      if (cost.preparation > 0 &&
          (least_.preparation == 0 || cost.preparation < least_.preparation))
        least_.preparation = cost.preparation;
    }
  }

  const std::vector<float>& features_of(Choice& choice) {
    if (choice.features.empty()) {
      if (choice.cost.main == 0) choice.cost = space_.cost(choice.plan);
      choice.features = features_.of(space_.problem, choice.plan, choice.cost, least_);
    }
    if (choice.features.size() < features_.size())
      choice.features = features_.padded(std::move(choice.features));
    return choice.features;
  }

  // A neighbour's plans, as far behind its best as they were there.
  void learn_from_neighbours() {
    for (const auto& neighbour : space_.neighbours) {
      double best = -std::numeric_limits<double>::infinity();
      for (const auto& outcome : neighbour.outcomes)
        if (outcome.status == TrialStatus::ok) best = std::max(best, outcome.log_speedup);
      PlanCost least;
      std::vector<PlanCost> costs = neighbour.costs;
      costs.resize(neighbour.outcomes.size());
      for (const auto& cost : costs) {
        if (cost.main > 0 && (least.main == 0 || cost.main < least.main)) least.main = cost.main;
        if (cost.preparation > 0 &&
            (least.preparation == 0 || cost.preparation < least.preparation))
          least.preparation = cost.preparation;
      }
      for (std::size_t i = 0; i < neighbour.outcomes.size(); ++i) {
        const Outcome& outcome = neighbour.outcomes[i];
        auto features = features_.of(neighbour.problem, outcome.plan, costs[i], least);
        if (outcome.status == TrialStatus::ok && std::isfinite(best) &&
            neighbour_speeds_.size() < kNeighbourExamples) {
          neighbour_speeds_.push_back({features, outcome.log_speedup - best, kNeighbourWeight});
          neighbour_costs_.push_back(log_ratio(costs[i].main, least.main));
        }
        neighbour_failures_.push_back(
            {std::move(features), has_failed(outcome) ? 1.0 : 0.0, kNeighbourWeight});
      }
    }
  }

  // Half of what may be tried at most: seeds, the best of each family, then their second best and
  // so on; and some from all over the space, more of them from its better half.
  void choose_first() {
    constexpr std::size_t kLeading = 12, kDrawn = 8;
    std::map<std::string_view, std::size_t> seen;
    std::vector<std::pair<std::size_t, std::size_t>> leading;  // by rank in its family
    for (const auto i : bases_)
      leading.emplace_back(i < seeds_ ? 0 : 1 + seen[choices_[i].plan.main_step().variant.family]++,
                           i);
    std::stable_sort(leading.begin(), leading.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    const std::size_t families = std::max<std::size_t>(1, seen.size());
    const std::size_t most_leading =
        seeds_ + std::clamp(most_ / 3, std::min(families, most_), std::max(kLeading, 2 * families));
    for (const auto& [rank, i] : leading)
      if (first_.size() < most_leading) first_.push_back(i);
    std::vector<std::size_t> by_cost(bases_);
    std::stable_sort(by_cost.begin(), by_cost.end(), [this](std::size_t a, std::size_t b) {
      return choices_[a].cost.main < choices_[b].cost.main;
    });
    for (std::size_t i = 0; i < std::min(kDrawn, most_ / 4) && !by_cost.empty(); ++i) {
      const auto range = i % 2 == 0 ? by_cost.size() : (by_cost.size() + 3) / 4;
      const auto drawn = by_cost[random_.below(range)];
      if (std::find(first_.begin(), first_.end(), drawn) == first_.end()) first_.push_back(drawn);
    }
    if (first_.size() > most_) first_.resize(most_);
    first_count_ = first_.size();
  }

  std::optional<std::size_t> pick_first() {
    const auto at = first_.front();
    first_.erase(first_.begin());
    if (choices_[at].tried) return std::nullopt;
    return at;
  }

  void mark_known(const std::vector<Outcome>& so_far) {
    for (; known_ < so_far.size(); ++known_) {
      const auto at = numbers_.find(so_far[known_].plan.text());
      if (at != numbers_.end()) choices_[at->second].tried = true;
    }
  }

  // How far the analytic model's differences are to be believed: 0 not at all, 1 fully. By least
  // squares.
  double belief(const std::vector<std::pair<double, double>>& cost_and_speed) const {
    double mean_cost = 0, mean_speed = 0;
    for (const auto& [cost, speed] : cost_and_speed) mean_cost += cost, mean_speed += speed;
    const double count = static_cast<double>(cost_and_speed.size());
    if (count < 3) return 1;
    mean_cost /= count;
    mean_speed /= count;
    double both = 0, costs = 1e-6;
    for (const auto& [cost, speed] : cost_and_speed) {
      both += (cost - mean_cost) * (speed - mean_speed);
      costs += (cost - mean_cost) * (cost - mean_cost);
    }
    return std::clamp(-both / costs, 0.0, 1.0);
  }

  void fit(const std::vector<Outcome>& so_far) {
    if (fitted_ == so_far.size() && !speeds_.empty()) return;
    fitted_ = so_far.size();
    double best = -std::numeric_limits<double>::infinity();
    for (const auto& outcome : so_far)
      if (outcome.status == TrialStatus::ok) best = std::max(best, outcome.log_speedup);
    if (!std::isfinite(best)) best = 0;
    std::vector<Example> speeds, failures;
    std::vector<std::pair<double, double>> cost_and_speed;
    for (const auto& outcome : so_far) {
      const auto at = numbers_.find(outcome.plan.text());
      if (at == numbers_.end()) continue;
      Choice& choice = choices_[at->second];
      const auto& features = features_of(choice);
      failures.push_back({features, has_failed(outcome) ? 1.0 : 0.0, 1});
      if (has_failed(outcome)) continue;
      speeds.push_back({features, speed_of(outcome) - best, 1});
      cost_and_speed.emplace_back(log_ratio(choice.cost.main, least_.main), speeds.back().value);
    }
    belief_ = belief(cost_and_speed);
    for (std::size_t i = 0; i < speeds.size(); ++i)
      speeds[i].value += belief_ * cost_and_speed[i].first;
    for (std::size_t i = 0; i < neighbour_speeds_.size(); ++i) {
      speeds.push_back(neighbour_speeds_[i]);
      speeds.back().value += belief_ * neighbour_costs_[i];
    }
    failures.insert(failures.end(), neighbour_failures_.begin(), neighbour_failures_.end());
    for (auto* examples : {&speeds, &failures})
      for (auto& example : *examples)
        example.features = features_.padded(std::move(example.features));
    ForestSettings settings;
    settings.seed = settings_.seed + fitted_;
    speeds_ = Forest(speeds, settings);
    settings.trees = 24;
    failures_ = Forest(failures, settings);
    width_ = features_.size();
  }

  // Base plans, and all preparations of the fastest main steps.
  std::vector<std::size_t> pool(const std::vector<Outcome>& so_far) {
    std::vector<std::size_t> out;
    for (const auto i : bases_)
      if (!choices_[i].tried) out.push_back(i);
    std::vector<std::pair<double, std::size_t>> fastest;
    for (const auto& outcome : so_far) {
      const auto at = numbers_.find(outcome.plan.text());
      if (at != numbers_.end() && outcome.status == TrialStatus::ok)
        fastest.emplace_back(-outcome.log_speedup, choices_[at->second].main);
    }
    std::sort(fastest.begin(), fastest.end());
    std::vector<std::size_t> mains;
    for (const auto& [speed, main] : fastest)
      if (mains.size() < kBestMains && std::find(mains.begin(), mains.end(), main) == mains.end())
        mains.push_back(main);
    for (const auto main : mains)
      for (const auto i : of_main_[main])
        if (!choices_[i].tried && !choices_[i].is_base) out.push_back(i);
    return out;
  }

  // Whether two plans' main steps differ in one parameter only.
  static bool is_beside(const Variant& a, const Variant& b) {
    if (a.family != b.family || a.values.size() != b.values.size()) return false;
    std::size_t differences = 0;
    for (auto x = a.values.begin(), y = b.values.begin(); x != a.values.end(); ++x, ++y) {
      if (x->first != y->first) return false;
      differences += x->second != y->second;
    }
    return differences <= 1;
  }

  const Variant* fastest_main(const std::vector<Outcome>& so_far) const {
    const Outcome* best = nullptr;
    for (const auto& outcome : so_far)
      if (outcome.status == TrialStatus::ok && (!best || outcome.log_speedup > best->log_speedup))
        best = &outcome;
    return best ? &best->plan.main_step().variant : nullptr;
  }

  // In turns: what some trees think best; the same among those beside the fastest plan so far; and
  // what may be best as far as all trees can tell.
  std::optional<std::size_t> pick_by_model(const std::vector<Outcome>& so_far) {
    fit(so_far);
    const auto candidates = pool(so_far);
    if (candidates.empty()) return std::nullopt;
    const bool explore = picks_ % kExploreEvery == kExploreEvery - 1;
    const bool local = !explore && picks_ % 2 == 1;
    const Variant* fastest = local ? fastest_main(so_far) : nullptr;
    const auto first_tree = random_.below(std::max<std::size_t>(1, speeds_.size()));
    ++picks_;
    std::optional<std::size_t> best, best_beside;
    double best_score = -std::numeric_limits<double>::infinity(), beside_score = best_score;
    for (const auto i : candidates) {
      auto features = features_of(choices_[i]);
      features.resize(std::max(width_, features.size()), -1);
      if (failures_.predict(features).mean > kLikelyFailure) continue;
      const double analytic = -belief_ * log_ratio(choices_[i].cost.main, least_.main);
      double score = 0;
      if (explore) {
        const auto predicted = speeds_.predict(features);
        score = predicted.mean + analytic + 2 * predicted.spread;
      } else {
        score = speeds_.opinion(features, first_tree, kOpinion) + analytic;
      }
      if (score > best_score) best_score = score, best = i;
      if (fastest && score > beside_score &&
          is_beside(*fastest, choices_[i].plan.main_step().variant))
        beside_score = score, best_beside = i;
    }
    if (best_beside) return best_beside;
    return best ? best : std::optional(candidates.front());
  }

  Space space_;
  SearchSettings settings_;
  std::size_t most_, most_kernels_;
  Kernels kernels_;  // of what was asked for
  Random random_;
  PlanFeatures features_;
  std::vector<Choice> choices_;
  std::map<std::string, std::size_t> numbers_;  // by Plan::text
  std::vector<std::size_t> bases_;
  std::vector<std::vector<std::size_t>> of_main_;
  PlanCost least_;
  std::vector<Example> neighbour_speeds_, neighbour_failures_;
  std::vector<double> neighbour_costs_;
  std::vector<std::size_t> first_;
  std::size_t seeds_ = 0, first_count_ = 0, known_ = 0, given_ = 0, picks_ = 0;
  std::size_t fitted_ = 0, width_ = 0;
  double belief_ = 1;
  Forest speeds_, failures_;
};

}  // namespace

std::size_t standard_budget(const Space& space) {
  // A tenth.
  const std::size_t tenth = kernels_of(space.plans) / 10;
  return std::clamp(tenth - std::min(tenth, kStepsBefore), kFewest, kMost);
}

std::unique_ptr<Strategy> learned(const Space& space, const SearchSettings& settings) {
  return std::make_unique<Learned>(space, settings);
}

}  // namespace quarterturn
