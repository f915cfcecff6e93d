#include "reference/quantize.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "reference/formats.hpp"

namespace quarterturn::reference {
namespace {

// Every float operation below is one rounding only where float is not evaluated in a wider type;
// the build turns contraction off.
static_assert(FLT_EVAL_METHOD == 0);

constexpr std::int64_t kBlock = 32;

double largest_magnitude(std::span<const float> values) {
  double most = 0;
  for (const float v : values) {
    if (!std::isfinite(v)) return std::numeric_limits<double>::infinity();
    most = std::max(most, std::fabs(static_cast<double>(v)));
  }
  return most;
}

// floor(log2(x)) of a positive number, exact.
int floor_log2(double x) {
  int exponent = 0;
  std::frexp(x, &exponent);
  return exponent - 1;
}

int ceil_log2(double x) {
  const int floor = floor_log2(x);
  return std::ldexp(1.0, floor) == x ? floor : floor + 1;
}

int rceil_exponent(double amax) {
  // The least s with amax <= 6 * 2^s, found by trying: no division is rounded.
  int s = floor_log2(amax) - 3;
  while (amax > std::ldexp(6.0, s)) ++s;
  return s;
}

// Adjacent pairs, then pairs of pairs: 32 floats to their sum, each addition rounded to float.
float tree_sum(std::array<float, kBlock> values) {
  for (std::size_t count = kBlock / 2; count > 0; count /= 2)
    for (std::size_t i = 0; i < count; ++i) values[i] = values[2 * i] + values[2 * i + 1];
  return values[0];
}

std::uint8_t quest_byte(std::span<const float> block, bool epsilon) {
  std::array<float, kBlock> values{}, squares{};
  std::copy(block.begin(), block.end(), values.begin());
  constexpr float inverse = 1.0f / 32.0f;
  const float mean = tree_sum(values) * inverse;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float difference = values[i] - mean;
    squares[i] = difference * difference;
  }
  const float deviation = std::sqrt(tree_sum(squares) * inverse);
  float t = deviation * static_cast<float>(2.92247856 / 6.0);
  if (epsilon) t += 1e-8f;
  if (t == 0) return 0;
  // Sums of finite values may overflow, to Inf or to the NaN of Inf - Inf.
  if (!std::isfinite(t)) return 254;
  return e8m0_byte(floor_log2(t));
}

std::uint8_t search_byte(std::span<const float> block, double amax) {
  const int base = e8m0_byte(rceil_exponent(amax)) - 127;
  std::uint8_t best = 0;
  float least = std::numeric_limits<float>::infinity();
  for (int candidate = base - 1; candidate <= base + 1; ++candidate) {
    if (candidate + 127 < 0 || candidate + 127 > 254) continue;
    // Both sides of the difference are in units of the rceil scale.
    const double to_grid = std::ldexp(1.0, -candidate), to_base = std::ldexp(1.0, -base);
    const double step = std::ldexp(1.0, candidate - base);
    std::array<float, kBlock> squares{};
    for (std::size_t i = 0; i < squares.size(); ++i) {
      const auto value = static_cast<double>(block[i]);
      const auto q =
          static_cast<float>(e2m1_value(encode(value * to_grid, Rounding::rne, 0)) * step);
      const float error = q - static_cast<float>(value * to_base);
      squares[i] = error * error;
    }
    const float sum = tree_sum(squares);
    if (sum <= least) {
      least = sum;
      best = static_cast<std::uint8_t>(candidate + 127);
    }
  }
  return best;
}

bool flipped(const QuantizeSpec& spec, std::uint32_t j) {
  if (spec.signs == Signs::none) return false;
  if (spec.signs == Signs::fixed) return (spec.sign_mask[j / 32] >> (j % 32)) % 2 == 1;
  const Words words = philox4x32({j / 128, 0, 0x7369676e, 0},
                                 {static_cast<std::uint32_t>(spec.sign_seed),
                                  static_cast<std::uint32_t>(spec.sign_seed >> 32)},
                                 7);
  return (words[j / 32 % 4] >> (j % 32)) % 2 == 1;
}

// Encodes 32 rotated values under a byte; `at` is the position of the first of them.
void encode_block(std::span<const float> block, std::uint8_t byte, const QuantizeSpec& spec,
                  std::uint64_t at, std::uint8_t* codes) {
  const double inverse = std::ldexp(1.0, 127 - byte);  // no product below leaves double's range
  for (std::size_t i = 0; i < block.size(); ++i) {
    float value = block[i];
    if (spec.rule == ScaleRule::ts34) value *= 0.75f;
    const std::uint8_t code = encode(static_cast<double>(value) * inverse, spec.rounding,
                                     draw(spec.rounding, spec.noise, at + i));
    codes[i / 2] = static_cast<std::uint8_t>(codes[i / 2] | code << (i % 2 * 4));
  }
}

}  // namespace

