#include "tuner/admission.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/admission_case.hpp"
#include "tuner/measure.hpp"
#include "tuner/parallel.hpp"
#include "tuner/sampling.hpp"
#include "tuner/unbiasedness.hpp"

namespace quarterturn {
namespace {

constexpr std::int64_t kOutputs =
    4096;                           // compared with the scalar reference at least, over all cases
constexpr double kMostWork = 2e10;  // floating-point operations of the largest case
constexpr std::int64_t kLargeOutputs = 1 << 23;
constexpr double kAllWork = 2e8, kAllElements = 4e6;

double operations_of(const Sizes& s) {
  return 2.0 * static_cast<double>(s.m) * static_cast<double>(std::max<std::int64_t>(1, s.n)) *
         static_cast<double>(s.k);
}

void note_repeat(Certificate& certificate, bool same) {
  certificate.repeatable = same && certificate.repeatable != 0 ? 1 : 0;
}

}  // namespace

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
