#include "tuner/admission.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>

#include "reference/column_sums.hpp"
#include "runtime/operand.hpp"
#include "tuner/measure.hpp"
#include "tuner/operand_codes.hpp"
#include "tuner/parallel.hpp"
#include "tuner/sampling.hpp"
#include "tuner/unbiasedness.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kOutputs =
    4096;  // compared with the scalar reference at least, over all cases
constexpr std::size_t kMostRows = 48;  // of one case
constexpr double kMostWork = 2e10;     // floating-point operations of the largest case
constexpr std::int64_t kLargeOutputs = 1 << 23;
constexpr double kAllWork = 2e8, kAllElements = 4e6;

Status rejected(std::string reason) { return Status(Code::rejected, std::move(reason)); }

double operations_of(const Sizes& s) {
  return 2.0 * static_cast<double>(s.m) * static_cast<double>(std::max<std::int64_t>(1, s.n)) *
         static_cast<double>(s.k);
}

double largest(DType type) { return type == DType::f16 ? 65504.0 : 3.38e38; }

// Empty when `got` is an acceptable answer; else the error in units of the bound is reported
// through `error`, and the result is false.
bool acceptable(DType type, double got, double wanted, double bound, double& error) {
  error = 0;
  if (std::isnan(wanted)) return std::isnan(got);
  if (got == wanted) return true;
  if (std::isinf(wanted)) return false;
  if (std::isinf(got))
    return std::fabs(wanted) + bound >= largest(type) && (got > 0) == (wanted > 0);
  error = std::fabs(got - wanted) / bound;
  return error <= 1;  // false for NaN
}

// Adds what a range of stored rows has of the squared norms, by row or by column of the matrix.
void add_squares(const Matrix& matrix, bool by_row, std::int64_t first, std::int64_t end,
                 std::vector<double>& out) {
  std::vector<float> values;
  for (std::int64_t row = first; row < end; ++row) {
    matrix.row(row, values);
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double square = static_cast<double>(values[i]) * static_cast<double>(values[i]);
      if (by_row)
        sum += square;
      else
        out[i] += square;
    }
    if (by_row) out[static_cast<std::size_t>(row)] = sum;
  }
}

// An upper bound of the norm of each row after quantisation: codes at most double a value's size.
std::vector<double> norms(const SourceOperand& source, std::int64_t batch) {
  const Matrix& matrix = source.entries[static_cast<std::size_t>(batch)];
  const bool by_row = source.major == Major::k;
  std::vector<double> out(static_cast<std::size_t>(source.rows));
  std::mutex adding;
  on_all_cores(matrix.rows(), 8 * matrix.columns(), [&](std::int64_t first, std::int64_t end) {
    if (by_row) return add_squares(matrix, by_row, first, end, out);
    std::vector<double> part(out.size());
    add_squares(matrix, by_row, first, end, part);
    const std::lock_guard lock(adding);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += part[i];
  });
  for (double& norm : out) norm = 2 * std::sqrt(norm);
  if (source.special) out.front() = out.back() = std::numeric_limits<double>::quiet_NaN();
  return out;
}

bool same_bits(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b) {
  if (a.size() != b.size()) return false;
  std::atomic<bool> same{true};
  on_all_cores(static_cast<std::int64_t>(a.size()), 1, [&](std::int64_t first, std::int64_t end) {
    if (std::memcmp(a.data() + first, b.data() + first, static_cast<std::size_t>(end - first)) != 0)
      same = false;
  });
  return same;
}

void note_repeat(Certificate& certificate, bool same) {
  certificate.repeatable = same && certificate.repeatable != 0 ? 1 : 0;
}

}  // namespace

struct Admission::Case {
  InstanceSpec spec;
  std::unique_ptr<Instance> instance;
  std::unique_ptr<Oracle> oracle;
  std::vector<std::int64_t> rows, columns;
  std::vector<std::int64_t> rows_of_b;  ///< that those columns of D come from
  std::set<Layout> prepared;            ///< layouts whose prepared operands were compared