std::uint8_t Quantized::code(std::int64_t row, std::int64_t column) const {
  const auto byte = codes[static_cast<std::size_t>(row * (k / 2) + column / 2)];
  return static_cast<std::uint8_t>(column % 2 == 0 ? byte % 16 : byte / 16);
}

std::uint8_t Quantized::scale(std::int64_t row, std::int64_t column) const {
  return scales[static_cast<std::size_t>(row * (k / kBlock) + column / kBlock)];
}

double Quantized::value(std::int64_t row, std::int64_t column) const {
  return e2m1_value(code(row, column)) * e8m0_value(scale(row, column));
}

std::vector<double> dequantize(const Quantized& q) {
  std::vector<double> out;
  out.reserve(static_cast<std::size_t>(q.rows * q.k));
  for (std::int64_t i = 0; i < q.rows; ++i)
    for (std::int64_t j = 0; j < q.k; ++j) out.push_back(q.value(i, j));
  return out;
}

std::string_view refusal(const QuantizeSpec& spec) {
  constexpr int rotations[] = {0, 16, 32, 64, 128, 256};
  if (std::find(std::begin(rotations), std::end(rotations), spec.rotation) == std::end(rotations))
    return "a rotation is 0, 16, 32, 64, 128 or 256";
  if (spec.block == ScaleBlock::b1x32) return "";
  if (spec.rotation != 0) return "32x32 scales need an unrotated operand: its transpose must agree";
  if (spec.rule == ScaleRule::ts34 || spec.rule == ScaleRule::quest ||
      spec.rule == ScaleRule::quest_qutlass || spec.rule == ScaleRule::search)
    return "32x32 scales are by floor, even, rceil or ceil";
  return "";
}

bool clips(ScaleRule rule) {
  return rule != ScaleRule::rceil && rule != ScaleRule::ceil && rule != ScaleRule::ts34;
}

std::int64_t padded_length(std::int64_t k, int rotation) {
  const std::int64_t unit = std::max<std::int64_t>(kBlock, rotation);
  return (k + unit - 1) / unit * unit;
}

void rotate_segment(std::span<float> segment, const QuantizeSpec& spec) {
  const auto g = segment.size();
  for (std::size_t j = 0; j < g; ++j)
    if (flipped(spec, static_cast<std::uint32_t>(j))) segment[j] = -segment[j];
  for (std::size_t h = 1; h < g; h *= 2)
    for (std::size_t start = 0; start < g; start += 2 * h)
      for (std::size_t i = start; i < start + h; ++i) {
        const float a = segment[i], b = segment[i + h];
        segment[i] = a + b;
        segment[i + h] = a - b;
      }
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(g)));
  for (float& value : segment) value *= scale;
}

void rotate_row(std::span<float> row, const QuantizeSpec& spec) {
  if (spec.rotation == 0) return;
  const auto g = static_cast<std::size_t>(spec.rotation);
  for (std::size_t start = 0; start + g <= row.size(); start += g)
    rotate_segment(row.subspan(start, g), spec);
}

std::uint8_t scale_byte(std::span<const float> block, ScaleRule rule) {
  const double amax = largest_magnitude(block);
  switch (rule) {
    case ScaleRule::floor:
    case ScaleRule::ts34:
      return e8m0_byte(floor_log2(amax) - 2);
    case ScaleRule::even: {
      // Subnormal magnitudes have byte 0 whichever way they round.
      const int e = floor_log2(amax);
      return e8m0_byte((amax >= std::ldexp(1.75, e) ? e + 1 : e) - 2);
    }
    case ScaleRule::rceil:
      return e8m0_byte(rceil_exponent(amax));
    case ScaleRule::ceil:
      return e8m0_byte(ceil_log2(amax) - 2);
    case ScaleRule::quest:
      return quest_byte(block, false);
    case ScaleRule::quest_qutlass:
      return quest_byte(block, true);
    case ScaleRule::search:
      return search_byte(block, amax);
  }
  return 0;
}

