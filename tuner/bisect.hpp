// Bisect: over the generations of a publication, the one since which a problem is served by another
// plan or is slower.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cache/publication.hpp"
#include "generator/problem.hpp"

namespace quarterturn {

/// What one generation stores for a problem on one class of devices.
struct StoredStep {
  std::int64_t generation = 0;
  std::int64_t published = 0;    ///< nanoseconds since 1970
  std::optional<Winner> winner;  ///< nothing stored: the default serves
  std::string unreadable;        ///< why its file could not be read; empty: it was
};

/// A problem on one class, over all generations in order.
struct History {
  std::string problem, target, performance_class;
  std::vector<StoredStep> steps;
};

/// Of every class that some generation has an answer for. A generation whose file cannot be read is
/// a step that says so.
Result<std::vector<History>> histories(const std::string& folder, const Problem& problem);

/// What became of a step against the one before it that could be read.
enum class Change { first, none, plan, appeared, gone, unreadable };
std::string_view change_name(Change change);
Change change_at(const History& history, std::size_t step);

/// The generation since which every one has the plan of the last; 0: they all have it.
std::int64_t plan_changed_since(const History& history);
/// The generation since which every one is stored as slower than the fastest before it, by more
/// than both their noise (at least 1 %); 0: none. Stored times come from different days and devices
/// of one class: measuring decides.
std::int64_t stored_slower_since(const History& history);

/// How many times as long another plan takes, and its interval.
struct TimeRatio {
  double ratio = 1, low = 1, high = 1;
};
using MeasureRatio =
    std::function<Result<TimeRatio>(const std::string& good, const std::string& other)>;

struct Bisected {
  struct Measured {
    std::int64_t generation = 0;
    std::string plan;
    TimeRatio time;  ///< against the good generation's plan
    bool slower = false;
  };
  std::vector<Measured> measured;  ///< in the order of measuring
  std::int64_t slower_since = 0;   ///< 0: the bad one is not slower than the good one
};

/// Binary search from generation `good` to `bad` (0: the first with an answer, and the last): each
/// distinct plan is timed against the good one's at most once. Slower: the interval lies above
/// 1 + `noise`. invalid_argument: one of the two has no answer, or they are in the wrong order.
Result<Bisected> bisect(const History& history, std::int64_t good, std::int64_t bad, double noise,
                        const MeasureRatio& measure);

}  // namespace quarterturn