  bool sampled = false;              ///< only the rows above are read back
  std::vector<OracleOutput> wanted;  ///< of the sampled outputs, by batch entry, row and column
  Outputs stand_in;                  ///< all outputs of the admitted plan
  Outputs now, before;               ///< of the plan being tried, twice
  std::vector<std::vector<double>> a_norms, b_norms;  ///< by batch entry
};

std::string Certificate::text() const {
  return fmt::format(
      "max_error={:.3g} outputs={} all_outputs={} code_rows={} bias_z={:.3g} repeatable={}",
      max_error, outputs, all_outputs, code_rows, bias_z, repeatable);
}

Admission::Admission(Backend& backend, Problem problem)
    : backend_(backend), problem_(std::move(problem)), target_(backend.device().target) {
  product_ = problem_;
  if (product_.op == Op::gemm_quantize) product_.d_type = DType::f32;
}
Admission::~Admission() = default;

std::vector<Sizes> Admission::sizes_for(const Problem& p) {
  const auto pick = [](const Extent& extent, std::int64_t wanted) {
    return extent.is_static() ? extent.lo : std::clamp(wanted, extent.lo, extent.hi);
  };
  std::vector<Sizes> out;
  // Two waves of the largest tiles, a tail, a single token; further ones pad K differently.
  std::vector<std::int64_t> tokens{197, 17, 1};
  if (!p.k.is_static()) tokens.insert(tokens.end(), {33, 32});
  if (p.m.lo == 0 || (!p.k.is_static() && p.k.lo == 0)) tokens.push_back(0);
  for (std::int64_t t : tokens) {
    Sizes sizes{pick(p.m, t), pick(p.n, t + 31), pick(p.k, t),
                p.batch.is_static() ? p.batch.lo : std::min<std::int64_t>(2, p.batch.hi),
                p.groups.is_static() ? p.groups.lo : std::min<std::int64_t>(3, p.groups.hi)};
    for (; t > 17 && operations_of(sizes) > kMostWork; t = t * 2 / 3) {
      sizes.m = pick(p.m, t);
      sizes.n = pick(p.n, t + 31);
      sizes.k = pick(p.k, t);
    }
    const bool known = std::any_of(out.begin(), out.end(), [&](const Sizes& other) {
      return other.m == sizes.m && other.n == sizes.n && other.k == sizes.k;
    });
    if (!known) out.push_back(sizes);
  }
  return out;
}

Status Admission::prepare_cases() {
  if (!cases_.empty()) return {};
  const auto sizes = sizes_for(problem_);
  const auto add = [&](const Sizes& at, Profile a, Profile b, Rows rows, float alpha, float beta,
                       bool special) {
    auto one = std::make_unique<Case>();
    one->spec = {problem_, at, a, b, 11 + cases_.size(), rows, alpha, beta, special, {}};
    cases_.push_back(std::move(one));
  };
  const Profile real = profile_of(problem_.role);
  const auto size = [&](std::size_t i) { return sizes[std::min(i, sizes.size() - 1)]; };
  add(size(0), real, Profile::weight, Rows::tight, 1.0f, 1.0f, false);
  add(size(1), Profile::heavy_tail, Profile::weight, Rows::wider, 0.5f, 1.0f, false);
  add(size(1), Profile::edge, Profile::edge, Rows::tight, -1.25f, -0.5f, size(1).m >= 4);
  // The remaining sizes with the first inputs' kind; no size may be worse than another.
  for (std::size_t i = 2; i < sizes.size(); ++i)
    add(sizes[i], real, Profile::weight, Rows::tight, 0.75f, 2.0f, false);

  std::int64_t rows = 0;
  for (const auto& one : cases_)
    rows += std::min<std::int64_t>(one->spec.sizes.m, static_cast<std::int64_t>(kMostRows));
  const std::int64_t columns =
      std::max<std::int64_t>(96, ceil_div(kOutputs, std::max<std::int64_t>(1, rows)));
  for (auto& one : cases_)
    if (auto status = prepare_samples(*one, columns); !status.ok()) return status;
  return {};
}

