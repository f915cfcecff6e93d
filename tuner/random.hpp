// A small seeded generator, so that inputs, shuffles and resampling are the same on every machine.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace quarterturn {

/// SplitMix64 (Steele, Lea, Flood 2014): one 64-bit state, every seed is good.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mix(state_ += kStep); }
  /// The same as the n-th next() of a fresh generator: streams can be entered anywhere.
  static std::uint64_t at(std::uint64_t seed, std::uint64_t n) {
    return mix(seed + (n + 1) * kStep);
  }

  /// Uniform in [0, below); the bias of the multiplication is below 2^-32 for the sizes used here.
  std::uint64_t below(std::uint64_t below) {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(next()) * below) >> 64);
  }
  /// Uniform in [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  static constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ull;
  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }

  std::uint64_t state_;
};

}  // namespace quarterturn
