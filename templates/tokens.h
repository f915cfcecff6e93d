// Which tokens lie where in a copy quantised along grouped tokens (groups.h): the way back from a
// place in the copy, for kernels whose blocks each fill a part of it.
#ifndef QT_TOKENS_H
#define QT_TOKENS_H

#include "groups.h"

namespace qt {

/// The tokens that a copy holds from its element `at` on, up to where their group ends; none in
/// what lies between groups. `at` is a multiple of 32.
QT_FN GroupRange tokens_at(const int* ends, i64 groups, i64 k, i64 unit, i64 at) {
  // The last group that begins at `at` or before.
  i64 group = 0, beyond = groups;
  while (beyond - group > 1) {
    const i64 middle = (group + beyond) / 2;
    if ((group_first(ends, middle, k) / unit + middle) * unit <= at)
      group = middle;
    else
      beyond = middle;
  }
  const GroupRange tokens = group_range(ends, group, k);
  const i64 first = tokens.first + at - group_place(tokens, group, unit).first;
  return {clamp_to(first, tokens.first, tokens.end), tokens.end};
}

/// The same of tokens that no group owns, as if a last group had them.
QT_FN GroupRange unowned_at(const int* ends, i64 groups, i64 k, i64 unit, i64 at) {
  const i64 begin = group_first(ends, groups, k);
  const i64 start = (begin / unit + groups) * unit;
  return {at < start ? k : clamp_to(begin + at - start, begin, k), k};
}

}  // namespace qt

#endif
