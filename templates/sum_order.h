// The order in which rows are added up, on every back end: kSumLanes sums of every kSumLanes-th row
// in ascending order, then halves added to halves. Include-free, so that hosts can read it too.
#ifndef QT_SUM_ORDER_H
#define QT_SUM_ORDER_H

namespace qt {

constexpr int kSumLanes = 64;

}  // namespace qt

#endif
