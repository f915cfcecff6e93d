// Forest: bagged regression trees (Breiman 2001), small and deterministic by seed: what a search
// believes of plans that it has not tried.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace quarterturn {

/// A value at a point. All points of a forest have the same number of features.
struct Example {
  std::vector<float> features;
  double value = 0;
  double weight = 1;
};

struct ForestSettings {
  std::size_t trees = 48;
  std::size_t least_leaf = 2;  ///< examples
  std::size_t depth = 14;
  double feature_share = 0.6;  ///< of the features, drawn for each split
  std::uint64_t seed = 1;
};

class Forest {
 public:
  Forest() = default;
  Forest(std::span<const Example> examples, const ForestSettings& settings);

  bool empty() const { return trees_.empty(); }
  std::size_t size() const { return trees_.size(); }

  struct Prediction {
    double mean = 0;
    double spread = 0;  ///< standard deviation over the trees
  };
  /// Zeros from an empty forest.
  Prediction predict(std::span<const float> features) const;
  /// The mean of `count` trees from `first` on, in a circle: one opinion of several.
  double opinion(std::span<const float> features, std::size_t first, std::size_t count) const;

 private:
  struct Node {
    std::int32_t feature = -1;  ///< -1: a leaf
    float limit = 0;            ///< values up to it go left
    std::int32_t left = 0, right = 0;
    double value = 0;
  };
  using Tree = std::vector<Node>;
  class Builder;

  static double value_of(const Tree& tree, std::span<const float> features);

  std::vector<Tree> trees_;
};

}  // namespace quarterturn