Status Admission::prepare_samples(Case& one, std::int64_t columns) {
  const Sizes& s = one.spec.sizes;
  if (s.m == 0) return {};
  auto instance = Instance::make(backend_, one.spec);
  if (!instance.ok()) return instance.status();
  one.instance = std::move(*instance);
  one.oracle = std::make_unique<Oracle>(*one.instance);
  // Small cases are compared in full.
  const double quantised = static_cast<double>(s.m + s.n) * static_cast<double>(s.k);
  const bool all = operations_of(s) <= kAllWork && quantised <= kAllElements;
  const auto most = [all](std::size_t some) { return all ? std::string::npos : some; };
  one.rows = sampled(s.m, most(kMostRows), one.spec.seed);
  if (!multiplies(problem_.op)) return {};
  one.columns =
      sampled(one.instance->columns(), most(static_cast<std::size_t>(columns)), one.spec.seed + 1);
  one.rows_of_b = one.oracle->columns_of_z(one.columns);
  const Entries entries = one.instance->entries();
  for (std::int64_t i = 0; i < entries.a; ++i) one.oracle->prepare(0, i, one.rows);
  for (std::int64_t i = 0; i < entries.b; ++i) one.oracle->prepare(1, i, one.rows_of_b);
  const auto rows = static_cast<std::int64_t>(one.rows.size()),
             across = static_cast<std::int64_t>(one.columns.size());
  one.wanted.resize(static_cast<std::size_t>(entries.d * rows * across));
  on_all_cores(entries.d * rows, across * s.k, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t i = first; i < end; ++i)
      for (std::int64_t j = 0; j < across; ++j)
        one.wanted[static_cast<std::size_t>(i * across + j)] =
            one.oracle->output(i / rows, one.rows[static_cast<std::size_t>(i % rows)],
                               one.columns[static_cast<std::size_t>(j)]);
  });
  return {};
}

Status Admission::check_outputs(Case& one, Certificate& certificate) {
  const Sizes& s = one.spec.sizes;
  auto next = one.wanted.begin();
  const auto rows = static_cast<std::int64_t>(one.rows.size());
  for (std::int64_t batch = 0; batch < one.instance->entries().d; ++batch)
    for (std::int64_t i = 0; i < rows; ++i)
      for (const auto column : one.columns) {
        const std::int64_t row = one.rows[static_cast<std::size_t>(i)];
        const std::int64_t line = one.sampled ? batch * rows + i : batch * s.m + row;
        const OracleOutput& wanted = *next++;
        const double bound = error_bound(product_, s.k, wanted);
        const double got = one.now.at(line * one.instance->columns() + column);
        double error = 0;
        if (!acceptable(one.now.type, got, wanted.value, bound, error))
          return rejected(fmt::format(
              "D[{}, {}] is {:.9g}, the reference gives {:.9g} +- {:.2g} ({} inputs, m={} n={} "
              "k={}, alpha={}, beta={})",
              row, column, got, wanted.value, bound, profile_name(one.spec.a_profile), s.m, s.n,
              s.k, one.spec.alpha, one.spec.beta));
        certificate.max_error = std::max(certificate.max_error, error);
        ++certificate.outputs;
      }
  return {};
}

