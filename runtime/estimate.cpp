#include "runtime/estimate.hpp"

#include <algorithm>
#include <cmath>

namespace quarterturn {
namespace {

// Of one core, and of one SM: operations and bytes a second, and what a call costs in any case.
struct Rates {
  double operations, bytes, overhead;
};
Rates rates_of(Vendor vendor) {
  return vendor == Vendor::cpu ? Rates{1e11, 5e9, 2e-6} : Rates{8e12, 3e10, 3e-6};
}

double middle(const Extent& extent) {
  return std::sqrt(static_cast<double>(std::max<std::int64_t>(1, extent.lo)) *
                   static_cast<double>(std::max<std::int64_t>(1, extent.hi)));
}

double bytes_a_value(DType type) {
  switch (type) {
    case DType::none:
      return 0;
    case DType::mxfp4:
      return 17.0 / 32;
    case DType::f32:
      return 4;
    default:
      return 2;
  }
}

}  // namespace

double estimated_seconds(const Problem& p, const DeviceInfo& device) {
  const double m = middle(p.m), n = p.n.hi > 0 ? middle(p.n) : 0, k = middle(p.k);
  const double batch = middle(p.batch);
  const double groups = p.grouping == Grouping::none ? 1 : middle(p.groups);
  // Rows of the groups together; each multiplies by a matrix of its own.
  const double rows = p.grouping == Grouping::m_masked ? m * groups : m;
  const double weights = p.grouping == Grouping::k_grouped ? 1 : groups;
  const double results = p.grouping == Grouping::k_grouped ? groups : 1;
  const double traffic = bytes_a_value(p.a_type) * rows * k +
                         bytes_a_value(p.b_type) * weights * n * k +
                         bytes_a_value(p.d_type) * results * rows * (n > 0 ? n : k);
  const Rates rates = rates_of(device.target.vendor);
  const double units = static_cast<double>(std::max<std::int64_t>(1, device.units));
  return rates.overhead + batch * std::max(2 * rows * n * k / (rates.operations * units),
                                           traffic / (rates.bytes * units));
}

}  // namespace quarterturn
