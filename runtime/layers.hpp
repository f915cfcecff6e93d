// The layers that stored answers come from: pins, the local tuning database, snapshots.
#pragma once

#include <string>
#include <vector>

#include "cache/database.hpp"
#include "runtime/lookup_table.hpp"

namespace quarterturn {

struct LayerPaths {
  std::string pins;                    ///< empty = none
  std::vector<std::string> snapshots;  ///< files or publications, in order of consultation
  std::string bundle;                  ///< its database, consulted last; empty = none
  std::vector<std::string> keys;       ///< that snapshots must be signed by; empty: any or none
};

struct LoadedLayers {
  std::vector<Answer> answers;
  std::vector<std::string> notes;  ///< to be said once: what could not be read, and why
};

/// Reads every answer for the target of `here`. A layer that cannot be read is noted and left out.
LoadedLayers load_layers(Database& local, const LayerPaths& paths, const Env& here);

/// A pins file: one "PROBLEM KEY -> PLAN" a line; '#' begins a comment. Malformed lines are noted.
void parse_pins(std::string_view text, const std::string& name, LoadedLayers& out);

}  // namespace quarterturn
