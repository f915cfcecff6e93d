#include "generator/grouping.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace quarterturn {
namespace {

constexpr std::int64_t kMostGroups = 65535;  // blocks along a grid's z axis
constexpr std::int64_t kLongestReference = 128;

Status bad(std::string message) { return Status(Code::invalid_problem, std::move(message)); }

bool has_references(Layout layout) { return layout == Layout::e5m2 || layout == Layout::int8_rows; }

Status check_one_operand(const Problem& p) {
  const auto name = name_of(p.grouping);
  if (p.grouping == Grouping::m_contiguous)
    return bad(
        fmt::format("grouping = {} with op = {}: it is one matrix of rows whatever their "
                    "groups; leave grouping at none",
                    name, name_of(p.op)));
  if (p.op != Op::quantize && p.op != Op::pack)
    return bad(
        fmt::format("grouping = {} with op = {}: quantize, pack, gemm and hadamard_gemm are "
                    "allowed; use batch for groups of one size",
                    name, name_of(p.op)));
  if (p.op == Op::pack) return {};
  if (p.grouping == Grouping::m_masked && p.copies != Copies::rows)
    return bad(
        fmt::format("grouping = m_masked with copies = {}: rows is allowed; for copies "
                    "along tokens, store groups behind each other and use k_grouped",
                    name_of(p.copies)));
  if (p.grouping == Grouping::k_grouped && p.copies == Copies::rows)
    return bad(
        "grouping = k_grouped with copies = rows: groups are of tokens, the rows of X, and "
        "divide its column copy; use copies = columns or both");
  return {};
}

Status check_product(const Problem& p) {
  const auto stored_by_k = [](DType type, Major major) {
    return type != DType::mxfp4 && type != DType::none && major == Major::k;
  };
  if (p.grouping == Grouping::m_masked && p.a_type != DType::mxfp4 && p.a_major == Major::rows)
    return bad(
        "grouping = m_masked with a_major = rows: A is stored as [groups, m, k]; use "
        "a_major = k");
  if (p.grouping != Grouping::k_grouped) return {};
  if (p.epilogue != Epilogue::none)
    return bad(fmt::format("grouping = k_grouped with epilogue = {}: D is a gradient of weights",
                           name_of(p.epilogue)));
  if (p.bias != Bias::none)
    return bad("grouping = k_grouped with a bias: D is a gradient of weights; leave bias at none");
  if (p.op == Op::gemm && p.a_type != DType::mxfp4)
    return bad(
        fmt::format("grouping = k_grouped with a_type = {}: this op takes mxfp4; for high "
                    "precision, use hadamard_gemm",
                    name_of(p.a_type)));
  if (stored_by_k(p.a_type, p.a_major) || stored_by_k(p.b_type, p.b_major))
    return bad(
        "grouping = k_grouped: high-precision operands are stored with tokens as rows, "
        "[k, m] and [k, n]; state a_major = rows and b_major = rows");
  return {};
}

}  // namespace

Entries entries_of(const Problem& p, std::int64_t batch, std::int64_t groups) {
  switch (p.grouping) {
    case Grouping::none:
      return {batch, batch, batch};
    case Grouping::m_contiguous:
      return {1, groups, 1};
    case Grouping::m_masked:
      return {groups, groups, groups};
    case Grouping::k_grouped:
      return {1, 1, multiplies(p.op) ? groups : 1};
  }
  return {};
}

std::int64_t group_unit(const Problem& p) {
  return std::max<std::int64_t>(kLongestReference, p.rotation);
}

std::int64_t unit_of(const Problem& p) {
  return p.grouping == Grouping::k_grouped ? group_unit(p) : padding_unit(p);
}

std::int64_t copy_length(const Problem& p, std::int64_t k, std::int64_t groups) {
  if (p.grouping != Grouping::k_grouped) return round_up(k, padding_unit(p));
  return (k / group_unit(p) + groups) * group_unit(p);
}

OperandBytes copy_bytes(const Problem& p, Layout layout, std::int64_t rows, std::int64_t k,
                        std::int64_t groups) {
  auto out = operand_bytes(layout, rows, copy_length(p, k, groups), padding_unit(p));
  if (p.grouping == Grouping::k_grouped && has_references(layout)) out.scales *= groups;
  return out;
}

std::int64_t most_tiles_down(const Problem& p, std::int64_t m, std::int64_t batch,
                             std::int64_t groups, std::int64_t rows) {
  const auto tiles = ceil_div(m, rows);
  if (p.grouping != Grouping::m_contiguous) return tiles * batch;
  // Each group but those without rows has a last tile of its own.
  return tiles + std::min(groups, m) - (m > 0 ? 1 : 0);
}

std::array<std::uint32_t, 3> tile_grid(const Problem& p, const qt_args& args, std::int64_t tile_m,
                                       std::int64_t tile_n) {
  const bool even = p.grouping == Grouping::none || p.grouping == Grouping::k_grouped;
  const auto down = most_tiles_down(p, args.m, even ? 1 : args.batch, args.groups, tile_m);
  return {static_cast<std::uint32_t>(down * ceil_div(args.n, tile_n)), 1,
          static_cast<std::uint32_t>(even ? args.batch : 1)};
}

double likely_tiles_down(const Problem& p, std::int64_t rows) {
  const auto m = std::max<std::int64_t>(p.m.hi, 1);
  const auto groups = p.groups.hi;
  if (p.grouping == Grouping::none) return static_cast<double>(ceil_div(m, rows));
  const auto of_group = p.grouping == Grouping::m_contiguous ? ceil_div(m, groups) : m;
  return static_cast<double>(ceil_div(of_group, rows) * groups);
}

std::int64_t likely_k(const Problem& p) {
  return p.grouping == Grouping::k_grouped ? ceil_div(p.k.hi, p.groups.hi) : p.k.hi;
}

bool is_empty(const Problem& p, std::int64_t m, std::int64_t n) {
  if (multiplies(p.op)) return m == 0 || n == 0;
  // Sums of no rows are zeros.
  if (p.op == Op::column_sums || p.bias_gradient != BiasGradient::none) return false;
  return m == 0 && !(p.op == Op::quantize && p.grouping == Grouping::k_grouped);
}

Status check_grouping(const Problem& p) {
  if (p.grouping == Grouping::none) {
    if (p.groups == Extent::exactly(1)) return {};
    return bad(
        "groups are given, but grouping = none: choose m_contiguous, m_masked or k_grouped, "
        "or use batch for products of one size");
  }
  if (p.groups.hi > kMostGroups)
    return bad(fmt::format("groups up to {}: at most {} are allowed", p.groups.hi, kMostGroups));
  if (p.batch != Extent::exactly(1))
    return bad(fmt::format("batch with grouping = {}: a call has either; leave batch at 1",
                           name_of(p.grouping)));
  if (p.scale_block == ScaleBlock::b32x32 && p.grouping == Grouping::k_grouped)
    return bad(
        "scale_block = 32x32 with grouping = k_grouped: those are weights' scales, and "
        "groups are of tokens; use 1x32");
  return multiplies(p.op) ? check_product(p) : check_one_operand(p);
}

}  // namespace quarterturn
