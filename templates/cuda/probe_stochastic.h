// What the hardware's stochastic rounding does with its random bits: one record in, one result out.
// No part of any plan: `qturn selftest` runs it and writes the results down (generator/probe.hpp).
#ifndef QT_CUDA_PROBE_STOCHASTIC_H
#define QT_CUDA_PROBE_STOCHASTIC_H

#include "args.h"
#include "cuda/primitives.h"
#include "cuda/primitives_stochastic.h"

namespace qt::cuda {

/// A: args.m records of five words: a, b, e, f in binary32, random bits. D: a word of codes each.
template <class Config>
QT_FN void probe_stochastic(const Config&, const qt_args& args) {
  const u32 i = block_index() * u32(Config::threads) + thread_index();
  if (i >= args.m) return;
  const u32* record = static_cast<const u32*>(args.a.data) + i * 5u;
  static_cast<u32*>(args.d.data)[i] =
      convert_e2m1x4_stochastic(float_of(record[0]), float_of(record[1]), float_of(record[2]),
                                float_of(record[3]), record[4]);
}

}  // namespace qt::cuda

#endif
