// Grouped plans (mixtures of experts) on the CPU, compiled and prebuilt, against the scalar
// reference: ragged and empty groups, one group, garbage beyond the last one.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <set>

#include "generator/grouping.hpp"
#include "reference/formats.hpp"
#include "reference/grouped.hpp"
#include "runtime/executable.hpp"
#include "runtime/operand.hpp"
#include "tests/runtime/cpu_device.hpp"

using namespace quarterturn;
using test::Aligned;
using test::cpu_device;
using test::normal_values;

namespace {

using Sizes32 = std::vector<std::int32_t>;

struct Case {
  Problem problem;
  std::int64_t m, n, k;
  Sizes32 sizes;
};

Problem moe(Grouping grouping, std::int64_t n, std::int64_t k, int rotation) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.grouping = grouping;
  p.groups = {1, 16};
  p.n = Extent::exactly(n);
  p.a_type = p.b_type = p.d_type = DType::f32;
  p.rotation = rotation;
  p.accumulate = Accumulate::accumulate;
  if (grouping == Grouping::k_grouped) {
    p.role = Role::wgrad;
    p.a_major = p.b_major = Major::rows;
    p.m = Extent::exactly(k);  // the other feature dimension
    p.k = {0, 2048};
  } else {
    p.role = Role::fprop;
    p.m = {0, 2048};
    p.k = Extent::exactly(k);
    p.bias = Bias::per_column;
  }
  return p;
}

// Everything a case holds in memory; A's rows or tokens that no group owns are NaN.
struct Instance {
  Case of;
  std::int64_t groups, entries;
  std::vector<float> a, b, c, bias;

  explicit Instance(const Case& given) : of(given) {
    const auto& p = of.problem;
    groups = static_cast<std::int64_t>(of.sizes.size());
    const Entries e = entries_of(p, 1, groups);
    entries = e.d;
    a = normal_values(e.a * of.m * of.k, 1);
    b = normal_values(e.b * of.n * of.k, 2);
    c = normal_values(e.d * of.m * of.n, 3);
    bias = normal_values(groups * of.n, 4);
    const auto spoil = [](std::vector<float>& x, std::int64_t from, std::int64_t end) {
      std::fill(x.begin() + from, x.begin() + end, std::nanf(""));
    };
    if (p.grouping == Grouping::m_contiguous) spoil(a, of.sizes.back() * of.k, of.m * of.k);
    if (p.grouping == Grouping::m_masked)
      for (std::int64_t g = 0; g < groups; ++g)
        spoil(a, (g * of.m + of.sizes[static_cast<std::size_t>(g)]) * of.k, (g + 1) * of.m * of.k);
    if (p.grouping == Grouping::k_grouped) {
      spoil(a, of.sizes.back() * of.m, of.k * of.m);
      spoil(b, of.sizes.back() * of.n, of.k * of.n);
    }
  }

  reference::QuantizeSpec spec(bool is_b) const {
    reference::QuantizeSpec out;
    out.rotation = of.problem.rotation;
    out.rounding =
        static_cast<reference::Rounding>(is_b ? of.problem.b_rounding : of.problem.a_rounding);
    out.noise = {77, 5, is_b ? 1u : 0u, 0};
    return out;
  }

  void quantize(std::vector<reference::Quantized>& qa,
                std::vector<reference::Quantized>& qb) const {
    const auto& p = of.problem;
    if (p.grouping == Grouping::k_grouped) {
      qa = {reference::quantize_grouped(a.data(), of.k, of.m, of.m, of.sizes, spec(false))};
      qb = {reference::quantize_grouped(b.data(), of.k, of.n, of.n, of.sizes, spec(true))};
      return;
    }
    for (std::int64_t e = 0; e < entries_of(p, 1, groups).a; ++e) {
      auto own = spec(false);
      own.row0 = e * of.m;
      qa.push_back(reference::quantize(a.data() + e * of.m * of.k, of.m, of.k, of.k, own));
    }
    for (std::int64_t g = 0; g < groups; ++g)
      qb.push_back(reference::quantize(b.data() + g * of.n * of.k, of.n, of.k, of.k, spec(true)));
  }

  qt_args args(std::vector<float>& d) const {
    qt_args out{};
    const auto dense = [](std::int64_t rows, std::int64_t columns, const std::vector<float>& x) {
      return dense_matrix(rows, columns, const_cast<float*>(x.data()));
    };
    const bool by_tokens = of.problem.grouping == Grouping::k_grouped;
    out.m = of.m;
    out.n = of.n;
    out.k = of.k;
    out.batch = entries;
    out.groups = groups;
    out.group_sizes = of.sizes.data();
    out.a = by_tokens ? dense(of.k, of.m, a) : dense(of.m, of.k, a);
    out.b = by_tokens ? dense(of.k, of.n, b) : dense(of.n, of.k, b);
    out.c = dense(of.m, of.n, c);
    out.d = dense(of.m, of.n, d);
    out.bias = bias.data();
    out.alpha = 0.75f;
    out.beta = 0.5f;
    out.noise_seed = 77;
    out.stream = 5;
    return out;
  }
};

