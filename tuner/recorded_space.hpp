// RecordedSpace: every trial of a space, so that strategies can be compared without a device. A
// file is JSON, compressed by gzip (zlib).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/database.hpp"
#include "tuner/search.hpp"

namespace quarterturn {

struct RecordedSpace {
  Problem problem;
  Target target;
  std::string performance_class, compiler, library;
  std::int64_t units = 0;  ///< of the device that run tiles side by side

  struct Entry {
    Outcome outcome;
    double median_ns = 0;
    std::int64_t compile_ms = 0;
    PlanCost cost;
  };
  std::vector<Entry> entries;  ///< in the analytic model's order when it was made

  std::string name() const;  ///< "fprop 1..16x512x512 on x86-64-v4"
};

Result<RecordedSpace> read_recording(const std::string& path);
/// Replaces the file.
Status write_recording(const RecordedSpace& recording, const std::string& path);

/// What a database holds of a problem on one class of device. Of several timings of a plan the one
/// with most rounds counts; the default, beside which all were timed, has a gain of 0.
Result<RecordedSpace> record(Database& database, const Problem& problem, const Target& target,
                             const std::string& performance_class);

/// What a strategy may draw from: the plans that were recorded.
Space space_of(const RecordedSpace& recording);

}  // namespace quarterturn