// Every output against the plan that was admitted before. Where they differ, the reference says who
// errs.
Status Admission::check_all(Case& one, Certificate& certificate) {
  const Sizes& s = one.spec.sizes;
  // Where an activation makes small what was large, only exact values say how far apart is too far.
  if (one.stand_in.empty() || one.sampled || problem_.epilogue != Epilogue::none) return {};
  certificate.all_outputs += one.now.size();
  if (same_bits(one.now.bytes, one.stand_in.bytes)) return {};
  const Entries entries = one.instance->entries();
  if (one.a_norms.empty()) {
    for (std::int64_t i = 0; i < entries.a; ++i) one.a_norms.push_back(norms(one.instance->a(), i));
    for (std::int64_t i = 0; i < entries.b; ++i) one.b_norms.push_back(norms(one.instance->b(), i));
  }
  const double factor =
      std::fabs(one.spec.alpha) * (problem_.scale_rule == ScaleRule::ts34 ? 16.0 / 9.0 : 1.0);
  const auto size = bytes_of(problem_.d_type);
  const auto agree = [&](std::int64_t batch, std::int64_t row, std::int64_t column,
                         std::int64_t at) {
    const double got = one.now.at(at), wanted = one.stand_in.at(at);
    if (std::isnan(got) && std::isnan(wanted)) return true;
    const double beyond_product =
        std::fabs(one.spec.beta * one.instance->c_at(batch, row, column)) +
        std::fabs(one.instance->bias_at(column));
    const double magnitude =
        factor *
            one.a_norms[static_cast<std::size_t>(one.instance->entry_of_a(batch))]
                       [static_cast<std::size_t>(row)] *
            one.b_norms[static_cast<std::size_t>(one.instance->entry_of_b(batch, row))]
                       [static_cast<std::size_t>(column)] +
        beyond_product;
    double error = 0;
    return acceptable(problem_.d_type, got, wanted,
                      2 * error_bound(problem_, s.k, {wanted, magnitude}), error);
  };
  const auto first_wrong_of_row = [&](std::int64_t line) -> std::int64_t {
    const auto *now = one.now.bytes.data() + line * s.n * size,
               *known = one.stand_in.bytes.data() + line * s.n * size;
    if (std::memcmp(now, known, static_cast<std::size_t>(s.n * size)) == 0) return -1;
    for (std::int64_t column = 0; column < s.n; ++column)
      if (std::memcmp(now + column * size, known + column * size, static_cast<std::size_t>(size)) !=
              0 &&
          !agree(line / s.m, line % s.m, column, line * s.n + column))
        return line * s.n + column;
    return -1;
  };
  // The first that does not agree, whatever the number of threads.
  std::atomic<std::int64_t> worst{one.now.size()};
  on_all_cores(entries.d * s.m, 8 * s.n, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t line = first; line < end && line * s.n < worst; ++line) {
      const std::int64_t at = first_wrong_of_row(line);
      if (at < 0) continue;
      std::int64_t known = worst;
      while (at < known && !worst.compare_exchange_weak(known, at)) {
      }
      return;
    }
  });
  if (worst == one.now.size()) return {};
  const std::int64_t at = worst, batch = at / (s.m * s.n), row = at / s.n % s.m, column = at % s.n;
  const double got = one.now.at(at);
  const OracleOutput truth = one.oracle->output(batch, row, column);
  double error = 0;
  if (!acceptable(problem_.d_type, got, truth.value, error_bound(problem_, s.k, truth), error))
    return rejected(
        fmt::format("D[{}, {}] is {:.9g}, the reference gives {:.9g} ({} inputs, m={} n={} k={}, "
                    "alpha={}, beta={})",
                    row, column, got, truth.value, profile_name(one.spec.a_profile), s.m, s.n, s.k,
                    one.spec.alpha, one.spec.beta));
  disproved_ = admitted_;
  admitted_.clear();
  for (auto& other : cases_) other->stand_in = {};
  return {};
}

