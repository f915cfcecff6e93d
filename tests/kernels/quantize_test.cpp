// cpu_quantize executed: bit for bit what the scalar reference says, in every mode and layout, on
// every instruction set of this machine.
#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <random>

#include "generator/cpu/families.hpp"
#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "tests/kernels/any_mode.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/operands.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

const Family& family() { return cpu::quantize(); }

/// One call: the modes, the sizes, and where it lies.
struct Case {
  Problem problem;  // extents are not looked at here
  std::int64_t m = 0, k = 0, batch = 1;
  std::int64_t ld = 0;     // of X, at least k
  std::int64_t spare = 0;  // plain results: elements between a row's end and the next, times 32
  std::int64_t row0 = 0, k0 = 0, k_global = 0;
  std::uint32_t data = 0;  // seed
};

std::string describe(const Case& c) {
  auto p = c.problem;
  p.m = Extent::exactly(c.m);
  p.k = Extent::exactly(c.k);
  return p.key() + " ld=" + std::to_string(c.ld) + " row0=" + std::to_string(c.row0) +
         " k0=" + std::to_string(c.k0) + " k_global=" + std::to_string(c.k_global) +
         " data=" + std::to_string(c.data);
}

std::int64_t element_bytes(DType type) { return type == DType::f32 ? 4 : 2; }

float read_element(const unsigned char* at, DType type) {
  std::uint16_t half = 0;
  if (type != DType::f32) std::memcpy(&half, at, 2);
  if (type == DType::bf16) return reference::bf16_value(half);
  if (type == DType::f16) return reference::f16_value(half);
  float value = 0;
  std::memcpy(&value, at, 4);
  return value;
}

void write_element(unsigned char* at, DType type, float value) {
  if (type == DType::f32) {
    std::memcpy(at, &value, 4);
    return;
  }
  const std::uint16_t half =
      type == DType::bf16 ? reference::bf16_bits(value) : reference::f16_bits(value);
  std::memcpy(at, &half, 2);
}

/// Kinds of data go by stretches of 32 along rows, so that blocks of all kinds meet in one call.
float made_up(std::mt19937& random, std::uint32_t kind) {
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
  std::int64_t m, k, ld, batch_stride;
  Memory memory;
  std::int64_t offset;

  explicit Matrix(const Case& c)
      : type(c.problem.a_type),
        m(c.m),
        k(c.k),
        ld(c.ld),
        batch_stride(c.m * c.ld + 5),
        memory((c.batch * batch_stride + 8) * element_bytes(type)),
        offset(element_bytes(type)) {
    std::mt19937 random(c.data);
    for (std::int64_t b = 0; b < c.batch; ++b)
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < k; ++j)
          write_element(
              at(b, i, j), type,
              made_up(random, static_cast<std::uint32_t>(j / 32 * 7 + i / 32 * 3 + c.data)));
  }
  unsigned char* at(std::int64_t b, std::int64_t i, std::int64_t j) {
    return memory.data() + offset + (b * batch_stride + i * ld + j) * element_bytes(type);
  }
  /// Entry b as the reference reads it, tightly packed.
  std::vector<float> values(std::int64_t b) {
    std::vector<float> out;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < k; ++j) out.push_back(read_element(at(b, i, j), type));
    return out;
  }
};

