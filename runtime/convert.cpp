#include "runtime/convert.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kMostSize = std::int64_t{1} << 40;

// The C enumerations have the numbers of ours.
static_assert(QTURN_OP_COLUMN_SUMS == static_cast<int>(Op::column_sums));
static_assert(QTURN_WGRAD == static_cast<int>(Role::wgrad));
static_assert(QTURN_MXFP4 == static_cast<int>(DType::mxfp4));
static_assert(QTURN_LAYOUT_AITER_16X16 == static_cast<int>(Layout::aiter_16x16));
static_assert(QTURN_MAJOR_ROWS == static_cast<int>(Major::rows));
static_assert(QTURN_SCALE_SEARCH == static_cast<int>(ScaleRule::search));
static_assert(QTURN_SCALE_32X32 == static_cast<int>(ScaleBlock::b32x32));
static_assert(QTURN_SR_CVT_SCALEF32 == static_cast<int>(Rounding::sr_cvt_scalef32));
static_assert(QTURN_SIGNS_PER_CALL == static_cast<int>(Signs::per_call));
static_assert(QTURN_COPIES_BOTH == static_cast<int>(Copies::both));
static_assert(QTURN_EPILOGUE_DSWIGLU_INTERLEAVED ==
              static_cast<int>(Epilogue::dswiglu_interleaved));
static_assert(QTURN_PRE_ACTIVATION_KEPT == static_cast<int>(PreActivation::kept));
static_assert(QTURN_BIAS_GRADIENT_F32 == static_cast<int>(BiasGradient::f32));
static_assert(QTURN_PROLOGUE_SWIGLU_INTERLEAVED == static_cast<int>(Prologue::swiglu_interleaved));
static_assert(QTURN_BIAS_PER_COLUMN == static_cast<int>(Bias::per_column));
static_assert(QTURN_ACCUMULATE == static_cast<int>(Accumulate::accumulate));
static_assert(QTURN_K_GROUPED == static_cast<int>(Grouping::k_grouped));
static_assert(QTURN_FAST == static_cast<int>(Contract::fast));
static_assert(QTURN_SPREAD_NARROW == static_cast<int>(Spread::narrow));
static_assert(QTURN_BATCH_INVARIANT == static_cast<int>(Reproducibility::batch_invariant));
static_assert(QTURN_BIASED_ALLOWED == static_cast<int>(BiasedRounding::allowed));
static_assert(QTURN_INTERNAL == static_cast<int>(Code::internal));

// Members of qturn_problem and ours, in the struct's order: X(member, field).
#define QTURN_PROBLEM_MEMBERS(X)    \
  X(op, op)                         \
  X(role, role)                     \
  X(m, m)                           \
  X(n, n)                           \
  X(k, k)                           \
  X(batch, batch)                   \
  X(grouping, grouping)             \
  X(groups, groups)                 \
  X(a_type, a_type)                 \
  X(b_type, b_type)                 \
  X(d_type, d_type)                 \
  X(c_type, c_type)                 \
  X(a_major, a_major)               \
  X(b_major, b_major)               \
  X(a_layout, a_layout)             \
  X(b_layout, b_layout)             \
  X(d_layout, d_layout)             \
  X(copies, copies)                 \
  X(rotation, rotation)             \
  X(signs, signs)                   \
  X(scale_rule, scale_rule)         \
  X(scale_block, scale_block)       \
  X(a_rounding, a_rounding)         \
  X(b_rounding, b_rounding)         \
  X(d_rounding, d_rounding)         \
  X(biased, biased)                 \
  X(epilogue, epilogue)             \
  X(pre_activation, pre_activation) \
  X(bias, bias)                     \
  X(bias_gradient, bias_gradient)   \
  X(prologue, prologue)             \
  X(accumulate, accumulate)         \
  X(contract, contract)             \
  X(spread, spread)                 \
  X(reproducibility, repro)

template <class E>
Status take(const char* name, std::int32_t given, E& out) {
  constexpr auto count = static_cast<std::int32_t>(EnumNames<E>::names.size());
  if (given < 0 || given >= count)
    return Status(Code::invalid_argument, fmt::format("{} = {}: 0 to {} are allowed ({})", name,
                                                      given, count - 1, allowed_names<E>()));
  out = static_cast<E>(given);
  return {};
}

Status take(const char* name, const qturn_extent& given, Extent& out) {
  if (given.lo < 0 || given.hi < given.lo || given.hi > kMostSize)
    return Status(
        Code::invalid_argument,
        fmt::format("{} = {}..{}: 0 <= lo <= hi <= 2^40 is allowed", name, given.lo, given.hi));
  out = {given.lo, given.hi};
  return {};
}

Status take(const char*, std::int32_t given, std::int32_t& out) {
  out = given;
  return {};
}

template <class E>
void give(E value, std::int32_t& out) {
  out = static_cast<std::int32_t>(value);
}
void give(const Extent& value, qturn_extent& out) { out = {value.lo, value.hi}; }

// No operand of more than 2^60 elements, so that byte counts and offsets stay in 64 bits.
Status check_volume(const Problem& p) {
  const auto too_large = [&p](const Extent& rows, const Extent& columns) {
    return static_cast<unsigned __int128>(rows.hi + 256) *
               static_cast<unsigned __int128>(columns.hi + 256) *
               static_cast<unsigned __int128>(std::max(p.batch.hi, p.groups.hi) + 1) >
           static_cast<unsigned __int128>(1) << 59;
  };
  // SwiGLU and its derivative double a side.
  const Extent wide_k{2 * p.k.lo, 2 * p.k.hi}, wide_n{2 * p.n.lo, 2 * p.n.hi};
  if (too_large(p.m, wide_k) || too_large(p.n, p.k) || too_large(p.m, wide_n))
    return Status(Code::invalid_argument, "an operand would have more than 2^59 elements");
  return {};
}

}  // namespace

Result<Problem> problem_of(const qturn_problem& given) {
  Problem out;
#define QTURN_TAKE(member, field) \
  if (auto status = take(#member, given.member, out.field); !status.ok()) return status;
  QTURN_PROBLEM_MEMBERS(QTURN_TAKE)
#undef QTURN_TAKE
  if (auto status = check_volume(out); !status.ok()) return status;
  if (auto status = validate(out); !status.ok()) return status;
  return out;
}

qturn_problem c_problem_of(const Problem& problem) {
  qturn_problem out{};
  out.struct_size = sizeof out;
#define QTURN_GIVE(member, field) give(problem.field, out.member);
  QTURN_PROBLEM_MEMBERS(QTURN_GIVE)
#undef QTURN_GIVE
  return out;
}

}  // namespace quarterturn
