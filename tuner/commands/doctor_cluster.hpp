// qturn doctor --cluster and --compare: what nodes say of themselves, and where they differ.
#pragma once

#include <optional>

#include "tuner/commands/command.hpp"

namespace quarterturn {

/// Declares the options; what it returns gives an exit code where one of them was given.
std::function<std::optional<int>(const GlobalOptions&)> register_cluster(CLI::App& doctor);

}  // namespace quarterturn