Status Admission::check_rows(Case& one, std::uint32_t which, const unsigned char* codes,
                             const unsigned char* scales, Layout layout, Certificate& certificate) {
  if (!is_readable(layout)) return {};
  const SourceOperand& source = which == 1 ? one.instance->b() : one.instance->a();
  const auto groups = one.spec.sizes.groups;
  const auto bytes = copy_bytes(problem_, layout, source.rows, source.k, groups);
  const auto& rows = which == 1 ? one.rows_of_b : one.rows;
  const auto entries = static_cast<std::int64_t>(source.entries.size());
  for (std::int64_t batch = 0; batch < entries; ++batch) {
    const PackedView view{layout, codes + batch * bytes.codes, scales + batch * bytes.scales,
                          source.rows, copy_length(problem_, source.k, groups)};
    std::size_t compared = 0;
    for (const auto row : rows) {
      if (++compared > kMostRows) break;
      if (auto reason = compare_row(view, row, one.oracle->row(which, batch, row)); !reason.empty())
        return rejected(
            fmt::format("quantised {}: {} ({} inputs)", which == 1 ? "B" : "A", reason,
                        profile_name(which == 1 ? one.spec.b_profile : one.spec.a_profile)));
      ++certificate.code_rows;
    }
  }
  return {};
}

// The quantised copies that a plan made on its way lie in the workspace.
Status Admission::check_steps(Case& one, const Executable& executable, Certificate& certificate) {
  const Plan& plan = executable.plan();
  const Step* gemm = plan.find(StepKind::gemm);
  const Family* family = gemm ? find_family(gemm->variant.family) : nullptr;
  if (!family) return {};
  const Workspace places = workspace_of(problem_, target_, plan, most_sizes(problem_));
  const bool some =
      (plan.find(StepKind::quantize_a) && is_readable(family->a_layout(problem_, gemm->variant))) ||
      (plan.find(StepKind::quantize_b) && is_readable(family->b_layout(problem_, gemm->variant)));
  if (some) {
    auto workspace = one.instance->workspace();
    if (!workspace.ok()) return workspace.status();
    if (plan.find(StepKind::quantize_a))
      if (auto status = check_rows(one, 0, workspace->data() + places.a_codes,
                                   workspace->data() + places.a_scales,
                                   family->a_layout(problem_, gemm->variant), certificate);
          !status.ok())
        return status;
    if (plan.find(StepKind::quantize_b))
      if (auto status = check_rows(one, 1, workspace->data() + places.b_codes,
                                   workspace->data() + places.b_scales,
                                   family->b_layout(problem_, gemm->variant), certificate);
          !status.ok())
        return status;
  }
  for (const std::uint32_t which : {0u, 1u}) {
    const Layout layout = which == 1 ? executable.b_layout() : executable.a_layout();
    if ((which == 1 ? problem_.b_type : problem_.a_type) != DType::mxfp4) continue;
    if (which == 1 && !one.prepared.insert(layout).second) continue;
    auto packed = one.instance->prepared(which, layout);
    if (!packed.ok()) return packed.status();
    if (auto status = check_rows(one, which, packed->codes.data(), packed->scales.data(), layout,
                                 certificate);
        !status.ok())
      return Status(Code::internal,
                    fmt::format("the default quantiser is wrong, so no plan can be judged: {}",
                                status.message()));
  }
  return {};
}

