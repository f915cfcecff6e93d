#include "tuner/race.hpp"

#include <algorithm>

#include "tuner/statistics.hpp"

namespace quarterturn {
namespace {

Status run_rounds(PairedTimer& timer, const std::vector<std::size_t>& candidates,
                  std::int64_t rounds, const StopRace& stop) {
  for (std::int64_t i = 0; i < rounds && !stop(); ++i)
    if (auto status = timer.round(candidates); !status.ok()) return status;
  return {};
}

}  // namespace

std::vector<std::size_t> ranking(const PairedTimer& timer,
                                 const std::vector<std::size_t>& candidates) {
  struct Ranked {
    std::size_t candidate;
    double speed;
  };
  std::vector<Ranked> ranked;
  for (const auto candidate : candidates) {
    const auto& speedups = timer.series(candidate).log_speedups;
    if (timer.alive(candidate) && !speedups.empty())
      ranked.push_back({candidate, median(speedups)});
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& a, const Ranked& b) { return a.speed > b.speed; });
  std::vector<std::size_t> out;
  for (const auto& r : ranked) out.push_back(r.candidate);
  return out;
}

Status screen(PairedTimer& timer, const std::vector<std::size_t>& candidates,
              const RaceSettings& settings, const StopRace& stop) {
  return run_rounds(timer, candidates, settings.screening_rounds, stop);
}

Result<std::vector<std::size_t>> halve(PairedTimer& timer,
                                       const std::vector<std::size_t>& candidates,
                                       const RaceSettings& settings, const StopRace& stop) {
  auto left = ranking(timer, candidates);
  if (left.size() > settings.finalists) {
    const auto quarter = std::max(settings.middle_least, (left.size() + 3) / 4);
    if (left.size() > quarter) left.resize(quarter);
    if (auto status = run_rounds(timer, left, settings.middle_rounds, stop); !status.ok())
      return status;
    left = ranking(timer, left);
    if (left.size() > settings.finalists) left.resize(settings.finalists);
  }
  return left;
}

Status confirm(PairedTimer& timer, const std::vector<std::size_t>& finalists,
               const RaceSettings& settings, const StopRace& stop,
               const std::function<bool()>& settled) {
  timer.forget();
  if (auto status = run_rounds(timer, finalists, settings.final_rounds, stop); !status.ok())
    return status;
  for (std::int64_t done = settings.final_rounds;
       done < settings.final_most && !stop() && !settled(); done += settings.final_rounds)
    if (auto status = run_rounds(timer, finalists, settings.final_rounds, stop); !status.ok())
      return status;
  return {};
}

}  // namespace quarterturn
