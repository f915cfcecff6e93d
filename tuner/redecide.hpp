// Redecide: winners from the trials that a database holds, without measuring anything: after a
// merge brought trials from elsewhere, or took some back.
#pragma once

#include <cstdint>

#include "cache/database.hpp"
#include "generator/status.hpp"

namespace quarterturn {

struct Redecided {
  std::int64_t problems = 0;     ///< that needed a decision
  std::int64_t changed = 0;      ///< whose plan is another one now, or the first
  std::int64_t undecidable = 0;  ///< too little is known: what was stored stays
};

/// Decides every problem of Database::undecided() from its evidence trials. The answer depends on
/// the set of trials alone, not on their order or on who merged what first: the best plan is taken
/// if it surely beats the default by more than `zone` and the noise, else the default; then the
/// problems of each call site are given one weight layout (site.hpp).
Result<Redecided> redecide(Database& database, double zone = 0.01);

}  // namespace quarterturn
