// Cases for quantising kernels: X in memory as kernels get it, the copies as the scalar reference
// has them, and their comparison, poison around everything.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "generator/problem.hpp"
#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "tests/kernels/operands.hpp"

namespace quarterturn::kernels {

/// One call: the modes, the sizes, and where it lies.
struct Case {
  Problem problem;  // extents are not looked at here
  std::int64_t m = 0, k = 0, batch = 1;
  std::int64_t ld = 0;     // of X, at least k
  std::int64_t spare = 0;  // plain results: elements between a row's end and the next, times 32
  std::int64_t row0 = 0, k0 = 0, k_global = 0;
  std::uint32_t data = 0;  // seed
};

inline std::string describe(const Case& c) {
  auto p = c.problem;
  p.m = Extent::exactly(c.m);
  p.k = Extent::exactly(c.k);
  return p.key() + " ld=" + std::to_string(c.ld) + " row0=" + std::to_string(c.row0) +
         " k0=" + std::to_string(c.k0) + " k_global=" + std::to_string(c.k_global) +
         " data=" + std::to_string(c.data);
}

inline std::int64_t element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

inline float read_element(const unsigned char* at, DType type) {
  std::uint16_t half = 0;
  if (type != DType::f32) std::memcpy(&half, at, 2);
  if (type == DType::bf16) return reference::bf16_value(half);
  if (type == DType::f16) return reference::f16_value(half);
  float value = 0;
  std::memcpy(&value, at, 4);
  return value;
}

inline void write_element(unsigned char* at, DType type, float value) {
  if (type == DType::f32) {
    std::memcpy(at, &value, 4);
    return;
  }
  const std::uint16_t half =
      type == DType::bf16 ? reference::bf16_bits(value) : reference::f16_bits(value);
  std::memcpy(at, &half, 2);
}

/// Kinds of data go by stretches of 32 along rows, so that blocks of all kinds meet in one call.
inline float made_up(std::mt19937& random, std::uint32_t kind) {
  const auto unit = [&random] { return static_cast<float>(random()) * 0x1p-31f - 1.0f; };
  const auto any_exponent = [&](int low, int high) {
    return std::ldexp(unit(), low + static_cast<int>(random() % (high - low + 1)));
  };
  switch (kind % 16) {
    case 0:
      return 0.0f;
    case 1:
      return random() % 2 ? -0.0f : 0.0f;
    case 2:
      return random() % 32 == 0 ? std::numeric_limits<float>::infinity() : unit();
    case 3:
      return random() % 32 == 0 ? std::numeric_limits<float>::quiet_NaN() : unit();
    case 4:
      return any_exponent(-149, -120);
    case 5:
      return any_exponent(100, 127);
    case 6:
      return any_exponent(-149, 127);
    case 7:
      return any_exponent(-30, 15);  // f16's range and below
    case 8:                          // ties and grid points under a power of two
      return static_cast<float>(static_cast<int>(random() % 49) - 24) * 0.25f;
    case 9:
      return random() % 8 ? -0.0f : unit();
    case 10:
      return std::ldexp(unit(), static_cast<int>(random() % 2) * -95);
    default:
      return unit() + unit() + unit();
  }
}

/// X in memory as a kernel gets it: rows `ld` apart, everything around them 0xff (NaN in any type),
/// starting at an odd multiple of the element size.
struct Matrix {
  DType type;
  std::int64_t k, ld, batch_stride;
  Memory memory;
  std::int64_t offset;

  explicit Matrix(const Case& c)
      : type(c.problem.a_type),
        k(c.k),
        ld(c.ld),
        batch_stride(c.m * c.ld + 5),
        memory((c.batch * batch_stride + 8) * element_bytes(type)),
        offset(element_bytes(type)) {
    std::mt19937 random(c.data);
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t i = 0; i < c.m; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          write_element(
              at(b, i, j), type,
              made_up(random, static_cast<std::uint32_t>(j / 32 * 7 + i / 32 * 3 + c.data)));
  }
  unsigned char* at(std::int64_t b, std::int64_t i, std::int64_t j) {
    return memory.data() + offset + (b * batch_stride + i * ld + j) * element_bytes(type);
  }
  /// Rows of entry b as the reference reads them, tightly packed.
  std::vector<float> values(std::int64_t b, std::int64_t m) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < k; ++j) out.push_back(read_element(at(b, i, j), type));
    return out;
  }
};

inline reference::QuantizeSpec spec_of(const Case& c, const qt_args& args) {
  reference::QuantizeSpec spec;
  spec.rule = static_cast<reference::ScaleRule>(c.problem.scale_rule);
  spec.rounding = static_cast<reference::Rounding>(c.problem.a_rounding);
  spec.rotation = c.problem.rotation;
  spec.signs = static_cast<reference::Signs>(c.problem.signs);
  std::copy(std::begin(args.sign_mask), std::end(args.sign_mask), spec.sign_mask.begin());
  spec.sign_seed = args.sign_seed;
  spec.block = static_cast<reference::ScaleBlock>(c.problem.scale_block);
  spec.noise = {args.noise_seed, args.stream, args.operand, 0};
  spec.row0 = args.row0;
  spec.k0 = args.k0;
  spec.k_global = args.k_global;
  return spec;
}

/// A copy's memory, poisoned, and what it should hold: poison again where nothing belongs.
struct Written {
  Memory codes, scales, wanted_codes, wanted_scales;
  qt_tensor tensor{};

