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

/// How one layer was read.
struct LayerRead {
  std::string place;            ///< "pins PATH", "the tuning database", "snapshot PATH", ...
  Status status;                ///< not ok: its answers are left out
  bool absent = false;          ///< there is nothing at its path
  std::int64_t generation = 0;  ///< of a published folder: what is current; else 0
  std::int64_t sequence = 0;    ///< of that choice
};

struct LoadedLayers {
  std::vector<Answer> answers;
  std::vector<std::string> notes;  ///< to be said once: what could not be read, and why
  std::vector<LayerRead> layers;   ///< the same places in the same order for the same paths
};

/// Reads every answer for the target of `here`. A layer that cannot be read is noted and left out.
/// `before` is what an earlier call gave for these paths, empty at first: signed folders whose
/// manifest is older than then are refused.
LoadedLayers load_layers(Database& local, const LayerPaths& paths, const Env& here,
                         const std::vector<LayerRead>& before = {});

/// The first layer that was read before, or is there now, and cannot be read.
const LayerRead* lost_layer(const std::vector<LayerRead>& now,
                            const std::vector<LayerRead>& before);

/// A pins file: one "PROBLEM KEY -> PLAN" a line; '#' begins a comment. Malformed lines are noted.
void parse_pins(std::string_view text, const std::string& name, LoadedLayers& out);

}  // namespace quarterturn
