// qturn db proofs, declared below `qturn db`; and what `qturn doctor` says of quarantines.
#pragma once

#include <optional>
#include <string>

#include "cache/database.hpp"
#include "tuner/commands/command.hpp"

namespace quarterturn {

std::function<int()> register_proofs(CLI::App& db);

/// One sentence on what is in quarantine, and how to lift it; nothing where nothing is.
std::optional<std::string> quarantine_note(Database& database);

}  // namespace quarterturn