reference::QuantizeSpec spec_of(const Case& c, const qt_args& args) {
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
void check_case(const Case& c, const Run& run) {
  const auto& p = c.problem;
  Matrix x(c);
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
    const auto values = x.values(b);
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

Problem modes(DType type, Copies copies, Layout layout, int rotation, Signs signs, ScaleRule rule,
              Rounding rounding) {
  Problem p;
  p.op = Op::quantize;
  p.role = Role::wgrad;  // both axes may count tokens
  p.a_type = type;
  p.d_type = DType::mxfp4;
  p.d_layout = layout;
  p.copies = copies;
  p.rotation = rotation;
  p.signs = rotation == 0 ? Signs::none : signs;
  p.scale_rule = rule;
  p.a_rounding = rounding;
  p.biased = BiasedRounding::allowed;
  p.m = {0, 4096};
  p.k = {0, 4096};
  return p;
}

constexpr std::array kTypes = {DType::bf16, DType::f16, DType::f32};
constexpr std::array kCopies = {Copies::rows, Copies::columns, Copies::both};
constexpr std::array kLayouts = {Layout::plain, Layout::int8_blocks, Layout::panel16};
constexpr std::array kRotations = {0, 16, 32, 64, 128, 256};
constexpr std::array kSigns = {Signs::none, Signs::fixed, Signs::per_call};
constexpr std::array<std::int64_t, 10> kRows = {0, 1, 7, 16, 31, 33, 64, 129, 300, 520};
constexpr std::array<std::int64_t, 7> kColumns = {32, 64, 96, 257, 576, 1, 31};

/// Sizes, strides and places at random for a mode; a few thousand elements each.
Case some_case(Problem problem, std::mt19937& random) {
  Case c;
  c.problem = problem;
  c.m = kRows[random() % kRows.size()];
  c.k = kColumns[random() % kColumns.size()];
  if (c.m * c.k > 17000) c.m = 16 + random() % 2;
  c.batch = 1 + random() % 5 / 4;
  c.ld = c.k + random() % 3 * 7;
  c.spare = random() % 2;
  c.row0 = random() % 2 * 1000;
  c.k0 = random() % 2 * 64;
  c.k_global = random() % 2 ? 0 : 40000;
  c.data = static_cast<std::uint32_t>(random() % 100000);
  if (problem.copies == Copies::both) c.row0 = c.row0 / 32 * 32;
  return c;
}

QuantizeConfig config_of(const Problem& p, int tile_m, int tile_k) {
  QuantizeConfig out;
  out.a_type = static_cast<qt::cpu::DType>(p.a_type);
  out.copies = static_cast<qt::cpu::Copies>(p.copies);
  out.d_layout = static_cast<qt::cpu::Layout>(p.d_layout);
  out.rotation = p.rotation;
  out.signs = static_cast<qt::Signs>(p.signs);
  out.scale_rule = static_cast<qt::ScaleRule>(p.scale_rule);
  out.scale_block = static_cast<qt::cpu::ScaleBlock>(p.scale_block);
  out.rounding = static_cast<qt::Rounding>(p.a_rounding);
  out.tile_m = tile_m;
  out.tile_k = tile_k;
  return out;
}

void check_any(const AnyMode& kernel, const Case& c, int tile_m, int tile_k) {
  const auto config = config_of(c.problem, tile_m, tile_k);
  check_case(c, [&](const qt_args& args) {
    const auto& p = c.problem;
    const auto parts = qt::cpu::QuantizeParts::of(
        c.m, c.k, padding_unit(p), p.copies != Copies::columns, p.copies != Copies::rows,
        p.d_layout == Layout::panel16, tile_m, tile_k);
    for (auto part = c.batch * parts.per_entry(); part-- > 0;) kernel.quantize(config, &args, part);
  });
}

template <class E>
E pick(std::initializer_list<E> from, std::mt19937& random) {
  return from.begin()[random() % from.size()];
}

/// Every rule with every rounding and rotation, `times` over; the other modes and sizes at random.
void check_many(const AnyMode& kernel, int times, std::mt19937& random) {
  for (int i = 0; i < times; ++i)
    for (int rule = 0; rule < 8; ++rule)
      for (int rounding = 0; rounding < 6; ++rounding)
        for (const int g : kRotations) {
          const auto p = modes(kTypes[random() % 3], kCopies[random() % 3], kLayouts[random() % 3],
                               g, kSigns[random() % 3], static_cast<ScaleRule>(rule),
                               static_cast<Rounding>(rounding));
          check_any(kernel, some_case(p, random), pick({32, 128}, random),
                    pick({96, 4096}, random));
        }
}

/// What vectors do, in all layouts, types and copies.
void check_lanes(const AnyMode& kernel, int times, std::mt19937& random) {
  for (int i = 0; i < times; ++i)
    for (const auto type : kTypes)
      for (const auto copies : kCopies)
        for (const auto layout : kLayouts)
          for (const int g : kRotations) {
            const auto rule = pick({ScaleRule::floor, ScaleRule::even, ScaleRule::rceil,
                                    ScaleRule::ceil, ScaleRule::ts34},
                                   random);
            const auto p = modes(type, copies, layout, g, kSigns[random() % 3], rule,
                                 pick({Rounding::rne, Rounding::sr16}, random));
            check_any(kernel, some_case(p, random), 64, pick({96, 4096}, random));
          }
}

void check_squares(const AnyMode& kernel, std::mt19937& random) {
  for (const auto rule : {ScaleRule::floor, ScaleRule::even, ScaleRule::rceil, ScaleRule::ceil})
    for (const auto rounding : {Rounding::rne, Rounding::sr16, Rounding::half_away})
      for (const auto copies : kCopies)
        for (const auto layout : kLayouts) {
          auto p = modes(kTypes[random() % 3], copies, layout, 0, Signs::none, rule, rounding);
          p.scale_block = ScaleBlock::b32x32;
          check_any(kernel, some_case(p, random), 32, 96);
        }
}

}  // namespace

TEST_CASE("cpu_quantize: every mode on every instruction set, against the reference") {
  std::mt19937 random(1);
  for (const auto& kernel : any_modes()) {
    CAPTURE(kernel.name);
    check_many(kernel, kernel.name == "portable" ? 2 : 1, random);
    check_lanes(kernel, 4, random);
    check_squares(kernel, random);
  }
}

/// A problem as users state it: features static, tokens from 0 on.
struct Emitted {
  Problem problem;
  std::vector<std::int64_t> tokens;
};

std::vector<Emitted> emitted_problems() {
  const auto rows = [](Problem p, std::int64_t features) {
    p.role = Role::fprop;
    p.m = {0, 4096};
    p.k = Extent::exactly(features);
    return p;
  };
  const auto columns = [](Problem p, std::int64_t features) {
    p.role = Role::none;
    p.m = {0, 8192};
    p.k = Extent::exactly(features);
    return p;
  };
  const auto none = Signs::none, fixed = Signs::fixed, per_call = Signs::per_call;
  const auto rceil = ScaleRule::rceil;
  return {
      {rows(modes(DType::bf16, Copies::rows, Layout::plain, 32, none, rceil, Rounding::rne), 1504),
       {0, 1, 7, 33}},
      {rows(modes(DType::f32, Copies::rows, Layout::int8_blocks, 64, per_call, rceil,
                  Rounding::sr16),
            576),
       {1, 17}},
      {rows(modes(DType::f32, Copies::rows, Layout::panel16, 128, fixed, ScaleRule::ts34,
                  Rounding::rne),
            2944 - 128),
       {33}},
      {columns(modes(DType::bf16, Copies::both, Layout::plain, 256, fixed, rceil, Rounding::sr16),
               256),
       {0, 1, 31, 33, 257}},
      {columns(modes(DType::f16, Copies::columns, Layout::panel16, 16, none, ScaleRule::even,
                     Rounding::rne),
               96),
       {1, 257}},
  };
}

TEST_CASE("cpu_quantize: emitted variants on each target, against the reference") {
  std::mt19937 random(3);
  for (const auto& target : jit::targets()) {
    // Without VBMI, or with VNNI for AVX2, the text is the same.
    if (target.key() == "x86-64-v4:avx512_vnni" || target.has("avx_vnni")) continue;
    std::size_t index = 0;
    for (const auto& [problem, tokens] : emitted_problems()) {
      if (target.arch != "x86-64-v4" && ++index % 2 == 0) continue;  // compiling takes its time
      const auto variants = family().variants(problem, target);
      REQUIRE(!variants.empty());
      const auto& variant = variants[random() % variants.size()];
      const jit::Kernel kernel(family(), problem, target, variant);
      for (const auto m : tokens) {
        Case c;
        c.problem = problem;
        c.m = m;
        c.k = problem.k.lo;
        c.ld = c.k + 3;
        c.data = static_cast<std::uint32_t>(random() % 100000);
        check_case(c, [&](const qt_args& args) { kernel.run(args); });
      }
    }
  }
}
