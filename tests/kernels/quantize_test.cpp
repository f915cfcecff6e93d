// cpu_quantize executed: bit for bit what the scalar reference says, in every mode and layout, on
// every instruction set of this machine.
#include <doctest/doctest.h>

#include <array>
#include <random>

#include "generator/cpu/families.hpp"
#include "tests/kernels/any_mode.hpp"
#include "tests/kernels/jit.hpp"
#include "tests/kernels/quantize_cases.hpp"

using namespace quarterturn;
using namespace quarterturn::kernels;

namespace {

const Family& family() { return cpu::quantize(); }

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

void check_any(const AnyMode& kernel, Matrix x, const Case& c, int tile_m, int tile_k) {
  const auto config = config_of(c.problem, tile_m, tile_k);
  check_matrix(std::move(x), c, [&](const qt_args& args) {
    const auto& p = c.problem;
    const auto parts = qt::cpu::QuantizeParts::of(
        c.m, c.k, padding_unit(p), p.copies != Copies::columns, p.copies != Copies::rows,
        p.d_layout == Layout::panel16, tile_m, tile_k);
    for (auto part = c.batch * parts.per_entry(); part-- > 0;) kernel.quantize(config, &args, part);
  });
}

void check_any(const AnyMode& kernel, const Case& c, int tile_m, int tile_k) {
  check_any(kernel, Matrix(c), c, tile_m, tile_k);
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
            check_any(kernel, some_case(p, random), pick({64, 1024}, random),
                      pick({96, 4096}, random));
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

/// Rows whose values lie where rounding decides, under scales of the whole range of binary32, so
/// that a kernel that rounds once more, or once less, than the contract shows it. The first `g`
/// columns, and the second, hold one non-zero element each, which rotation spreads over its
/// segment.
Matrix decisive_rows(Case& c) {
  Matrix x(c);
  const int g = c.problem.rotation;
  const float norm = 1.0f / std::sqrt(static_cast<float>(g));
  std::int64_t row = 0;
  const auto put = [&](float first, float second) {
    if (row == c.m) return;
    for (std::int64_t j = 0; j < c.k; ++j)
      write_element(x.at(0, row, j), DType::f32, j == 0 ? first : j == g ? second : 0.0f);
    ++row;
  };
  // TS34 multiplies by 3/4 on its own.
  const float before = c.problem.scale_rule == ScaleRule::ts34 ? norm * 0.75f : norm;
  for (int exponent = -126; exponent <= 125; exponent += exponent < -84 ? 1 : 19)
    for (const float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
      const float large = std::ldexp(5.5f / norm, exponent);
      const float exact = std::ldexp(tie / before, exponent);
      put(exact, large);
      put(std::nextafter(exact, 0.0f), large);
      put(std::nextafter(exact, std::numeric_limits<float>::infinity()), large);
      put(large, exact + std::ldexp(1.0f, exponent - 20));
    }
  c.m = row;
  return x;
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

TEST_CASE("cpu_quantize: near ties at both ends of the range, against the reference") {
  for (const auto& kernel : any_modes())
    for (const int g : {16, 32, 64, 128})
      for (const auto rule : {ScaleRule::floor, ScaleRule::rceil, ScaleRule::ts34}) {
        CAPTURE(kernel.name);
        Case c;
        c.problem =
            modes(DType::f32, Copies::rows, Layout::plain, g, Signs::none, rule, Rounding::rne);
        c.m = 2000;  // the most
        c.k = std::max(2 * g, 32);
        c.ld = c.k;
        Matrix x = decisive_rows(c);
        check_any(kernel, std::move(x), c, 32, 4096);
      }
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
