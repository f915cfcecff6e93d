#include "tuner/forest.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tuner/random.hpp"

namespace quarterturn {

class Forest::Builder {
 public:
  Builder(std::span<const Example> examples, const ForestSettings& settings, std::uint64_t seed)
      : examples_(examples), settings_(settings), random_(seed) {
    const auto features = examples.empty() ? 0 : examples.front().features.size();
    features_.resize(features);
    std::iota(features_.begin(), features_.end(), 0);
    drawn_ = std::clamp<std::size_t>(
        static_cast<std::size_t>(std::ceil(settings.feature_share * static_cast<double>(features))),
        std::min<std::size_t>(1, features), features);
  }

  Tree build() {
    std::vector<std::size_t> sample(examples_.size());
    for (auto& i : sample) i = random_.below(examples_.size());
    grow(sample, 0);
    return std::move(tree_);
  }

 private:
  struct Split {
    std::int32_t feature = -1;
    float limit = 0;
    double gain = 0;
  };

  std::int32_t grow(std::vector<std::size_t>& sample, std::size_t depth) {
    const auto at = static_cast<std::int32_t>(tree_.size());
    double weight = 0, sum = 0;
    for (const auto i : sample)
      weight += examples_[i].weight, sum += examples_[i].weight * examples_[i].value;
    tree_.push_back({});
    tree_[static_cast<std::size_t>(at)].value = weight > 0 ? sum / weight : 0;
    if (depth >= settings_.depth || sample.size() < 2 * settings_.least_leaf) return at;
    const Split split = best_split(sample);
    if (split.feature < 0) return at;
    const auto middle = std::stable_partition(sample.begin(), sample.end(), [&](std::size_t i) {
      return feature(i, split.feature) <= split.limit;
    });
    std::vector<std::size_t> left(sample.begin(), middle), right(middle, sample.end());
    const auto left_node = grow(left, depth + 1), right_node = grow(right, depth + 1);
    Node& node = tree_[static_cast<std::size_t>(at)];
    node.feature = split.feature;
    node.limit = split.limit;
    node.left = left_node;
    node.right = right_node;
    return at;
  }

  float feature(std::size_t example, std::int32_t which) const {
    return examples_[example].features[static_cast<std::size_t>(which)];
  }

  // By the reduction of the sum of squares; equal gains go to the feature that was drawn first.
  Split best_split(const std::vector<std::size_t>& sample) {
    random_.shuffle(features_);
    Split best{-1, 0, 1e-12};
    std::vector<std::size_t> order;
    for (std::size_t f = 0; f < drawn_; ++f) {
      const std::int32_t which = features_[f];
      order = sample;
      std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        const float x = feature(a, which), y = feature(b, which);
        return x < y || (x == y && a < b);
      });
      if (feature(order.front(), which) == feature(order.back(), which)) continue;
      scan(order, which, best);
    }
    return best;
  }

  void scan(const std::vector<std::size_t>& order, std::int32_t which, Split& best) const {
    double all_weight = 0, all_sum = 0;
    for (const auto i : order)
      all_weight += examples_[i].weight, all_sum += examples_[i].weight * examples_[i].value;
    double weight = 0, sum = 0;
    for (std::size_t i = 0; i + 1 < order.size(); ++i) {
      weight += examples_[order[i]].weight;
      sum += examples_[order[i]].weight * examples_[order[i]].value;
      const float here = feature(order[i], which), next = feature(order[i + 1], which);
      if (here == next || i + 1 < settings_.least_leaf ||
          order.size() - i - 1 < settings_.least_leaf)
        continue;
      const double rest = all_sum - sum, rest_weight = all_weight - weight;
      const double gain =
          sum * sum / weight + rest * rest / rest_weight - all_sum * all_sum / all_weight;
      if (gain > best.gain) best = {which, 0.5f * (here + next), gain};
    }
  }

  std::span<const Example> examples_;
  const ForestSettings& settings_;
  Random random_;
  std::vector<std::int32_t> features_;
  std::size_t drawn_ = 0;
  Tree tree_;
};

Forest::Forest(std::span<const Example> examples, const ForestSettings& settings) {
  if (examples.empty()) return;
  for (std::size_t i = 0; i < settings.trees; ++i)
    trees_.push_back(Builder(examples, settings, Random::at(settings.seed, i)).build());
}

double Forest::value_of(const Tree& tree, std::span<const float> features) {
  std::size_t at = 0;
  while (tree[at].feature >= 0) {
    const Node& node = tree[at];
    const bool left = features[static_cast<std::size_t>(node.feature)] <= node.limit;
    at = static_cast<std::size_t>(left ? node.left : node.right);
  }
  return tree[at].value;
}

Forest::Prediction Forest::predict(std::span<const float> features) const {
  if (trees_.empty()) return {};
  double sum = 0, squares = 0;
  for (const auto& tree : trees_) {
    const double value = value_of(tree, features);
    sum += value;
    squares += value * value;
  }
  const double count = static_cast<double>(trees_.size()), mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean))};
}

double Forest::opinion(std::span<const float> features, std::size_t first,
                       std::size_t count) const {
  if (trees_.empty() || count == 0) return 0;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sum += value_of(trees_[(first + i) % trees_.size()], features);
  return sum / static_cast<double>(count);
}

}  // namespace quarterturn
