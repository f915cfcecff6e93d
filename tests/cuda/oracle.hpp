// Expected operands: the scalar reference under a problem's modes, and expanded rows by their
// definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <stdexcept>
#include <vector>

#include "generator/problem.hpp"
#include "reference/formats.hpp"
#include "reference/gemm.hpp"
#include "reference/quantize.hpp"
#include "templates/args.h"

namespace quarterturn::cuda_test {

using reference::Quantized;

/// The enumerations of generator and reference have one order.
inline reference::QuantizeSpec spec_of(const Problem& p, Rounding rounding, const qt_args& args) {
  reference::QuantizeSpec spec;
  spec.rule = static_cast<reference::ScaleRule>(p.scale_rule);
  spec.rounding = static_cast<reference::Rounding>(rounding);
  spec.rotation = p.rotation;
  spec.block = static_cast<reference::ScaleBlock>(p.scale_block);
  spec.signs = static_cast<reference::Signs>(p.signs);
  for (std::size_t i = 0; i < 8; ++i) spec.sign_mask[i] = args.sign_mask[i];
  spec.sign_seed = args.sign_seed;
  spec.noise = {args.noise_seed, args.stream, args.operand, 0};
  return spec;
}

/// As a kernel will read X, and the values that it then has.
inline std::vector<unsigned char> stored(DType type, std::vector<float>& x) {
  const auto size = static_cast<std::size_t>(bytes_of(type));
  std::vector<unsigned char> out(x.size() * size);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (type == DType::f32) {
      std::memcpy(&out[4 * i], &x[i], 4);
      continue;
    }
    const auto h = type == DType::bf16 ? reference::bf16_bits(x[i]) : reference::f16_bits(x[i]);
    std::memcpy(&out[2 * i], &h, 2);
    x[i] = type == DType::bf16 ? reference::bf16_value(h) : reference::f16_value(h);
  }
  return out;
}

inline float as_float(DType type, const unsigned char* at) {
  if (type == DType::f32) {
    float x;
    std::memcpy(&x, at, 4);
    return x;
  }
  std::uint16_t h;
  std::memcpy(&h, at, 2);
  return type == DType::bf16 ? reference::bf16_value(h) : reference::f16_value(h);
}

/// An operand as expanded layouts hold it, written from their definition in
/// templates/cuda/expand.h.
struct ExpandedOperand {
  std::int64_t pitch = 0;
  std::vector<std::uint8_t> data, reference;
};

