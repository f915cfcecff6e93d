// A part of D in a product whose rows are grouped: which rows of it belong to which group.
#ifndef QT_CPU_ROW_GROUPS_H
#define QT_CPU_ROW_GROUPS_H

#include "cpu/elements.h"
#include "cpu/gemm_parts.h"
#include "groups.h"

namespace qt {
namespace cpu {

/// Calls multiply(args, part, group) for what part `d` has of one group's rows; those args point to
/// the group's bias.
template <class Config, class Multiply>
QT_FN void multiply_rows(const Config& config, const qt_args* args, PartOfD d, i64 group,
                         const GroupRange& rows, i64 n, const Multiply& multiply) {
  const i64 first = d.row > rows.first ? d.row : rows.first;
  const i64 end = d.row + d.rows < rows.end ? d.row + d.rows : rows.end;
  if (first >= end) return;
  d.row = first;
  d.rows = end - first;
  qt_args own = *args;
  if (config.bias) own.bias = element_at(args->bias, group * n, config.side_type);
  multiply(&own, d, group);
}

/// The same for every group that part `d` of D [m, n] has rows of; without groups, for the part as
/// it is, whose weights are those of its batch entry.
template <class Config, class Multiply>
QT_FN void for_row_groups(const Config& config, const qt_args* args, const PartOfD& d, i64 m, i64 n,
                          const Multiply& multiply) {
  if (config.grouping == Grouping::m_contiguous) {
    for (i64 group = 0; group < args->groups; ++group)
      multiply_rows(config, args, d, group, group_range(args->group_sizes, group, m), n, multiply);
  } else if (config.grouping == Grouping::m_masked) {
    multiply_rows(config, args, d, d.batch, {0, group_count(args->group_sizes, d.batch, m)}, n,
                  multiply);
  } else {
    multiply(args, d, d.batch);
  }
}

}  // namespace cpu
}  // namespace qt

#endif
