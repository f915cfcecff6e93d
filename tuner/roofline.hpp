// Roofline: what a device could do at most, from its silicon facts and published throughputs.
#pragma once

#include <string>

#include "cache/env.hpp"

namespace quarterturn {

/// Upper bounds a second; 0 where they are not known. The text says what they assume, or why they
/// are not known.
struct Roof {
  double operations = 0;  ///< two for a multiply-add, in the fastest exact format
  double bytes = 0;       ///< of device memory
  std::string assumption;

  /// The lower of both bounds for work of this many operations and bytes; 0 when not known.
  double operations_at(double work, double traffic) const;
};

/// `clock_mhz` as seen while timing; 0 when nobody saw it.
Roof roof_of(const Env& env, double clock_mhz);

}  // namespace quarterturn
