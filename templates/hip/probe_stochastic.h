// What gfx950's stochastic rounding does with its seed: one record in, four results out, one for
// each byte that codes can go to. No part of any plan: `qturn selftest` runs it and writes the
// results down (generator/probe.hpp).
#ifndef QT_HIP_PROBE_STOCHASTIC_H
#define QT_HIP_PROBE_STOCHASTIC_H

#include "args.h"
#include "hip/primitives.h"
#include "hip/primitives_stochastic.h"

namespace qt::hip {

/// A: args.m records of five words: x, y in binary32, seed, scale in binary32, old. D: four words
/// each.
template <class Config>
QT_FN void probe_stochastic(const Config&, const qt_args& args) {
  const u32 i = cuda::block_index() * u32(Config::threads) + cuda::thread_index();
  if (i >= args.m) return;
  const u32* record = static_cast<const u32*>(args.a.data) + i * 5u;
  u32* to = static_cast<u32*>(args.d.data) + i * 4u;
  const float x = float_of(record[0]), y = float_of(record[1]), scale = float_of(record[3]);
  const u32 seed = record[2], old = record[4];
  to[0] = convert_pair_stochastic<0>(old, x, y, seed, scale);
  to[1] = convert_pair_stochastic<1>(old, x, y, seed, scale);
  to[2] = convert_pair_stochastic<2>(old, x, y, seed, scale);
  to[3] = convert_pair_stochastic<3>(old, x, y, seed, scale);
}

}  // namespace qt::hip

#endif
