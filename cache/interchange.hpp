// Interchange: a tuning database as JSON text, for review and version control. One row a line, in a
// fixed order, so that equal content gives equal bytes; docs/database.md describes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cache/database.hpp"

namespace quarterturn {

/// Envs, winners, quarantine, tombstones, and trials unless they are left out. No details, hosts or
/// paths.
Result<std::string> to_json(Database& database, TrialRows trials = TrialRows::included);

enum class Winners { keep_ours, take_theirs };
struct ImportReport {
  std::int64_t trials = 0, winners = 0, quarantined = 0, tombstones = 0;  ///< rows in the text
  std::int64_t kept = 0;  ///< winners that were not taken, because there was one
};

/// Adds what such a text holds; all of it is checked before anything is written. invalid_argument
/// names the row and the member that is wrong; newer_version: written by a later version.
Result<ImportReport> import_json(Database& database, std::string_view text, Winners policy);

}  // namespace quarterturn