inline ExpandedOperand expand(const Quantized& q, Layout layout) {
  const bool int8 = layout == Layout::int8_rows;
  ExpandedOperand out;
  out.pitch = round_up(q.k, 128);
  out.data.assign(static_cast<std::size_t>(q.rows * out.pitch), 0);
  out.reference.assign(static_cast<std::size_t>(q.rows), 127);
  for (std::int64_t i = 0; i < q.rows; ++i) {
    auto* row = out.data.data() + i * out.pitch;
    int high = -1, low = 256;
    bool nan = false;
    for (std::int64_t first = 0; first < q.k; first += 32) {
      const int byte = q.scale(i, first);
      bool any = false;
      for (std::int64_t j = first; j < first + 32; ++j) any = any || (q.code(i, j) & 7) != 0;
      nan = nan || byte == 255;
      if (any && byte != 255) high = std::max(high, byte), low = std::min(low, byte);
    }
    const int reference = int8 && nan                                                ? 255
                          : high < 0                                                 ? 127
                          : high - low >= (int8 ? 4 : 28) || high < 46 || high > 222 ? 255
                                                                                     : high;
    out.reference[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(reference);
    for (std::int64_t k = 0; k < q.k; ++k) {
      const int byte = q.scale(i, k);
      const std::uint8_t code = q.code(i, k);
      if (reference == 255) {
        row[k / 2] = static_cast<std::uint8_t>(row[k / 2] | code << (4 * (k % 2)));
        row[out.pitch / 2 + k / 32] = static_cast<std::uint8_t>(byte);
        continue;
      }
      const std::int64_t e = k % 32, t = k / 32 % 4;
      const auto at = k / 128 * 128 + 32 * (e / 8) + 16 * (e % 8 / 4) + 4 * t + e % 4;
      const double value = reference::e2m1_value(code);
      if (int8) {
        row[at] = value == 0 ? std::uint8_t(0)
                             : static_cast<std::uint8_t>(static_cast<std::int8_t>(
                                   value * 2 * (1 << (byte - reference + 3))));
      } else if (byte == 255) {
        row[at] = 0x7f;
      } else {
        // E5M2 is the upper half of f16, and these values fit it exactly.
        const double scaled = value == 0 ? value : std::ldexp(value, byte - reference + 13);
        row[at] = static_cast<std::uint8_t>(reference::f16_bits(static_cast<float>(scaled)) >> 8);
      }
    }
  }
  return out;
}

/// An operand as layout bf16 holds it: an eighth of every value; NaN is 0x7fff.
inline std::vector<std::uint16_t> bf16_rows(const Quantized& q) {
  std::vector<std::uint16_t> out;
  for (std::int64_t i = 0; i < q.rows; ++i)
    for (std::int64_t k = 0; k < q.k; ++k) {
      const double eighth = q.value(i, k) / 8;
      const auto bits = reference::bf16_bits(static_cast<float>(eighth));
      if (!std::isnan(eighth) && double(reference::bf16_value(bits)) != eighth)
        throw std::logic_error("an eighth of a value does not fit bf16");
      out.push_back(std::isnan(eighth) ? std::uint16_t(0x7fff) : bits);
    }
  return out;
}

/// Elements of a result in layout bf16 that differ.
inline std::int64_t wrong_bf16(const Quantized& q, const unsigned char* data) {
  const auto want = bf16_rows(q);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    std::uint16_t got;
    std::memcpy(&got, data + 2 * i, 2);
    if ((got & 0x7fff) > 0x7f80) got = 0x7fff;
    wrong += got != want[i];
  }
  return wrong;
}

/// Scales as layout 128x4 holds them, written from its definition in generator/layout.hpp: NaN
/// where tiles have more rows than the operand, 0 (`behind`) behind a row's last block.
inline std::vector<std::uint8_t> tiles_128x4(const Quantized& q, std::uint8_t behind = 0) {
  const auto blocks = q.k / 32, tiles = ceil_div(blocks, 4);
  std::vector<std::uint8_t> out(static_cast<std::size_t>(ceil_div(q.rows, 128) * tiles * 512), 255);
  for (std::int64_t i = 0; i < q.rows; ++i)
    for (std::int64_t b = 0; b < tiles * 4; ++b)
      out[static_cast<std::size_t>(i / 128 * tiles * 512 + b / 4 * 512 + i % 32 * 16 +
                                   i % 128 / 32 * 4 + b % 4)] =
          b < blocks ? q.scales[static_cast<std::size_t>(i * blocks + b)] : behind;
  return out;
}

/// Weights as layout permuted holds them, written from its definition in
/// templates/cuda/permuted.h.
struct PermutedOperand {
  std::vector<std::uint8_t> codes, scales;  ///< the scales, then references for E5M2, then for int8
  std::int64_t references_at = 0, int8_references_at = 0;
};

