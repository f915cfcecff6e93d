// The quantiser's expected bits, by the defining text on the host, element by element in plain
// loops.
#pragma once

#include <cstdint>
#include <vector>

#include "generator/problem.hpp"
#include "mxfp4/block.h"
#include "mxfp4/noise.h"
#include "mxfp4/signs.h"
#include "mxfp4/types.h"
#include "templates/args.h"

namespace quarterturn::cuda_test {

/// Codes one to a byte, [rows, k] with k padded, and scale bytes [rows, k / 32].
struct Codes {
  std::int64_t rows = 0, k = 0;
  std::vector<std::uint8_t> code, scale;

  double value(std::int64_t row, std::int64_t at) const {
    const auto byte = scale[static_cast<std::size_t>(row * (k / 32) + at / 32)];
    const double unit = byte == 255 ? __builtin_nan("") : __builtin_ldexp(1.0, int(byte) - 127);
    return double(qt::e2m1_value(code[static_cast<std::size_t>(row * k + at)])) * unit;
  }
};

template <qt::ScaleRule rule, qt::Rounding rounding>
std::uint32_t quantize_one(const float (&x)[32], const qt::Noise& noise, std::uint64_t position,
                           std::uint32_t (&packed)[4]) {
  return qt::quantize_block<rule, rounding>(x, noise, position, packed);
}

template <qt::ScaleRule rule>
std::uint32_t quantize_one(Rounding rounding, const float (&x)[32], const qt::Noise& noise,
                           std::uint64_t position, std::uint32_t (&packed)[4]) {
  switch (rounding) {
    case Rounding::rne:
      return quantize_one<rule, qt::Rounding::rne>(x, noise, position, packed);
    case Rounding::sr16:
      return quantize_one<rule, qt::Rounding::sr16>(x, noise, position, packed);
    case Rounding::sr22:
      return quantize_one<rule, qt::Rounding::sr22>(x, noise, position, packed);
    case Rounding::sr8:
      return quantize_one<rule, qt::Rounding::sr8>(x, noise, position, packed);
    case Rounding::half_away:
      return quantize_one<rule, qt::Rounding::half_away>(x, noise, position, packed);
    case Rounding::half_to_zero:
      return quantize_one<rule, qt::Rounding::half_to_zero>(x, noise, position, packed);
  }
  return 0;
}

inline std::uint32_t quantize_one(ScaleRule rule, Rounding rounding, const float (&x)[32],
                                  const qt::Noise& noise, std::uint64_t position,
                                  std::uint32_t (&packed)[4]) {
  switch (rule) {
#define QTURN_CASE(name) \
  case ScaleRule::name:  \
    return quantize_one<qt::ScaleRule::name>(rounding, x, noise, position, packed);
    QTURN_CASE(floor)
    QTURN_CASE(even)
    QTURN_CASE(rceil)
    QTURN_CASE(ceil)
    QTURN_CASE(ts34)
    QTURN_CASE(quest)
    QTURN_CASE(quest_qutlass)
    QTURN_CASE(search)
#undef QTURN_CASE
  }
  return 0;
}

/// Rotates one segment of g, by the contract's words: stages of (a + b, a - b), then one product.
inline void rotate_segment(float* x, std::int64_t g, const qt::SignMask& mask, bool signs) {
  if (g < 2) return;
  for (std::int64_t j = 0; j < g && signs; ++j)
    x[j] = qt::flip_sign(x[j], mask, static_cast<std::uint32_t>(j));
  for (std::int64_t h = 1; h < g; h *= 2)
    for (std::int64_t base = 0; base < g; base += 2 * h)
      for (std::int64_t j = base; j < base + h; ++j) {
        const float a = x[j], b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
  const float norm = qt::hadamard_norm(static_cast<int>(g));
  for (std::int64_t j = 0; j < g; ++j) x[j] = x[j] * norm;
}

/// One copy of X, given as rows of that copy ([rows, k] in binary32; for columns, X transposed).
/// `row0`, `k0`, `k_global`: this copy's place, 0 for all of it.
inline Codes quantize_oracle(const Problem& p, const std::vector<float>& x, std::int64_t rows,
                             std::int64_t k, const qt_args& args, std::uint32_t transposed,
                             std::int64_t row0, std::int64_t k0, std::int64_t k_global) {
  Codes out;
  out.rows = rows;
  out.k = round_up(k, padding_unit(p));
  out.code.resize(static_cast<std::size_t>(rows * out.k));
  out.scale.resize(static_cast<std::size_t>(rows * out.k / 32));
  qt::SignMask mask{};
  for (int i = 0; i < 8; ++i) mask.word[i] = args.sign_mask[i];
  if (p.signs == Signs::per_call) mask = qt::sign_mask_from_seed(args.sign_seed);
  const qt::Noise noise = {args.noise_seed, args.stream, qt::noise_lane(args.operand, transposed)};
  std::vector<float> row(static_cast<std::size_t>(out.k));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < out.k; ++j)
      row[static_cast<std::size_t>(j)] = j < k ? x[static_cast<std::size_t>(i * k + j)] : 0.0f;
    for (std::int64_t j = 0; p.rotation > 1 && j < out.k; j += p.rotation)
      rotate_segment(row.data() + j, p.rotation, mask, p.signs != Signs::none);
    for (std::int64_t b = 0; b < out.k / 32; ++b) {
      float block[32];
      std::uint32_t packed[4];
      for (int j = 0; j < 32; ++j) block[j] = row[static_cast<std::size_t>(b * 32 + j)];
      const auto byte = quantize_one(
          p.scale_rule, p.a_rounding, block, noise,
          qt::noise_position(i, b * 32, row0, k0, k_global > 0 ? k_global : k), packed);
      out.scale[static_cast<std::size_t>(i * (out.k / 32) + b)] = static_cast<std::uint8_t>(byte);
      for (int j = 0; j < 32; ++j)
        out.code[static_cast<std::size_t>(i * out.k + b * 32 + j)] =
            static_cast<std::uint8_t>(packed[j / 8] >> (4 * (j % 8)) & 15);
    }
  }
  return out;
}

