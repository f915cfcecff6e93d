// Random data with the distributions that the papers use, the same on every machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

namespace quarterturn::reference {

class Samples {
 public:
  explicit Samples(std::uint64_t seed) : engine_(seed) {}

  /// In (0, 1).
  double uniform() { return (static_cast<double>(engine_() >> 12) + 0.5) * 0x1p-52; }

  /// N(0, 1), by Box and Muller.
  double normal() {
    if (have_spare_) {
      have_spare_ = false;
      return spare_;
    }
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const double angle = 2 * std::numbers::pi * uniform();
    have_spare_ = true;
    spare_ = radius * std::sin(angle);
    return radius * std::cos(angle);
  }

  double laplace() {
    const double u = uniform() - 0.5;
    return std::copysign(std::log(1 - 2 * std::fabs(u)), u);
  }

  double student(int degrees) {
    double chi = 0;
    const double top = normal();
    for (int i = 0; i < degrees; ++i) {
      const double x = normal();
      chi += x * x;
    }
    return top / std::sqrt(chi / degrees);
  }

  /// N(0, 1), to which N(0, deviation^2) is added with probability p.
  double spiked(double p, double deviation) {
    return normal() + (uniform() < p ? deviation * normal() : 0);
  }

  std::uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
  double spare_ = 0;
  bool have_spare_ = false;
};

template <typename Draw>
std::vector<float> sample(std::size_t count, Draw&& draw) {
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(draw());
  return out;
}

}  // namespace quarterturn::reference
