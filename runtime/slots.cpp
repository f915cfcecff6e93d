#include "runtime/slots.hpp"

#include <fmt/format.h>

#include "generator/grouping.hpp"

namespace quarterturn {
namespace {

Slot dense(DType type, std::int64_t rows, std::int64_t columns) {
  return {type, Layout::plain, rows, columns, 1};
}

// A quantised copy with its contraction along k: in k_grouped already with every group's padding.
Slot copy(const Problem& p, Layout layout, std::int64_t rows, std::int64_t k, std::int64_t groups) {
  Slot out{DType::mxfp4, layout, rows, k, padding_unit(p)};
  if (p.grouping != Grouping::k_grouped) return out;
  out.columns = copy_length(p, k, groups);
  if (layout == Layout::e5m2 || layout == Layout::int8_rows) out.references = groups;
  return out;
}

Slot input(const Problem& p, DType type, Layout layout, Major major, std::int64_t rows,
           std::int64_t k, std::int64_t groups) {
  if (type == DType::mxfp4) return copy(p, layout, rows, k, groups);
  return major == Major::k ? dense(type, rows, k) : dense(type, k, rows);
}

template <class E>
Status differs(Which which, const char* what, std::int32_t given, E wanted) {
  const auto count = static_cast<std::int32_t>(EnumNames<E>::names.size());
  const auto name = given >= 0 && given < count ? std::string(name_of(static_cast<E>(given)))
                                                : fmt::format("{}", given);
  return Status(Code::wrong_operand,
                fmt::format("{}'s {} is {}, the plan was prepared for {}; fill the operand by "
                            "qturn_plan_operand, or prepare the problem for this one",
                            slot_name(which), what, name, name_of(wanted)));
}

}  // namespace

const char* slot_name(Which which) {
  switch (which) {
    case Which::a:
      return "a";
    case Which::b:
      return "b";
    case Which::d:
      return "d";
    case Which::d2:
      return "d2";
    case Which::z:
      return "z";
  }
  return "?";
}

OperandBytes Slot::bytes() const {
  if (type == DType::mxfp4) {
    auto out = operand_bytes(layout, rows, columns, padding);
    out.scales *= references;
    return out;
  }
  return {rows * columns * bytes_of(type), 0};
}

Slot slot_of(const Problem& p, Layout a_layout, Layout b_layout, Which which, const Sizes& s) {
  const auto quantized = [&](std::int64_t rows, std::int64_t k) -> Slot {
    return {DType::mxfp4, p.d_layout, rows, k, padding_unit(p)};
  };
  const std::int64_t columns = output_columns(p.epilogue, s.n);
  const auto row_copy = [&] { return quantized(s.m, multiplies(p.op) ? columns : s.k); };
  const auto column_copy = [&] {
    return copy(p, p.d_layout, multiplies(p.op) ? columns : s.k, s.m, s.groups);
  };
  switch (which) {
    case Which::a:
      return input(p, p.a_type, a_layout, p.a_major, s.m, input_columns(p.prologue, s.k), s.groups);
    case Which::b:
      return multiplies(p.op) ? input(p, p.b_type, b_layout, p.b_major, s.n, s.k, s.groups)
                              : Slot{};
    case Which::d:
      if (p.op == Op::quantize || p.op == Op::gemm_quantize)
        return p.copies == Copies::columns ? column_copy() : row_copy();
      if (p.op == Op::pack) return copy(p, p.d_layout, s.m, s.k, s.groups);
      if (p.op == Op::column_sums) return dense(p.d_type, 1, s.k);
      return dense(p.d_type, s.m, multiplies(p.op) ? columns : s.k);
    case Which::d2:
      if (p.op != Op::quantize && p.op != Op::gemm_quantize) return {};
      return p.copies == Copies::both ? column_copy() : Slot{};
    case Which::z:
      return p.pre_activation == PreActivation::kept ? dense(side_type(p), s.m, s.n) : Slot{};
  }
  return {};
}

std::int64_t matrices_of(const Problem& problem, Which which, const Sizes& sizes) {
  const Entries entries = entries_of(problem, sizes.batch, sizes.groups);
  return which == Which::a ? entries.a : which == Which::b ? entries.b : entries.d;
}

qturn_operand describe(const Problem& problem, const Slot& slot, Which which, const Sizes& sizes) {
  const auto matrices = matrices_of(problem, which, sizes);
  qturn_operand out{};
  out.struct_size = sizeof out;
  out.type = static_cast<std::int32_t>(slot.type);
  out.layout = static_cast<std::int32_t>(slot.layout);
  out.rotation = problem.rotation;
  out.signs = static_cast<std::int32_t>(problem.signs);
  out.scale_rule = static_cast<std::int32_t>(problem.scale_rule);
  out.scale_block = static_cast<std::int32_t>(problem.scale_block);
  const bool result = which == Which::d || which == Which::d2;
  out.rounding =
      static_cast<std::int32_t>(which == Which::b                           ? problem.b_rounding
                                : result && problem.op == Op::gemm_quantize ? problem.d_rounding
                                                                            : problem.a_rounding);
  const auto bytes = slot.bytes();
  out.data_bytes = static_cast<std::size_t>(bytes.codes * matrices);
  out.scales_bytes = static_cast<std::size_t>(bytes.scales * matrices);
  return out;
}

Status check_meaning(const qturn_operand& given, const Problem& problem, const Slot& slot,
                     Which which) {
  if (given.type != static_cast<std::int32_t>(slot.type))
    return differs(which, "type", given.type, slot.type);
  if (slot.type != DType::mxfp4) return {};
  if (given.layout != static_cast<std::int32_t>(slot.layout))
    return differs(which, "layout", given.layout, slot.layout);
  if (which == Which::d || which == Which::d2) return {};
  if (given.rotation != problem.rotation)
    return Status(
        Code::wrong_operand,
        fmt::format("{}'s rotation is {}, the plan was prepared for {}; both operands of a "
                    "product must be rotated alike",
                    slot_name(which), given.rotation, problem.rotation));
  if (given.signs != static_cast<std::int32_t>(problem.signs))
    return differs(which, "signs", given.signs, problem.signs);
  if (given.scale_rule != static_cast<std::int32_t>(problem.scale_rule))
    return differs(which, "scale rule", given.scale_rule, problem.scale_rule);
  if (given.scale_block != static_cast<std::int32_t>(problem.scale_block))
    return differs(which, "scale block", given.scale_block, problem.scale_block);
  return {};
}

}  // namespace quarterturn
