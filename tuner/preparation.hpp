// How an operand that a problem takes quantised is made from a high-precision one: the problems and
// plans of that, without a device.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/family.hpp"

namespace quarterturn {

/// The problem of quantising an operand of `problem` into a layout, from `type`; what `prepare` of
/// a weight solves.
Problem quantize_problem(const Problem& problem, std::uint32_t which, DType type, Layout layout);

/// One of the steps by which an operand that `problem` takes quantised is brought into a layout
/// here: quantised into it, or where nothing does that into layout plain and packed from there.
struct Preparation {
  Problem problem;
  Plan plan;
};
Result<std::vector<Preparation>> preparation_of(const Problem& problem, const Target& target,
                                                std::uint32_t which, Layout layout);

/// The type that a quantised operand is made from here.
DType source_type(DType type);

}  // namespace quarterturn
