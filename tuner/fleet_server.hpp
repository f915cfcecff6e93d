// A device's process in a fleet: the other side of Fleet.
#pragma once

#include <optional>
#include <vector>

#include "tuner/session.hpp"

namespace quarterturn {

/// Answers requests on `in`, one JSON object a line, until it closes. `missed` is what this kind of
/// device is to tune instead of what the fleet was given. Returns the process's exit code.
int serve_fleet(Context& context, const SessionOptions& options,
                const std::optional<std::vector<Item>>& missed, int in, int out);

}  // namespace quarterturn
