#include "tuner/unbiasedness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "reference/quantize.hpp"
#include "reference/statistics.hpp"
#include "tuner/instance.hpp"
#include "tuner/operand_codes.hpp"
#include "tuner/oracle.hpp"
#include "tuner/random.hpp"
#include "tuner/sampling.hpp"

namespace quarterturn {
namespace {

constexpr std::size_t kRows = 4, kColumns = 1024;
constexpr double kElements = 2e8;  // quantised in all
constexpr double kLeastDraws = 32, kMostDraws = 512;

// The problem of one step, if it rounds stochastically and can be judged alone.
std::optional<Problem> stochastic_part(const Problem& problem, const Target& target,
                                       const Plan& plan, const Step& step) {
  const bool quantises = step.kind == StepKind::quantize_a || step.kind == StepKind::quantize_b ||
                         (step.kind == StepKind::whole && problem.op == Op::quantize);
  if (!quantises) return {};
  Problem part = step_problem(problem, target, plan, step.kind);
  if (!is_stochastic(part.a_rounding) || !is_readable(part.d_layout) ||
      part.scale_block != ScaleBlock::b1x32 || part.prologue != Prologue::none)
    return {};
  if (clips(part.scale_rule)) return {};  // biased by what the caller asked for
  part.grouping = Grouping::none;         // the same rounding, group by group
  part.groups = Extent::exactly(1);
  return part;
}

Sizes small_sizes(const Problem& part) {
  const auto near = [](const Extent& e, std::int64_t wanted) {
    return std::clamp(wanted, e.lo, e.hi);
  };
  return {near(part.m, 32), 0, part.k.is_static() ? part.k.lo : near(part.k, 64), 1};
}

/// Rows of a quantised copy, some of which are looked at.
struct Sample {
  std::int64_t rows, k, padded;
  std::vector<std::int64_t> chosen;
  std::size_t columns;
  std::int64_t draws;

