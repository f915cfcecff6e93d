// Slots: what a prepared plan takes and gives as A, B, D and D2, for given sizes.
#pragma once

#include <cstdint>

#include "generator/family.hpp"
#include "generator/problem.hpp"
#include "runtime/include/quarterturn/qturn.h"

namespace quarterturn {

enum class Which { a, b, d, d2, z };
const char* slot_name(Which which);

/// One operand or result. High precision: a stored matrix of `rows` x `columns`. MXFP4: `rows` rows
/// of `columns` elements, padded to `padding` along the columns.
struct Slot {
  DType type = DType::none;  ///< none: this plan has no such operand
  Layout layout = Layout::plain;
  std::int64_t rows = 0, columns = 0;
  std::int64_t padding = 1;
  std::int64_t references = 1;  ///< of each row, in layouts that have some: one for each group

  std::int64_t padded() const { return round_up(columns, padding); }
  OperandBytes bytes() const;  ///< of one batch entry or group, tightly packed
};

/// `a_layout`, `b_layout`: what the plan chose.
Slot slot_of(const Problem& problem, Layout a_layout, Layout b_layout, Which which,
             const Sizes& sizes);

/// The operand as qturn_plan_operand describes it; pointers are null.
qturn_operand describe(const Problem& problem, const Slot& slot, Which which, const Sizes& sizes);

/// Matrices behind each other in an operand.
std::int64_t matrices_of(const Problem& problem, Which which, const Sizes& sizes);

/// Whether `given` is what the slot takes; a refusal names both sides. Results are checked for type
/// and layout only: their other members are ignored.
Status check_meaning(const qturn_operand& given, const Problem& problem, const Slot& slot,
                     Which which);

}  // namespace quarterturn