/// An operand as expanded layouts hold it, written from their definition in
/// templates/cuda/expand.h.
struct ExpandedRows {
  std::int64_t pitch = 0;
  std::vector<std::uint8_t> data, reference;
};

inline ExpandedRows expand_oracle(const Codes& codes, bool int8) {
  ExpandedRows out;
  out.pitch = round_up(codes.k, 128);
  out.data.assign(static_cast<std::size_t>(codes.rows * out.pitch), 0);
  out.reference.assign(static_cast<std::size_t>(codes.rows), 127);
  for (std::int64_t i = 0; i < codes.rows; ++i) {
    auto* row = out.data.data() + i * out.pitch;
    int high = -1, low = 256;
    bool nan = false;
    for (std::int64_t b = 0; b < codes.k / 32; ++b) {
      const int byte = codes.scale[static_cast<std::size_t>(i * (codes.k / 32) + b)];
      bool any = false;
      for (int j = 0; j < 32; ++j)
        any = any || (codes.code[static_cast<std::size_t>(i * codes.k + b * 32 + j)] & 7) != 0;
      nan = nan || byte == 255;
      if (any && byte != 255) high = std::max(high, byte), low = std::min(low, byte);
    }
    const int reference = int8 && nan                                                ? 255
                          : high < 0                                                 ? 127
                          : high - low >= (int8 ? 4 : 28) || high < 46 || high > 222 ? 255
                                                                                     : high;
    out.reference[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(reference);
    for (std::int64_t k = 0; k < codes.k; ++k) {
      const int byte = codes.scale[static_cast<std::size_t>(i * (codes.k / 32) + k / 32)];
      const std::uint8_t code = codes.code[static_cast<std::size_t>(i * codes.k + k)];
      if (reference == 255) {
        row[k / 2] = static_cast<std::uint8_t>(row[k / 2] | code << (4 * (k % 2)));
        row[out.pitch / 2 + k / 32] = static_cast<std::uint8_t>(byte);
        continue;
      }
      const std::int64_t e = k % 32, t = k / 32 % 4;
      const auto at = k / 128 * 128 + 32 * (e / 8) + 16 * (e % 8 / 4) + 4 * t + e % 4;
      const double value = double(qt::e2m1_value(code));
      if (int8) {
        row[at] = value == 0 ? std::uint8_t(0)
                             : static_cast<std::uint8_t>(static_cast<std::int8_t>(
                                   value * 2 * (1 << (byte - reference + 3))));
      } else if (byte == 255) {
        row[at] = 0x7f;
      } else {
        // E5M2 is the upper half of f16, and these values fit it exactly.
        const float f =
            value == 0 ? float(value) : float(__builtin_ldexp(value, byte - reference + 13));
        row[at] = static_cast<std::uint8_t>(qt::f16_from_f32(f) >> 8);
      }
    }
  }
  return out;
}

}  // namespace quarterturn::cuda_test
