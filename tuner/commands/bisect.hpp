// qturn db bisect, declared below `qturn db`.
#pragma once

#include "tuner/commands/command.hpp"

namespace quarterturn {

std::function<int()> register_bisect(CLI::App& db);

}  // namespace quarterturn
