// Admission: what a plan gave, held against the reference.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

#include "reference/column_sums.hpp"
#include "runtime/operand.hpp"
#include "tuner/admission_case.hpp"
#include "tuner/operand_codes.hpp"
#include "tuner/parallel.hpp"
#include "tuner/sampling.hpp"

namespace quarterturn {
namespace {

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

}  // namespace

bool same_bits(const std::vector<unsigned char>& a, const std::vector<unsigned char>& b) {
  if (a.size() != b.size()) return false;
  std::atomic<bool> same{true};
  on_all_cores(static_cast<std::int64_t>(a.size()), 1, [&](std::int64_t first, std::int64_t end) {
    if (std::memcmp(a.data() + first, b.data() + first, static_cast<std::size_t>(end - first)) != 0)
      same = false;
  });
  return same;
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

// D in binary32, which the plan that just ran has left in the workspace, to one.now.
Status Admission::read_unquantized(Case& one, const Plan& plan) {
  const Sizes& s = one.spec.sizes;
  const Workspace places = workspace_of(problem_, target_, plan, most_sizes(problem_));
  auto workspace = one.instance->workspace();
  if (!workspace.ok()) return workspace.status();
  const std::int64_t count = s.batch * s.m * one.instance->columns();
  one.now.type = DType::f32;
  one.now.bytes.assign(workspace->begin() + places.result,
                       workspace->begin() + places.result + count * 4);
  return {};
}

// The same by the plan that leaves it, of one whose product quantises D: the same sums.
Status Admission::compute_unquantized(Case& one, const Plan& plan) {
  const auto apart = with_result_step(problem_, target_, plan);
  if (!apart)
    return Status(Code::not_supported,
                  fmt::format("no family quantises a binary32 D, which the codes of '{}' are "
                              "compared with",
                              plan.text()));
  if (!unquantized_ || unquantized_->plan() != *apart) {
    auto built = Executable::build(backend_, problem_, *apart);
    if (!built.ok()) return built.status();
    unquantized_ = std::move(*built);
  }
  auto args = one.instance->arguments(*unquantized_);
  if (!args.ok()) return args.status();
  if (auto status = one.instance->poison(); !status.ok()) return status;
  if (auto status = unquantized_->run(*args, nullptr); !status.ok()) return status;
  if (auto status = backend_.synchronize(); !status.ok()) return status;
  return read_unquantized(one, *apart);
}

// D's codes are those of the plan's own binary32 result.
Status Admission::check_quantized_product(Case& one, const Executable& executable,
                                          Certificate& certificate) {
  const Sizes& s = one.spec.sizes;
  const std::int64_t columns = one.instance->columns();
  std::array<Instance::Packed, 2> codes;  // rows, columns
  for (const bool turned : {false, true}) {
    if (problem_.copies == (turned ? Copies::rows : Copies::columns)) continue;
    auto packed = one.instance->packed(turned && problem_.copies == Copies::both ? 1 : 0);
    if (!packed.ok()) return packed.status();
    codes[turned ? 1 : 0] = std::move(*packed);
  }
  const Plan& plan = executable.plan();
  if (auto status = quantizes_in_product(problem_, plan) ? compute_unquantized(one, plan)
                                                         : read_unquantized(one, plan);
      !status.ok())
    return status;
  if (auto status = check_outputs(one, certificate); !status.ok()) return status;
  if (!is_readable(problem_.d_layout)) return {};
  auto spec = reference_spec(problem_, 0);
  spec.rounding = static_cast<reference::Rounding>(problem_.d_rounding);
  spec.noise.operand = 2;
  // A row of square scale blocks needs 32.
  const auto most = problem_.scale_block == ScaleBlock::b32x32 ? kMostRows : 4 * kMostRows;
  for (const bool turned : {false, true}) {
    if (problem_.copies == (turned ? Copies::rows : Copies::columns)) continue;
    const Instance::Packed& packed = codes[turned ? 1 : 0];
    spec.noise.transposed = turned ? 1 : 0;
    const std::int64_t rows = turned ? columns : s.m, k = turned ? s.m : columns;
    const auto padding = padding_unit(problem_);
    const auto bytes = operand_bytes(problem_.d_layout, rows, k, padding);
    for (std::int64_t batch = 0; batch < s.batch; ++batch) {
      const PackedView view{problem_.d_layout, packed.codes.data() + batch * bytes.codes,
                            packed.scales.data() + batch * bytes.scales, rows,
                            round_up(k, padding)};
      const auto element = [&](std::int64_t r, std::int64_t i) {
        return one.now.at(batch * s.m * columns + (turned ? i * columns + r : r * columns + i));
      };
      for (const auto row : sampled(rows, most, one.spec.seed)) {
        const OracleRow wanted = quantized_row(spec, rows, k, row, element);
        if (auto reason = compare_row(view, row, wanted); !reason.empty())
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

}  // namespace quarterturn
