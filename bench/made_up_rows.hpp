// Rows of a tuning database as an H200 leaves them, made up: what a simulated device measured.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cache/records.hpp"

namespace quarterturn::bench {

inline Env env() {
  Env out;
  out.target = "sm_90a";
  out.performance_class = "nvidia model=sm_90a units=132 l2=62914560 memory_gib=140";
  out.driver = "13.0", out.toolkit = "13.0", out.compiler = "nvrtc 13.0 8c0c43bc28dabe7d";
  out.library = "0.1.0";
  return out;
}

inline std::string problem(int i) {
  const int n = 512 * (1 + i % 40), k = 256 * (1 + i / 40 % 50), m = 1 << i / 2000;
  return fmt::format(
      "op=hadamard_gemm role=fprop m={}..{} n={} k={} a_type=bf16 b_type=mxfp4 d_type=bf16 "
      "rotation=32 signs=fixed spread=narrow",
      m, 2 * m, n, k);
}

// splitmix64: a stream of its own for each number, at no cost to begin.
struct Random {
  std::uint64_t state;
  std::uint64_t operator()() {
    std::uint64_t z = state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
  }
};

inline std::string plan(Random& random) {
  const auto pick = [&](unsigned count) { return static_cast<int>(random() % count); };
  return fmt::format(
      "quantize_a=cuda_quantize/1{{resident=4,threads={}}};gemm=cuda_gemm_int8/1{{cluster={},"
      "pieces={},promote=0,raster={},stages={},tile_m={},tile_n={}}};stand_in=cuda_stand_in/1{{}}",
      128 << pick(2), 1 + pick(2), 1 + pick(2), 8 << pick(3), 3 + pick(3), 64 << pick(3),
      64 << pick(3));
}

// Trials number `from` to `to`: always the same for one number.
inline std::vector<Trial> trials(int from, int to, int problems,
                                 const std::shared_ptr<const Env>& env) {
  std::vector<Trial> out;
  for (int i = from; i < to; ++i) {
    Random random{static_cast<std::uint64_t>(i) << 20};
    Trial trial;
    for (auto& byte : trial.uuid) byte = static_cast<unsigned char>(random());
    trial.problem = problem(i % problems);
    trial.plan = plan(random);
    trial.env = env;
    trial.sizes = "m=16 n=4096 k=4096";
    trial.profile = "forward";
    trial.rounds = 4;
    trial.median_ns = 1e4 + static_cast<double>(random() % 100000);
    trial.low_ns = 0.99 * trial.median_ns, trial.high_ns = 1.01 * trial.median_ns;
    trial.ratio = trial.ratio_low = trial.ratio_high = 1.1;
    trial.started = 1'700'000'000'000'000'000 + i;
    trial.samples.assign(4, trial.median_ns);
    trial.extra = "sizes=1 stolen=0.000 others=0.00 rotation=8_copies";
    out.push_back(std::move(trial));
  }
  return out;
}

}  // namespace quarterturn::bench