std::uint8_t encode(double scaled, Rounding rounding, std::uint32_t draw) {
  const std::uint8_t sign = std::signbit(scaled) ? 8 : 0;
  const double a = std::fabs(scaled);
  if (!(a < 6)) return static_cast<std::uint8_t>(sign | 7);
  std::uint8_t low = 0;
  while (low < 6 && kMagnitudes[low + 1] <= a) ++low;
  const double below = kMagnitudes[low], above = kMagnitudes[low + 1];
  const double fraction = (a - below) / (above - below);  // exact: the step is a power of two
  bool up = false;
  switch (rounding) {
    case Rounding::rne:
      up = fraction > 0.5 || (fraction == 0.5 && low % 2 == 1);
      break;
    case Rounding::half_away:
      up = fraction >= 0.5;
      break;
    case Rounding::half_to_zero:
      up = fraction > 0.5;
      break;
    case Rounding::sr16:
    case Rounding::sr22:
    case Rounding::sr8:
    case Rounding::sr_cvt_rs:
    case Rounding::sr_cvt_scalef32:
      up = std::floor(std::ldexp(fraction, 22)) + draw >= std::ldexp(1.0, 22);
      break;
  }
  return static_cast<std::uint8_t>(sign | (up ? low + 1 : low));
}

Quantized quantize(const float* x, std::int64_t rows, std::int64_t k, std::int64_t ld,
                   const QuantizeSpec& spec) {
  Quantized out;
  if (!refusal(spec).empty()) return out;
  out.rows = rows;
  out.k = padded_length(k, spec.rotation);
  out.codes.assign(static_cast<std::size_t>(rows * out.k / 2), 0);
  out.scales.assign(static_cast<std::size_t>(rows * out.k / kBlock), 0);
  const std::int64_t k32 = padded_length(spec.k_global > 0 ? spec.k_global : k, 0);
  const std::int64_t blocks = out.k / kBlock;
  std::vector<float> rotated(static_cast<std::size_t>(rows * out.k), 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::span<float> row(rotated.data() + i * out.k, static_cast<std::size_t>(out.k));
    std::copy(x + i * ld, x + i * ld + k, row.begin());
    rotate_row(row, spec);
  }
  const auto block_at = [&](std::int64_t row, std::int64_t block) {
    return std::span<const float>(rotated.data() + row * out.k + block * kBlock, kBlock);
  };
  const std::int64_t tile_rows = spec.block == ScaleBlock::b32x32 ? kBlock : 1;
  for (std::int64_t first = 0; first < rows; first += tile_rows)
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t last = std::min(first + tile_rows, rows);
      std::array<float, kBlock>
          most{};  // stands for the tile: its largest magnitude in each column
      for (std::int64_t row = first; row < last; ++row)
        for (std::size_t i = 0; i < most.size(); ++i) {
          const float v = block_at(row, block)[i];
          if (tile_rows == 1)
            most[i] = v;
          else if (!std::isfinite(v) || !std::isfinite(most[i]))
            most[i] = std::numeric_limits<float>::infinity();
          else
            most[i] = std::max(most[i], std::fabs(v));
        }
      const double amax = largest_magnitude(most);
      const bool broken = !std::isfinite(amax);
      const std::uint8_t byte = broken      ? std::uint8_t{255}
                                : amax == 0 ? std::uint8_t{0}
                                            : scale_byte(most, spec.rule);
      for (std::int64_t row = first; row < last; ++row) {
        out.scales[static_cast<std::size_t>(row * blocks + block)] = byte;
        if (broken || amax == 0) continue;
        const auto at =
            static_cast<std::uint64_t>((spec.row0 + row) * k32 + spec.k0 + block * kBlock);
        encode_block(block_at(row, block), byte, spec, at,
                     out.codes.data() + row * out.k / 2 + block * kBlock / 2);
      }
    }
  return out;
}

Quantized quantize_columns(const float* x, std::int64_t t, std::int64_t c, std::int64_t ld,
                           QuantizeSpec spec) {
  std::vector<float> transposed(static_cast<std::size_t>(t * c));
  for (std::int64_t i = 0; i < t; ++i)
    for (std::int64_t j = 0; j < c; ++j)
      transposed[static_cast<std::size_t>(j * t + i)] = x[i * ld + j];
  spec.noise.transposed = 1;
  return quantize(transposed.data(), c, t, t, spec);
}

}  // namespace quarterturn::reference