// A kept pre-activation, at the columns that sampled outputs come from; and the sums beside D.
Status Admission::check_beside(Case& one, Certificate& certificate) {
  const Sizes& s = one.spec.sizes;
  if (problem_.pre_activation == PreActivation::kept) {
    auto z = one.instance->pre_activation();
    if (!z.ok()) return z.status();
    Problem as_z = problem_;
    as_z.d_type = side_type(problem_);
    for (std::int64_t batch = 0; batch < s.batch; ++batch)
      for (const auto row : one.rows)
        for (const auto column : one.rows_of_b) {
          const auto wanted = one.oracle->pre_activation(batch, row, column);
          const double got = z->at((batch * s.m + row) * s.n + column);
          double error = 0;
          if (!acceptable(as_z.d_type, got, wanted.value, error_bound(as_z, s.k, wanted), error))
            return rejected(fmt::format("z[{}, {}] is {:.9g}, the reference gives {:.9g}", row,
                                        column, got, wanted.value));
          ++certificate.outputs;
        }
  }
  if (problem_.bias_gradient == BiasGradient::none) return {};
  auto sums = one.instance->sums();
  if (!sums.ok()) return sums.status();
  const SourceOperand& a = one.instance->a();
  const bool turned = a.major == Major::rows;
  const std::int64_t rows = turned ? a.k : a.rows, columns = turned ? a.rows : a.k;
  for (std::int64_t batch = 0; batch < s.batch; ++batch)
    for (const auto column : sampled(columns, 4 * kMostRows, one.spec.seed + 2)) {
      std::vector<float> x;
      for (std::int64_t r = 0; r < rows; ++r)
        x.push_back(turned ? a.at(batch, column, r) : a.at(batch, r, column));
      const float wanted = reference::column_sums(x.data(), rows, 1, 1)[0];
      const float got = sums->at(batch * columns + column);
      if (got != wanted && !(std::isnan(got) && std::isnan(wanted)))
        return rejected(fmt::format("the sum of column {} is {:.9g}, the reference gives {:.9g}",
                                    column, got, wanted));
      ++certificate.outputs;
    }
  return {};
}

// D's codes are those of the plan's own binary32 result, which lies in the workspace.
Status Admission::check_quantized_product(Case& one, const Executable& executable,
                                          Certificate& certificate) {
  const Sizes& s = one.spec.sizes;
  const Workspace places = workspace_of(problem_, target_, executable.plan(), most_sizes(problem_));
  auto workspace = one.instance->workspace();
  if (!workspace.ok()) return workspace.status();
  const std::int64_t columns = one.instance->columns(), count = s.batch * s.m * columns;
  one.now.type = DType::f32;
  one.now.bytes.assign(workspace->begin() + places.result,
                       workspace->begin() + places.result + count * 4);
  if (auto status = check_outputs(one, certificate); !status.ok()) return status;
  if (!is_readable(problem_.d_layout)) return {};
  auto spec = reference_spec(problem_, 0);
  spec.rounding = static_cast<reference::Rounding>(problem_.d_rounding);
  spec.noise.operand = 2;
  for (const bool turned : {false, true}) {
    if (problem_.copies == (turned ? Copies::rows : Copies::columns)) continue;
    auto packed = one.instance->packed(turned && problem_.copies == Copies::both ? 1 : 0);
    if (!packed.ok()) return packed.status();
    spec.noise.transposed = turned ? 1 : 0;
    const std::int64_t rows = turned ? columns : s.m, k = turned ? s.m : columns;
    const auto padding = padding_unit(problem_);
    const auto bytes = operand_bytes(problem_.d_layout, rows, k, padding);
    for (std::int64_t batch = 0; batch < s.batch; ++batch) {
      std::vector<float> x;
      for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t i = 0; i < k; ++i)
          x.push_back(
              one.now.at(batch * s.m * columns + (turned ? i * columns + r : r * columns + i)));
      const auto wanted = reference::quantize(x.data(), rows, k, k, spec);
      const PackedView view{problem_.d_layout, packed->codes.data() + batch * bytes.codes,
                            packed->scales.data() + batch * bytes.scales, rows,
                            round_up(k, padding)};
      for (const auto row : sampled(rows, 4 * kMostRows, one.spec.seed)) {
        OracleRow line;
        line.codes.assign(wanted.codes.begin() + row * wanted.k / 2,
                          wanted.codes.begin() + (row + 1) * wanted.k / 2);
        line.scales.assign(wanted.scales.begin() + row * wanted.k / 32,
                           wanted.scales.begin() + (row + 1) * wanted.k / 32);
        if (auto reason = compare_row(view, row, line); !reason.empty())
          return rejected(fmt::format("{}{} of its own binary32 result",
                                      turned ? "transposed copy: " : "", reason));
        ++certificate.code_rows;
      }
    }
  }
  return {};
}

