// Upgrade: what another version of the library makes of the answers in a database.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/database.hpp"

namespace quarterturn {

/// Of one target's winners. Those of another driver or compiler are not told apart here: that shows
/// on the device (`qturn recheck --dry-run`).
struct UpgradeCost {
  std::string target;
  std::int64_t current = 0;     ///< decided by this version, and legal in it
  std::int64_t to_recheck = 0;  ///< by another one: they serve, and three trials confirm each
  std::int64_t to_tune = 0;     ///< their family is gone or means something else by now
  std::int64_t unreadable = 0;  ///< of problems that only another version knows
  /// Of one device: compiling, admitting and timing what is to be rechecked, and for what is to be
  /// tuned as many trials as problems had so far, at the compile times that the database recorded.
  double seconds = 0;
};

/// What `library` (a version) does with each winner: none is dropped from the file.
Result<std::vector<UpgradeCost>> upgrade_costs(Database& database, std::string_view library);

}  // namespace quarterturn
