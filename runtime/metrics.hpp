// Metrics: counters of contexts as Prometheus text, for the answer of a server's /metrics.
#pragma once

#include <span>
#include <string>

#include "runtime/context.hpp"

namespace quarterturn {

/// Exposition format 0.0.4, every family once; see qturn_metrics_text. Touches no device.
std::string metrics_text(std::span<Context* const> contexts);

}  // namespace quarterturn
