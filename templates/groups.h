// Where a group of rows or tokens (an expert) begins and ends, from sizes in the kernel's memory.
// Whatever those numbers are, ranges stay inside the operand.
//
// A copy quantised along grouped tokens [0, k) holds group g from unit * (ends[g-1] / unit + g) on,
// so that each group starts at a multiple of `unit` and its place needs no sum over other groups. A
// group of s tokens takes ceil(s / unit) units, and the copy k / unit + groups of them.
#ifndef QT_GROUPS_H
#define QT_GROUPS_H

#include "args.h"
#include "mxfp4/platform.h"

namespace qt {

/// The spelling and the order are those of the generator's Grouping.
enum class Grouping { none, m_contiguous, m_masked, k_grouped };

/// Rows or tokens first..end.
struct GroupRange {
  i64 first, end;
};

QT_FN i64 clamp_to(i64 value, i64 low, i64 high) {
  return value < low ? low : value > high ? high : value;
}

/// Where the group before `group` ends, of `all` rows or tokens.
QT_FN i64 group_first(const int* ends, i64 group, i64 all) {
  return group == 0 ? 0 : clamp_to(ends[group - 1], 0, all);
}

/// By ends, of `all` rows or tokens.
QT_FN GroupRange group_range(const int* ends, i64 group, i64 all) {
  const i64 first = group_first(ends, group, all);
  return {first, clamp_to(ends[group], first, all)};
}

/// By counts, of `all` rows in each group.
QT_FN i64 group_count(const int* counts, i64 group, i64 all) {
  return clamp_to(counts[group], 0, all);
}

/// Elements from one group's start to the next in a copy's row, and of all of it.
QT_FN constexpr i64 group_unit(int rotation) { return rotation > 128 ? rotation : 128; }
QT_FN constexpr i64 grouped_length(i64 k, i64 groups, i64 unit) {
  return (k / unit + groups) * unit;
}

/// A group's part of a copy: its first element, and elements with their padding.
struct GroupPlace {
  i64 first, length;
};
QT_FN GroupPlace group_place(const GroupRange& tokens, i64 group, i64 unit) {
  return {(tokens.first / unit + group) * unit,
          (tokens.end - tokens.first + unit - 1) / unit * unit};
}

}  // namespace qt

#endif