inline PermutedOperand permute(const Quantized& q) {
  const std::int64_t stripes = ceil_div(q.rows, 64), chunks = ceil_div(q.k, 128);
  PermutedOperand out;
  out.references_at = stripes * chunks * 256;
  out.codes.assign(static_cast<std::size_t>(stripes * chunks * 4096), 0);
  out.int8_references_at = out.references_at + stripes * 64;
  out.scales.assign(static_cast<std::size_t>(out.int8_references_at + stripes * 64), 0);
  for (std::int64_t i = 0; i < stripes * 64; ++i) {
    int high = -1, low = 256;
    bool nan = false;
    for (std::int64_t b = 0; i < q.rows && b < q.k / 32; ++b) {
      const auto chunk = i / 64 * chunks + b / 4;
      const auto thread = i % 64 / 16 * 32 + i % 8 * 4 + b % 4, lower = i % 16 / 8;
      const int byte = q.scale(i, b * 32);
      out.scales[static_cast<std::size_t>(chunk * 256 + thread * 2 + lower)] =
          static_cast<std::uint8_t>(byte);
      bool any = false;
      for (std::int64_t e = 0; e < 32; ++e) {
        const std::uint32_t code = q.code(i, b * 32 + e);
        any = any || (code & 7) != 0;
        const auto s = e / 8, in_word = e % 8;
        const auto word = chunk * 4096 + s / 2 * 2048 + thread * 16 + s % 2 * 8 + lower * 4;
        const auto put = [&](std::int64_t bit, std::uint32_t value) {
          auto& at = out.codes[static_cast<std::size_t>(word + bit / 8)];
          at = static_cast<std::uint8_t>(at | value << (bit % 8));
        };
        put(4 * in_word, code & 7);
        put(in_word < 4 ? 8 * in_word + 7 : 8 * (in_word - 4) + 3, code >> 3);
      }
      nan = nan || byte == 255;
      if (any && byte != 255) high = std::max(high, byte), low = std::min(low, byte);
    }
    const auto reference = [&](int binades) {
      const bool fits = high - low < binades && high >= 46 && high <= 222;
      return static_cast<std::uint8_t>(nan ? 255 : high < 0 ? 127 : fits ? high : 255);
    };
    out.scales[static_cast<std::size_t>(out.references_at + i)] = reference(27);
    out.scales[static_cast<std::size_t>(out.int8_references_at + i)] = reference(4);
  }
  return out;
}

/// The reference of each row, or none where a layout has none. `element`: the expanded layout of a
/// permuted operand's partner.
inline std::vector<std::uint8_t> references_of(const Quantized& q, Layout layout, Layout element) {
  if (layout == Layout::e5m2 || layout == Layout::int8_rows) return expand(q, layout).reference;
  if (layout != Layout::permuted || (element != Layout::e5m2 && element != Layout::int8_rows))
    return {};
  const auto all = permute(q);
  const auto first = all.scales.begin() +
                     (element == Layout::int8_rows ? all.int8_references_at : all.references_at);
  return {first, first + q.rows};
}

enum class Data { forward, common_sign, wide };

/// Codes and scales as quantisers make them, scales within a few binades of a row's largest. Some
/// blocks hold zeros alone, under any scale.
inline Quantized random_operand(std::int64_t rows, std::int64_t k, Data data, std::uint32_t seed) {
  std::mt19937 random(seed);
  Quantized out;
  out.rows = rows;
  out.k = round_up(k, 32);
  out.codes.assign(static_cast<std::size_t>(rows * out.k / 2), 0);
  out.scales.assign(static_cast<std::size_t>(rows * out.k / 32), 0);
  for (std::int64_t i = 0; i < rows; ++i) {
    const int high = 110 + static_cast<int>(random() % 20);
    for (std::int64_t b = 0; b < out.k / 32; ++b) {
      const unsigned spread = data == Data::wide ? 20 : data == Data::common_sign ? 1 : 4;
      auto& scale = out.scales[static_cast<std::size_t>(i * (out.k / 32) + b)];
      if (random() % 16 == 0) {
        scale = static_cast<std::uint8_t>(random() % 2 == 0 ? 0 : random() % 255);
        continue;
      }
      scale = static_cast<std::uint8_t>(high - static_cast<int>(random() % spread));
      for (std::int64_t j = b * 32; j < std::min(k, b * 32 + 32); ++j) {
        auto& pair = out.codes[static_cast<std::size_t>((i * out.k + j) / 2)];
        const auto code = random() % (data == Data::common_sign ? 8 : 16);
        pair = static_cast<std::uint8_t>(pair | code << (4 * (j % 2)));
      }
    }
  }
  return out;
}

}  // namespace quarterturn::cuda_test
