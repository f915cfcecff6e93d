// Salvage: carries over what can still be read from a damaged tuning database.
#pragma once

#include <cstdint>
#include <string>

#include "cache/sqlite.hpp"

namespace quarterturn {

struct Salvaged {
  std::int64_t trials = 0, winners = 0, tombstones = 0, quarantined = 0;
};

/// Reads each table from both ends up to the damage. Rows whose checksum does not fit, or that
/// refer to rows which are lost, stay behind. Never fails: nothing readable gives nothing.
Salvaged salvage(const std::string& damaged, sqlite::Connection& into);

}  // namespace quarterturn