constexpr float kPoison = 12345.0f;

std::vector<float> run(const Executable& executable, const Instance& one) {
  std::vector<float> d(static_cast<std::size_t>(one.entries * one.of.m * one.of.n), kPoison);
  auto args = one.args(d);
  Aligned workspace(executable.workspace_bytes());
  std::memset(workspace.get(), 0xff, static_cast<std::size_t>(executable.workspace_bytes()));
  args.workspace = workspace.get();
  args.workspace_bytes = executable.workspace_bytes();
  const auto status = executable.run(args, nullptr);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return d;
}

void check(const Instance& one, const std::vector<float>& d) {
  std::vector<reference::Quantized> qa, qb;
  one.quantize(qa, qb);
  const auto& of = one.of;
  const bool by_tokens = of.problem.grouping == Grouping::k_grouped;
  const reference::GroupedGemm gemm{
      static_cast<reference::Grouping>(static_cast<int>(of.problem.grouping) - 1),
      of.sizes,
      qa,
      qb,
      of.problem.rotation,
      {0.75, 0.5, one.c.data(), of.n, by_tokens ? nullptr : one.bias.data()},
      of.m * of.n};
  const double unit = std::ldexp(1.0, -24) * static_cast<double>(of.k / 32 + 12);
  std::size_t bad = 0, untouched = 0;
  for (std::int64_t e = 0; e < one.entries; ++e)
    for (std::int64_t i = 0; i < of.m; ++i)
      for (std::int64_t j = 0; j < of.n; ++j) {
        const float got = d[static_cast<std::size_t>((e * of.m + i) * of.n + j)];
        const auto want = reference::grouped_at(gemm, e, i, j);
        untouched += !want.has_value();
        if (!want)
          bad += got != kPoison;
        else
          bad += !(std::abs(static_cast<double>(got) - want->value) <= unit * want->magnitude);
      }
  CHECK(bad == 0);
  if (!by_tokens && of.sizes.back() < of.m) CHECK(untouched > 0);
}

std::vector<Case> cases() {
  std::vector<Case> out;
  const auto contiguous = [&](int rotation, std::int64_t m, std::int64_t n, std::int64_t k,
                              Sizes32 ends) {
    out.push_back({moe(Grouping::m_contiguous, n, k, rotation), m, n, k, std::move(ends)});
  };
  contiguous(32, 37, 48, 96, {5, 5, 20, 37});
  contiguous(0, 150, 17, 160, {0, 0, 97, 98, 140});  // empty first groups, rows that nobody owns
  contiguous(64, 96, 33, 64, {96});                  // one group
  contiguous(32, 130, 40, 32, {0, 130, 130, 130});   // all rows in one group
  contiguous(32, 9, 16, 64, {0, 0, 0});              // no rows at all
  contiguous(128, 16, 24, 128, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  const auto masked = [&](int rotation, std::int64_t m, std::int64_t n, std::int64_t k,
                          Sizes32 counts) {
    out.push_back({moe(Grouping::m_masked, n, k, rotation), m, n, k, std::move(counts)});
  };
  masked(32, 37, 48, 96, {37, 0, 5, 36});
  masked(0, 100, 17, 64, {1, 100});
  masked(256, 3, 20, 256, {0, 0, 0});
  const auto gradient = [&](int rotation, std::int64_t m, std::int64_t n, std::int64_t tokens,
                            Sizes32 ends) {
    out.push_back({moe(Grouping::k_grouped, n, m, rotation), m, n, tokens, std::move(ends)});
  };
  gradient(32, 37, 48, 300, {5, 5, 133, 300});
  gradient(0, 17, 33, 515, {0, 0, 128, 256, 511});  // tokens that nobody owns
  gradient(256, 16, 16, 700, {257, 257, 700});
  gradient(64, 20, 20, 96, {96});
  gradient(32, 8, 24, 64, {0, 0, 0});
  gradient(32, 8, 24, 0, {0, 0});
  // Stochastic rounding: every bit of the copies counts.
  for (const auto i : {0u, 6u, 9u}) {
    auto c = out[i];
    c.problem.a_rounding = c.problem.b_rounding = Rounding::sr16;
    out.push_back(c);
  }
  return out;
}

std::string text(const Case& c) {
  return fmt::format("{} m={} n={} k={} sizes={}", c.problem.key(), c.m, c.n, c.k,
                     fmt::join(c.sizes, ","));
}

}  // namespace