  Sample(const Problem& part, const Sizes& sizes) {
    const bool transposed = part.copies == Copies::columns;
    rows = transposed ? sizes.k : sizes.m;
    k = transposed ? sizes.m : sizes.k;
    padded = round_up(k, padding_unit(part));
    chosen = sampled(rows, kRows, 3);
    columns = static_cast<std::size_t>(std::min<std::int64_t>(padded, kColumns));
    draws = static_cast<std::int64_t>(std::clamp(
        kElements / (static_cast<double>(rows) * static_cast<double>(k)), kLeastDraws, kMostDraws));
  }
};

// Of the chosen rows, the mean of their decoded codes over all draws.
Result<std::vector<double>> means(Backend& backend, const Executable& quantizer,
                                  const Problem& part, Instance& instance, qt_args args,
                                  const Sample& sample) {
  std::vector<double> out(sample.chosen.size() * sample.columns);
  for (std::int64_t draw = 0; draw < sample.draws; ++draw) {
    args.noise_seed = Random::at(77, static_cast<std::uint64_t>(draw));
    if (auto status = quantizer.run(args, nullptr); !status.ok()) return status;
    if (auto status = backend.synchronize(); !status.ok()) return status;
    const auto packed = instance.packed(0);
    if (!packed.ok()) return packed.status();
    const PackedView view{part.d_layout, packed->codes.data(), packed->scales.data(), sample.rows,
                          sample.padded};
    for (std::size_t r = 0; r < sample.chosen.size(); ++r) {
      const auto values = decode_row(view, sample.chosen[r]);
      for (std::size_t i = 0; i < sample.columns; ++i) out[r * sample.columns + i] += values[i];
    }
  }
  for (double& mean : out) mean /= static_cast<double>(sample.draws);
  return out;
}

// What is rounded: a row of the rotated matrix.
std::vector<float> rotated_row(const Instance& instance, const Problem& part,
                               const reference::QuantizeSpec& spec, const Sample& sample,
                               std::int64_t row) {
  const bool transposed = part.copies == Copies::columns;
  std::vector<float> out(static_cast<std::size_t>(sample.padded));
  for (std::int64_t i = 0; i < sample.k; ++i)
    out[static_cast<std::size_t>(i)] =
        transposed ? instance.a().at(0, i, row) : instance.a().at(0, row, i);
  reference::rotate_row(out, spec);
  return out;
}

// Random bits of an element where they are so few that probabilities show it, else 0.
int few_bits(reference::Rounding rounding) {
  return rounding == reference::Rounding::sr8 || rounding == reference::Rounding::sr_cvt_rs ? 8 : 0;
}

// Adds one element: its exact value in units of its block's scale, and the neighbours between which
// it is rounded. Of n random bits, it goes up with a probability of whole 2^-n, rounded down.
void add_element(reference::BiasTest& test, double exact, double mean, int bits) {
  double magnitude = std::fabs(exact);
  const double step = magnitude < 2 ? 0.5 : magnitude < 4 ? 1 : 2;
  if (bits > 0)
    magnitude = std::ldexp(std::floor(std::ldexp(magnitude / step, bits)), -bits) * step;
  double low = std::floor(magnitude / step) * step, high = low + (low == magnitude ? 0 : step);
  if (exact < 0) std::swap(low *= -1, high *= -1);
  test.add(std::copysign(magnitude, exact), low, high, mean);
}

void add_row(reference::BiasTest& test, std::span<const float> row,
             const reference::QuantizeSpec& spec, std::span<const double> means) {
  const reference::ScaleRule rule = spec.rule;
  for (std::size_t i = 0; i < means.size(); ++i) {
    const auto block = row.subspan(i / 32 * 32, 32);
    if (std::all_of(block.begin(), block.end(), [](float v) { return v == 0; })) continue;
    const double scale = std::ldexp(1.0, reference::scale_byte(block, rule) - 127);
    const float value = rule == reference::ScaleRule::ts34 ? row[i] * 0.75f : row[i];
    add_element(test, value / scale, means[i], few_bits(spec.rounding));
  }
}

Status check_step(Backend& backend, const Problem& part, const Step& step, double& worst_z) {
  auto quantizer = Executable::build(backend, part, Plan{{{StepKind::whole, step.variant}}});
  if (!quantizer.ok()) return quantizer.status();
  const InstanceSpec spec{
      part, small_sizes(part), Profile::forward, Profile::weight, 5, Rows::tight, 1, 0, false, {}};
  if (spec.sizes.m == 0 || spec.sizes.k == 0) return {};
  auto instance = Instance::make(backend, spec);
  if (!instance.ok()) return instance.status();
  auto args = (*instance)->arguments(**quantizer);
  if (!args.ok()) return args.status();
  const std::uint32_t operand = step.kind == StepKind::quantize_b ? 1 : 0;
  args->operand = operand;
  const Sample sample(part, spec.sizes);
  const auto found = means(backend, **quantizer, part, **instance, *args, sample);
  if (!found.ok()) return found.status();
  reference::BiasTest test(sample.draws);
  const auto wanted = reference_spec(part, operand);
  for (std::size_t r = 0; r < sample.chosen.size(); ++r)
    add_row(test, rotated_row(**instance, part, wanted, sample, sample.chosen[r]), wanted,
            std::span(*found).subspan(r * sample.columns, sample.columns));
  worst_z = std::max(worst_z, test.worst_z());
  if (test.unbiased()) return {};
  return Status(Code::rejected,
                fmt::format("{}: stochastic rounding is biased: over {} seeds an element is off by "
                            "{:.1f} standard deviations, all by {:.1f} on average",
                            step_name(step.kind), sample.draws, test.worst_z(), test.mean_z()));
}

}  // namespace

Status check_unbiased(Backend& backend, const Problem& problem, const Plan& plan, double& worst_z) {
  const Target& target = backend.device().target;
  for (const Step& step : plan.steps)
    if (const auto part = stochastic_part(problem, target, plan, step))
      if (auto status = check_step(backend, *part, step, worst_z); !status.ok()) return status;
  return {};
}

}  // namespace quarterturn
