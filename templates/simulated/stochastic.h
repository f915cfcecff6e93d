// What stochastic rounding to E2M1 may do with its random bits, for the simulated bodies of
// hardware that has it: QTURN_SIMULATED_ROUNDING chooses among what documents and reports say.
#ifndef QT_SIMULATED_STOCHASTIC_H
#define QT_SIMULATED_STOCHASTIC_H

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "mxfp4/platform.h"

namespace qt::simulated {

/// "documented": as the manuals have it. "lower": seed bits act one place lower (gfx950).
/// "swapped": elements take each other's bytes of the random word (cvt.rs).
inline bool rounds_as(const char* word) {
  const char* given = std::getenv("QTURN_SIMULATED_ROUNDING");
  return std::strcmp(given ? given : "documented", word) == 0;
}

/// |x| up where the discarded part plus `noise` (of a step, below 1) reaches a step; 7 from 6 on.
inline u32 round_e2m1(float x, double noise) {
  const u32 sign = std::signbit(x) ? 8u : 0u;
  if (std::isnan(x)) return 7u;
  const double value = std::fabs(double(x));
  if (value >= 6) return sign | 7u;
  const double step = value < 2 ? 0.5 : value < 4 ? 1.0 : 2.0;
  const double base = value < 2 ? 0.0 : value < 4 ? 2.0 : 4.0;
  const u32 first = value < 2 ? 0u : value < 4 ? 4u : 6u;
  const u32 code = first + u32((value - base) / step + noise);
  return sign | (code > 7u ? 7u : code);
}

}  // namespace qt::simulated

#endif