// Prebuilt kernels of every case against the reference; every second case compiled, too, which
// takes seconds.
TEST_CASE("grouped.plans compute every form, compiled and prebuilt, and agree bit for bit") {
  const auto backend = cpu_device();
  std::set<Grouping> compiled;
  std::size_t index = 0;
  for (const Case& c : cases()) {
    CAPTURE(text(c));
    REQUIRE_MESSAGE(validate(c.problem).ok(), validate(c.problem).message());
    const Instance one(c);
    const auto slow = Executable::prebuilt(*backend, c.problem);
    REQUIRE_MESSAGE(slow.ok(), slow.status().message());
    const auto d = run(**slow, one);
    check(one, d);
    if (index++ % 2 != 0) continue;
    const auto plan = default_plan(c.problem, backend->device().target);
    REQUIRE_MESSAGE(plan.ok(), plan.status().message());
    const auto fast = Executable::build(*backend, c.problem, *plan);
    REQUIRE_MESSAGE(fast.ok(), fast.status().message());
    const auto again = run(**fast, one);
    CHECK(std::memcmp(d.data(), again.data(), d.size() * sizeof(float)) == 0);
    compiled.insert(c.problem.grouping);
  }
  CHECK(compiled.size() == 3);
}

TEST_CASE("grouped.quantize writes the reference's bits, zero blocks between groups included") {
  const auto backend = cpu_device();
  for (const auto layout : {Layout::plain, Layout::panel16})
    for (const auto copies : {Copies::columns, Copies::both})
      for (const int rotation : {0, 32, 256}) {
        Problem p;
        p.op = Op::quantize;
        p.m = {0, 1024};
        p.k = Extent::exactly(256);
        p.a_type = DType::f32;
        p.d_type = DType::mxfp4;
        p.d_layout = layout;
        p.copies = copies;
        p.rotation = rotation;
        p.grouping = Grouping::k_grouped;
        p.groups = {1, 8};
        p.a_rounding = Rounding::sr16;
        CAPTURE(p.key());
        REQUIRE_MESSAGE(validate(p).ok(), validate(p).message());
        const std::int64_t tokens = 515, columns = 256;
        const Sizes32 ends = {0, 3, 260, 260, 500};
        auto x = normal_values(tokens * columns, 8);
        std::fill(x.begin() + 500 * columns, x.end(), std::nanf(""));
        const auto length = copy_length(p, tokens, 5);
        reference::QuantizeSpec spec;
        spec.rotation = rotation;
        spec.rounding = reference::Rounding::sr16;
        spec.noise = {9, 1, 0, 0};
        const auto want =
            reference::quantize_grouped(x.data(), tokens, columns, columns, ends, spec);
        REQUIRE(want.k == length);
        const auto executable = Executable::prebuilt(*backend, p);
        REQUIRE_MESSAGE(executable.ok(), executable.status().message());
        const auto bytes = copy_bytes(p, layout, columns, tokens, 5);
        const auto row_bytes = operand_bytes(layout, tokens, columns, padding_unit(p));
        std::vector<unsigned char> codes(static_cast<std::size_t>(bytes.codes), 0xff),
            scales(static_cast<std::size_t>(bytes.scales), 0xff),
            row_codes(static_cast<std::size_t>(row_bytes.codes)),
            row_scales(static_cast<std::size_t>(row_bytes.scales));
        qt_args args{};
        args.m = tokens;
        args.k = columns;
        args.batch = 1;
        args.groups = 5;
        args.group_sizes = ends.data();
        args.a = dense_matrix(tokens, columns, x.data());
        const auto column_copy =
            packed_operand(layout, columns, length, padding_unit(p), codes.data(), scales.data());
        args.d = args.d2 = column_copy;
        if (copies == Copies::both)
          args.d = packed_operand(layout, tokens, columns, padding_unit(p), row_codes.data(),
                                  row_scales.data());
        args.noise_seed = 9;
        args.stream = 1;
        REQUIRE((*executable)->run(args, nullptr).ok());
        if (layout != Layout::plain) {
          // Back to plain by the same library, whose packing tests/kernels holds to the oracle.
          Problem back;
          back.op = Op::pack;
          back.m = Extent::exactly(columns);
          back.k = Extent::exactly(length);
          back.a_type = back.d_type = DType::mxfp4;
          back.a_layout = layout;
          const auto unpack = Executable::prebuilt(*backend, back);
          REQUIRE_MESSAGE(unpack.ok(), unpack.status().message());
          std::vector<unsigned char> plain_codes(want.codes.size()),
              plain_scales(want.scales.size());
          qt_args u{};
          u.m = columns;
          u.k = length;
          u.batch = 1;
          u.a = column_copy;
          u.d = packed_operand(Layout::plain, columns, length, 32, plain_codes.data(),
                               plain_scales.data());
          REQUIRE((*unpack)->run(u, nullptr).ok());
          codes = plain_codes;
          scales = plain_scales;
        }
        CHECK(std::memcmp(codes.data(), want.codes.data(), want.codes.size()) == 0);
        CHECK(std::memcmp(scales.data(), want.scales.data(), want.scales.size()) == 0);
        if (copies == Copies::both && layout == Layout::plain) {
          // The copy along rows knows no groups.
          const auto rows = reference::quantize(x.data(), tokens, columns, columns, spec);
          CHECK(std::memcmp(row_codes.data(), rows.codes.data(), rows.codes.size()) == 0);
          CHECK(std::memcmp(row_scales.data(), rows.scales.data(), rows.scales.size()) == 0);
        }
      }
}