Status Admission::check_quantized_result(Case& one, Certificate& certificate) {
  const Sizes& s = one.spec.sizes;
  const auto padding = padding_unit(problem_);
  const auto compare = [&](int which, std::int64_t rows, std::int64_t k,
                           bool transposed) -> Status {
    if (!is_readable(problem_.d_layout))
      return Status(Code::not_supported, fmt::format("codes in layout {} cannot be read back here",
                                                     name_of(problem_.d_layout)));
    auto packed = one.instance->packed(which);
    if (!packed.ok()) return packed.status();
    const auto bytes = operand_bytes(problem_.d_layout, rows, k, padding);
    for (std::int64_t batch = 0; batch < s.batch; ++batch) {
      const PackedView view{problem_.d_layout, packed->codes.data() + batch * bytes.codes,
                            packed->scales.data() + batch * bytes.scales, rows,
                            round_up(k, padding)};
      for (const auto row : sampled(rows, 4 * kMostRows, one.spec.seed)) {
        const auto& wanted =
            transposed ? one.oracle->transposed_row(batch, row) : one.oracle->row(0, batch, row);
        if (auto reason = compare_row(view, row, wanted); !reason.empty())
          return rejected(fmt::format("{}{} ({} inputs, m={} k={})",
                                      transposed ? "transposed copy: " : "", reason,
                                      profile_name(one.spec.a_profile), s.m, s.k));
        ++certificate.code_rows;
        certificate.outputs += k;
      }
    }
    return {};
  };
  if (problem_.copies != Copies::columns)
    if (auto status = compare(0, s.m, s.k, false); !status.ok()) return status;
  if (problem_.copies == Copies::rows) return {};
  return compare(problem_.copies == Copies::both ? 1 : 0, s.k, s.m, true);
}

// Codes' values and rotated rows are rounded once, to D's type: bit for bit.
Status Admission::check_elements(Case& one, Certificate& certificate) {
  const auto spec = reference_spec(problem_, 0);
  const std::int64_t k = one.spec.sizes.k;
  const auto size = static_cast<std::size_t>(bytes_of(problem_.d_type));
  for (std::int64_t batch = 0; batch < one.spec.sizes.batch; ++batch)
    for (const auto row : one.rows) {
      std::vector<float> wanted;
      if (problem_.op == Op::hadamard) {
        for (std::int64_t i = 0; i < k; ++i) wanted.push_back(one.instance->a().at(batch, row, i));
        reference::rotate_row(wanted, spec);
      } else {
        for (const double value : one.oracle->row(0, batch, row).values)
          wanted.push_back(static_cast<float>(value));
      }
      for (std::int64_t i = 0; i < k; ++i) {
        unsigned char bytes[4] = {};
        store_element(problem_.d_type, wanted[static_cast<std::size_t>(i)], bytes);
        const std::int64_t at = (batch * one.spec.sizes.m + row) * k + i;
        const auto* got = one.now.bytes.data() + static_cast<std::size_t>(at) * size;
        const float value = load_element(problem_.d_type, bytes);
        if (std::memcmp(got, bytes, size) != 0 &&
            !(std::isnan(value) && std::isnan(one.now.at(at))))
          return rejected(fmt::format("D[{}, {}] is {:.9g}, the reference gives {:.9g}", row, i,
                                      one.now.at(at), value));
        ++certificate.outputs;
      }
    }
  return {};
}

