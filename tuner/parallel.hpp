// Splits the host's share of admission over cores: inputs and comparisons of hundreds of millions
// of elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace quarterturn {

/// Calls work(first, end) for parts of [0, count) on as many threads as the process may use; on the
/// calling thread alone where all of it is little. `cost`: operations of one index.
template <class Work>
void on_all_cores(std::int64_t count, std::int64_t cost, const Work& work) {
  constexpr std::int64_t kWorthAThread = 1 << 18;
  const auto cores = static_cast<std::int64_t>(std::max(1u, std::thread::hardware_concurrency()));
  const auto parts =
      std::clamp<std::int64_t>(count * std::max<std::int64_t>(1, cost) / kWorthAThread, 1,
                               std::min(cores, std::max<std::int64_t>(1, count)));
  std::vector<std::thread> helpers;
  for (std::int64_t part = 1; part < parts; ++part)
    helpers.emplace_back(
        [&work, part, parts, count] { work(count * part / parts, count * (part + 1) / parts); });
  work(0, count / parts);
  for (auto& helper : helpers) helper.join();
}

}  // namespace quarterturn