  Written(Layout layout, std::int64_t rows, std::int64_t padded, std::int64_t spare,
          std::int64_t batch) {
    const auto blocks = padded / 32;
    if (layout == Layout::plain) {
      tensor.ld = padded + 32 * spare;
      tensor.scale_ld = blocks + spare;
      tensor.batch_stride = rows * tensor.ld;
      tensor.scale_batch_stride = rows * tensor.scale_ld;
    } else {
      const auto stored = layout == Layout::panel16 ? (rows + 15) / 16 * 16 : rows;
      tensor.batch_stride = stored * padded;
      tensor.scale_batch_stride = stored * blocks;
    }
    const auto code_bytes = batch * tensor.batch_stride / (layout == Layout::int8_blocks ? 1 : 2);
    const auto scale_bytes =
        batch * tensor.scale_batch_stride * (layout == Layout::int8_blocks ? 8 : 1);
    codes = Memory(code_bytes);
    scales = Memory(scale_bytes);
    wanted_codes = Memory(code_bytes);
    wanted_scales = Memory(scale_bytes);
    tensor.data = codes.data();
    tensor.scales = scales.data();
  }

  void want(Layout layout, std::int64_t b, const reference::Quantized& q) {
    const auto blocks = q.k / 32;
    const Operand operand(q);
    const auto put = [](Memory& to, std::int64_t at, Memory& from) {
      std::memcpy(to.data() + at, from.data(), static_cast<std::size_t>(from.bytes()));
    };
    if (layout == Layout::int8_blocks) {
      auto packed = int8_blocks(operand);
      put(wanted_codes, b * tensor.batch_stride, packed.codes);
      put(wanted_scales, b * tensor.scale_batch_stride * 8, packed.scales);
    } else if (layout == Layout::panel16) {
      auto packed = panel16(operand);
      put(wanted_codes, b * tensor.batch_stride / 2, packed.codes);
      put(wanted_scales, b * tensor.scale_batch_stride, packed.scales);
    } else {
      for (std::int64_t r = 0; r < q.rows; ++r) {
        auto* row = wanted_codes.data() + (b * tensor.batch_stride + r * tensor.ld) / 2;
        for (std::int64_t i = 0; i < q.k / 2; ++i)
          row[i] = q.codes[static_cast<std::size_t>(r * q.k / 2 + i)];
        for (std::int64_t i = 0; i < blocks; ++i)
          wanted_scales.data()[b * tensor.scale_batch_stride + r * tensor.scale_ld + i] =
              q.scales[static_cast<std::size_t>(r * blocks + i)];
      }
    }
  }

  void check(const std::string& what) {
    const auto same = [](Memory& got, Memory& wanted) {
      return std::memcmp(got.data(), wanted.data(), static_cast<std::size_t>(got.bytes())) == 0;
    };
    CHECK_MESSAGE(same(codes, wanted_codes), "codes: " << what);
    CHECK_MESSAGE(same(scales, wanted_scales), "scales: " << what);
    CHECK_MESSAGE((codes.guards_intact() && scales.guards_intact()), "guards: " << what);
  }
};

/// Runs one case by `run(args)` and compares everything in reach with the reference.
template <class Run>
void check_matrix(Matrix x, const Case& c, const Run& run) {
  const auto& p = c.problem;
  qt_args args{};
  args.m = c.m;
  args.k = c.k;
  args.batch = c.batch;
  args.a = {x.at(0, 0, 0), nullptr, c.ld, 0, x.batch_stride, 0};
  args.noise_seed = 0x0123456789abcdefull + c.data;
  args.sign_seed = 0xfedcba9876543210ull ^ c.data;
  for (std::uint32_t i = 0; i < 8; ++i) args.sign_mask[i] = 0x9e3779b9u * (i + 1) ^ c.data;
  args.stream = 77 + c.data;
  args.operand = c.data % 2;
  args.row0 = c.row0;
  args.k0 = c.k0;
  args.k_global = c.k_global;

  const auto padded = [&p](std::int64_t k) { return reference::padded_length(k, p.rotation); };
  const bool by_rows = p.copies != Copies::columns, by_columns = p.copies != Copies::rows;
  Written rows(p.d_layout, c.m, padded(c.k), c.spare, c.batch);
  Written columns(p.d_layout, c.k, padded(c.m), c.spare, c.batch);
  auto& only = by_rows ? rows : columns;
  args.d = only.tensor;
  if (by_rows && by_columns) args.d2 = columns.tensor;
  for (std::int64_t b = 0; b < c.batch; ++b) {
    const auto values = x.values(b, c.m);
    auto spec = spec_of(c, args);
    if (by_rows) rows.want(p.d_layout, b, reference::quantize(values.data(), c.m, c.k, c.k, spec));
    // Beside the other copy, the column-wise one lies where its transpose does.
    if (by_rows) std::swap(spec.row0, spec.k0), spec.k_global = 0;
    if (by_columns)
      columns.want(p.d_layout, b, reference::quantize_columns(values.data(), c.m, c.k, c.k, spec));
  }
  run(args);
  if (by_rows) rows.check("rows of " + describe(c));
  if (by_columns) columns.check("columns of " + describe(c));
}

template <class Run>
void check_case(const Case& c, const Run& run) {
  check_matrix(Matrix(c), c, run);
}

}  // namespace quarterturn::kernels
