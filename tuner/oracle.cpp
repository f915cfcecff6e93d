#include "tuner/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "reference/epilogue.hpp"
#include "reference/gemm.hpp"
#include "reference/grouped.hpp"
#include "reference/prologue.hpp"

namespace quarterturn {
namespace {

// The two vocabularies are spelled and ordered alike; the reference stands alone and has its own.
template <class To, class From>
To same(From value) {
  return static_cast<To>(static_cast<int>(value));
}

bool quantises(const Problem& problem, std::uint32_t which) {
  if (which == 1) return true;
  return problem.op != Op::gemm || problem.a_type == DType::mxfp4;
}

OracleRow row_of(const reference::Quantized& quantized, std::int64_t at) {
  OracleRow out;
  out.codes.assign(quantized.codes.begin() + at * quantized.k / 2,
                   quantized.codes.begin() + (at + 1) * quantized.k / 2);
  out.scales.assign(quantized.scales.begin() + at * quantized.k / 32,
                    quantized.scales.begin() + (at + 1) * quantized.k / 32);
  for (std::int64_t i = 0; i < quantized.k; ++i) out.values.push_back(quantized.value(at, i));
  return out;
}

}  // namespace

reference::QuantizeSpec reference_spec(const Problem& problem, std::uint32_t which) {
  reference::QuantizeSpec spec;
  spec.rule = same<reference::ScaleRule>(problem.scale_rule);
  spec.rounding = same<reference::Rounding>(which == 1 ? problem.b_rounding : problem.a_rounding);
  spec.rotation = problem.rotation;
  spec.signs = same<reference::Signs>(problem.signs);
  spec.block = same<reference::ScaleBlock>(problem.scale_block);
  std::copy(std::begin(InstanceKeys::sign_mask), std::end(InstanceKeys::sign_mask),
            spec.sign_mask.begin());
  spec.sign_seed = InstanceKeys::sign_seed;
  const bool stored_transposed = (which == 1 ? problem.b_major : problem.a_major) == Major::rows;
  const bool columns = problem.op == Op::quantize && problem.copies == Copies::columns;
  spec.noise = {InstanceKeys::noise_seed, InstanceKeys::stream, which,
                stored_transposed || columns ? 1u : 0u};
  return spec;
}

OracleRow quantized_row(reference::QuantizeSpec spec, std::int64_t rows, std::int64_t k,
                        std::int64_t row,
                        const std::function<float(std::int64_t, std::int64_t)>& element) {
  // A square scale block needs its 32 rows.
  const bool square = spec.block == reference::ScaleBlock::b32x32;
  const std::int64_t first = square ? row / 32 * 32 : row;
  const std::int64_t count = square ? std::min<std::int64_t>(32, rows - first) : 1;
  std::vector<float> values;
  for (std::int64_t r = first; r < first + count; ++r)
    for (std::int64_t i = 0; i < k; ++i) values.push_back(element(r, i));
  spec.row0 = first;
  spec.k_global = k;
  return row_of(reference::quantize(values.data(), count, k, k, spec), row - first);
}

Oracle::Oracle(const Instance& instance) : instance_(instance) {
  const Problem& p = instance.spec().problem;
  if (p.grouping == Grouping::k_grouped)
    for (const auto& group : reference::token_groups(instance.group_sizes(), p.rotation))
      contractions_.emplace_back(group.start, group.start + group.padded);
  if (p.prologue == Prologue::none || p.copies == Copies::rows) return;
  for (std::int64_t batch = 0; batch < instance.spec().sizes.batch; ++batch)
    for (std::int64_t row = 0; row < instance.a().rows; ++row)
      activated_.push_back(prologue_row(instance, batch, row));
}

OracleRow Oracle::work_out(std::uint32_t which, std::int64_t batch, std::int64_t row,
                           bool transposed) const {
  const Problem& problem = instance_.spec().problem;
  const SourceOperand& source = which == 1 ? instance_.b() : instance_.a();
  const bool activated = problem.prologue != Prologue::none;
  const std::int64_t across = activated ? instance_.spec().sizes.k : source.k;
  const std::int64_t k = transposed ? source.rows : across;
  OracleRow out;
  std::vector<float> values;
  std::vector<float> behind;  // the prologue
  if (activated && !transposed) behind = prologue_row(instance_, batch, row);
  const auto element = [&](std::int64_t r, std::int64_t i) {
    if (activated)
      return transposed ? activated_[static_cast<std::size_t>(batch * source.rows + i)]
                                    [static_cast<std::size_t>(r)]
                        : behind[static_cast<std::size_t>(i)];
    return transposed ? source.at(batch, i, r) : source.at(batch, r, i);
  };
  if (!quantises(problem, which)) {
    for (std::int64_t i = 0; i < k; ++i) out.values.push_back(element(row, i));
    return out;
  }
  auto spec = reference_spec(problem, which);
  if (transposed) spec.noise.transposed = 1;
  if (problem.grouping == Grouping::k_grouped) {
    for (std::int64_t i = 0; i < k; ++i) values.push_back(element(row, i));
    spec.row0 = row;
    return row_of(
        reference::quantize_grouped(values.data(), k, 1, 1, instance_.group_sizes(), spec), 0);
  }
  return quantized_row(spec, transposed ? across : source.rows, k, row, element);
}

const OracleRow& Oracle::row(std::uint32_t which, std::int64_t batch, std::int64_t row) {
  const std::int64_t rows = which == 1 ? instance_.b().rows : instance_.a().rows;
  auto& known = rows_[which];
  const auto found = known.find(batch * rows + row);
  if (found != known.end()) return found->second;
  return known[batch * rows + row] = work_out(which, batch, row, false);
}

const OracleRow& Oracle::transposed_row(std::int64_t batch, std::int64_t row) {
  auto& known = rows_[2];
  const std::int64_t key = batch * instance_.a().k + row;
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known[key] = work_out(0, batch, row, true);
}

void Oracle::prepare(std::uint32_t which, std::int64_t batch,
                     const std::vector<std::int64_t>& rows) {
  const std::int64_t all = which == 1 ? instance_.b().rows : instance_.a().rows;
  std::vector<std::int64_t> missing;
  for (const auto row : rows)
    if (rows_[which].count(batch * all + row) == 0) missing.push_back(row);
  std::vector<OracleRow> found(missing.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < missing.size(); i = next++)
      found[i] = work_out(which, batch, missing[i], false);
  };
  std::vector<std::thread> helpers;
  const auto cores =
      std::min<std::size_t>(std::thread::hardware_concurrency(), 1 + missing.size() / 4);
  for (std::size_t i = 1; i < cores; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  for (std::size_t i = 0; i < missing.size(); ++i)
    rows_[which][batch * all + missing[i]] = std::move(found[i]);
}

std::vector<float> prologue_row(const Instance& instance, std::int64_t batch, std::int64_t row) {
  const Problem& p = instance.spec().problem;
  const std::int64_t k = instance.spec().sizes.k;
  const auto at = [&](std::int64_t i) { return instance.a().at(batch, row, i); };
  std::vector<float> x, weights;
  if (p.prologue == Prologue::rmsnorm) {
    for (std::int64_t i = 0; i < k; ++i) {
      x.push_back(at(i));
      weights.push_back(instance.norm_weight_at(i));
    }
    return reference::rmsnorm(x.data(), weights.data(), k, InstanceKeys::epsilon);
  }
  const bool split = p.prologue == Prologue::swiglu_split;
  for (std::int64_t i = 0; i < k; ++i)
    x.push_back(split ? reference::swiglu32(at(i), at(k + i))
                      : reference::swiglu32(at(2 * i), at(2 * i + 1)));
  return x;
}

std::vector<std::int64_t> Oracle::columns_of_z(const std::vector<std::int64_t>& columns) const {
  const auto form = same<reference::Epilogue>(instance_.spec().problem.epilogue);
  std::vector<std::int64_t> out;
  for (const auto column : columns) {
    const auto from = reference::sources_of(form, column, instance_.spec().sizes.n);
    out.push_back(from.first);
    if (from.second >= 0) out.push_back(from.second);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

OracleOutput Oracle::output(std::int64_t batch, std::int64_t row, std::int64_t column) {
  const Problem& problem = instance_.spec().problem;
  const Sizes& sizes = instance_.spec().sizes;
  if (problem.epilogue == Epilogue::none) return pre_activation(batch, row, column);
  const auto form = same<reference::Epilogue>(problem.epilogue);
  const auto from = reference::sources_of(form, column, sizes.n);
  const auto product = [&](std::int64_t at) -> reference::Product {
    if (at < 0) return {};
    const auto z = pre_activation(batch, row, at);
    return {z.value, z.magnitude};
  };
  const auto aux = [&](std::int64_t i) { return double(instance_.aux_at(batch, row, i)); };
  const auto wanted = reference::activate(
      form, column, sizes.n, product(from.first), product(from.second),
      relative_bound(problem, sizes.k), aux,
      problem.contract == Contract::fast ? reference::Means::approximate : reference::Means::exact);
  return {wanted.value, 0, wanted.error};
}

OracleOutput Oracle::pre_activation(std::int64_t batch, std::int64_t row, std::int64_t column) {
  const InstanceSpec& spec = instance_.spec();
  const auto& a = this->row(0, instance_.entry_of_a(batch), row).values;
  const auto& b = this->row(1, instance_.entry_of_b(batch, row), column).values;
  const auto [first, end] = contractions_.empty()
                                ? std::pair<std::int64_t, std::int64_t>(0, std::ssize(a))
                                : contractions_[static_cast<std::size_t>(batch)];
  double sum = 0, magnitude = 0;
  for (std::int64_t i = first; i < end; ++i) {
    const double term = a[static_cast<std::size_t>(i)] * b[static_cast<std::size_t>(i)];
    sum += term;
    magnitude += std::fabs(term);
  }
  // TS34 leaves 3/4 of each operand that was quantised under it.
  double factor = spec.alpha;
  if (spec.problem.scale_rule == ScaleRule::ts34)
    factor *= quantises(spec.problem, 0) ? 16.0 / 9.0 : 4.0 / 3.0;
  const double c = spec.problem.accumulate == Accumulate::accumulate ? spec.beta : 0;
  const double added = c == 0 ? 0 : c * instance_.c_at(batch, row, column);
  const double bias = instance_.bias_at(column);
  return {factor * sum + added + bias,
          std::fabs(factor) * magnitude + std::fabs(added) + std::fabs(bias)};
}

double relative_bound(const Problem& problem, std::int64_t k) {
  constexpr double kFloat = 0x1p-23;
  double relative = (static_cast<double>(k) / 16 + 16) * kFloat;
  if (problem.a_type != DType::mxfp4 && problem.op == Op::gemm)
    relative = (static_cast<double>(k) + 16) * kFloat;
  if (problem.contract == Contract::fast) relative += 0x1p-9;
  return relative;
}

double error_bound(const Problem& problem, std::int64_t k, const OracleOutput& output) {
  const double relative = relative_bound(problem, k);
  double step = 0x1p-149;
  if (problem.d_type == DType::bf16) step = std::max(std::fabs(output.value) * 0x1p-8, 0x1p-133);
  if (problem.d_type == DType::f16) step = std::max(std::fabs(output.value) * 0x1p-11, 0x1p-24);
  // Values at the type's end may round to infinity on either side; the caller compares those apart.
  return relative * output.magnitude + output.error + step;
}

}  // namespace quarterturn