Status Admission::run_case(Case& one, const Executable& executable, Depth depth,
                           Certificate& certificate) {
  if (!one.instance) {
    // No rows: the call succeeds and touches nothing.
    qt_args args{};
    args.n = one.spec.sizes.n;
    args.k = one.spec.sizes.k;
    args.batch = one.spec.sizes.batch;
    return executable.run(args, nullptr);
  }
  Instance& instance = *one.instance;
  const SteadyClock clock;
  const double begun = clock.now();
  auto args = instance.arguments(executable);
  data_seconds_ += clock.now() - begun;
  if (!args.ok()) return args.status();
  const bool codes = problem_.d_type == DType::mxfp4;
  Instance::Packed first_codes;
  // Of large cases only the first inputs' results are compared whole and with a second run's.
  const Sizes& s = one.spec.sizes;
  const bool first = &one == cases_.front().get();
  one.sampled = !codes && multiplies(problem_.op) &&
                s.m * s.n * instance.entries().d > kLargeOutputs &&
                (!first || depth == Depth::sampled);
  if (one.sampled && first) certificate.whole = false;
  const int turns = one.sampled ? 1 : 2;
  for (int turn = 0; turn < turns; ++turn) {
    if (auto status = instance.poison(); !status.ok()) return status;
    if (auto status = executable.run(*args, nullptr); !status.ok()) return status;
    if (auto status = backend_.synchronize(); !status.ok()) return status;
    if (codes) {
      auto now = instance.packed(0);
      if (!now.ok()) return now.status();
      if (turn == 1)
        note_repeat(certificate,
                    now->codes == first_codes.codes && now->scales == first_codes.scales);
      first_codes = std::move(*now);
    } else {
      std::swap(one.now, one.before);
      if (auto status =
              one.sampled ? instance.result_rows(one.rows, one.now) : instance.result(one.now);
          !status.ok())
        return status;
      if (turn == 1) note_repeat(certificate, same_bits(one.now.bytes, one.before.bytes));
    }
  }
  const auto inputs = one.sampled ? Instance::Inputs::trusted : Instance::Inputs::compared;
  if (auto status = instance.check_memory(inputs); !status.ok()) return status;
  if (certificate.repeatable == 0 && problem_.repro != Reproducibility::any)
    return rejected("two runs on the same inputs gave different bits");
  if (auto status = check_beside(one, certificate); !status.ok()) return status;
  if (problem_.op == Op::gemm_quantize) {
    if (auto status = check_steps(one, executable, certificate); !status.ok()) return status;
    return check_quantized_product(one, executable, certificate);
  }
  if (codes) return check_quantized_result(one, certificate);
  if (problem_.op == Op::dequantize || problem_.op == Op::hadamard)
    return check_elements(one, certificate);
  if (!multiplies(problem_.op))
    return Status(Code::not_supported,
                  fmt::format("op {} is checked as a step of others", name_of(problem_.op)));
  // Codes first: a wrong code is the better explanation of a wrong output.
  if (auto status = check_steps(one, executable, certificate); !status.ok()) return status;
  if (auto status = check_outputs(one, certificate); !status.ok()) return status;
  return check_all(one, certificate);
}

Instance* Admission::first_instance() const {
  return cases_.empty() ? nullptr : cases_.front()->instance.get();
}

Instance* Admission::edge_instance() const {
  for (const auto& one : cases_)
    if (one->spec.a_profile == Profile::edge) return one->instance.get();
  return nullptr;
}

Verdict Admission::admit(const Executable& executable, Depth depth) {
  Verdict out;
  const SteadyClock clock;
  const double begun = clock.now();
  out.status = prepare_cases();
  data_seconds_ += clock.now() - begun;
  if (!out.status.ok()) return out;
  for (auto& one : cases_) {
    out.status = run_case(*one, executable, depth, out.certificate);
    if (!out.status.ok()) return out;
    // Sampled: the rest, among it what leaves every window and takes long, when all is read.
    if (!out.certificate.whole) return out;
  }
  out.status = check_unbiased(backend_, problem_, executable.plan(), out.certificate.bias_z);
  if (!out.status.ok()) return out;
  if (out.certificate.outputs == 0)
    out.status = Status(Code::internal, "nothing was compared: the problem leaves no sizes to try");
  if (out.status.ok() && admitted_.empty() && out.certificate.whole) {
    admitted_ = executable.plan().text();
    for (auto& one : cases_) std::swap(one->stand_in, one->now);
  }
  return out;
}

}  // namespace quarterturn
