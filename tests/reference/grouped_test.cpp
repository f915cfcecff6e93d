// Grouped products against sums written out from the definition, and grouped copies against copies
// of each group alone.
#include "reference/grouped.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

std::vector<float> normals(std::int64_t count, std::uint64_t seed) {
  Samples random(seed);
  return sample(static_cast<std::size_t>(count), [&] { return random.normal(); });
}

double dot_of_values(const Quantized& a, std::int64_t row, const Quantized& b,
                     std::int64_t column) {
  double sum = 0;
  for (std::int64_t k = 0; k < a.k; ++k) sum += a.value(row, k) * b.value(column, k);
  return sum;
}

}  // namespace

TEST_CASE("grouped.copies hold each group's own copy, and zero blocks everywhere else") {
  const std::int64_t tokens = 700, c = 5;
  const auto x = normals(tokens * c, 1);
  for (const int rotation : {0, 64, 256}) {
    const std::vector<std::int32_t> ends = {0, 1, 129, 129, 640, 641};
    QuantizeSpec spec;
    spec.rotation = rotation;
    const auto all = quantize_grouped(x.data(), tokens, c, c, ends, spec);
    CHECK(all.k == grouped_length(tokens, 6, rotation));
    std::vector<bool> owned(static_cast<std::size_t>(all.k), false);
    for (const auto& group : token_groups(ends, rotation)) {
      const auto alone = quantize_columns(x.data() + group.first * c, group.count, c, c, spec);
      for (std::int64_t i = 0; i < group.padded; ++i) {
        const auto at = static_cast<std::size_t>(group.start + i);
        CHECK_FALSE(owned[at]);
        owned[at] = true;
        for (std::int64_t row = 0; row < c; ++row)
          CHECK(all.value(row, group.start + i) == (i < alone.k ? alone.value(row, i) : 0));
      }
    }
    for (std::int64_t i = 0; i < all.k; ++i)
      for (std::int64_t row = 0; row < c && !owned[static_cast<std::size_t>(i)]; ++row) {
        CHECK(all.code(row, i) == 0);
        CHECK(all.scale(row, i) == 0);
      }
  }
}

TEST_CASE("grouped.noise goes by the place in the copy, so equal tokens of two groups differ") {
  const std::int64_t c = 4;
  auto x = normals(64 * c, 2);
  std::copy_n(x.begin(), 32 * c, x.begin() + 32 * c);
  QuantizeSpec spec;
  spec.rounding = Rounding::sr16;
  spec.noise.seed = 3;
  const std::vector<std::int32_t> ends = {32, 64};
  const auto all = quantize_grouped(x.data(), 64, c, c, ends, spec);
  int equal = 0;
  for (std::int64_t row = 0; row < c; ++row)
    for (std::int64_t i = 0; i < 32; ++i) equal += all.code(row, i) == all.code(row, 128 + i);
  CHECK(equal > 32);   // most values round alike
  CHECK(equal < 128);  // but not by the same draws
}

TEST_CASE("grouped.elements are the products of their own group") {
  const std::int64_t k = 64, n = 3, groups = 4, m = 9;
  const auto weights = normals(groups * n * k, 4), x = normals(m * k, 5);
  std::vector<Quantized> b;
  for (std::int64_t g = 0; g < groups; ++g)
    b.push_back(quantize(weights.data() + g * n * k, n, k, k, {}));
  const std::vector<Quantized> a = {quantize(x.data(), m, k, k, {})};
  const std::vector<float> bias = normals(groups * n, 6), c = normals(m * n, 7);
  GroupedGemm g{Grouping::m_contiguous, {}, a, b, 0, {2.0, 0.5, c.data(), n, bias.data()}, 0};
  const std::vector<std::int32_t> ends = {2, 2, 7, 8};
  g.sizes = ends;
  const std::int64_t owner[] = {0, 0, 2, 2, 2, 2, 2, 3};
  for (std::int64_t row = 0; row < m; ++row)
    for (std::int64_t j = 0; j < n; ++j) {
      const auto got = grouped_at(g, 0, row, j);
      CHECK(got.has_value() == (row < 8));
      if (!got) continue;
      const auto of = static_cast<std::size_t>(owner[row]);
      const double want = 2.0 * dot_of_values(a[0], row, b[of], j) +
                          0.5 * static_cast<double>(c[static_cast<std::size_t>(row * n + j)]) +
                          static_cast<double>(bias[of * 3 + static_cast<std::size_t>(j)]);
      CHECK(got->value == doctest::Approx(want).epsilon(1e-12));
    }
  // Masked: each group its own A, rows beyond its count untouched.
  std::vector<Quantized> as;
  for (std::int64_t i = 0; i < groups; ++i)
    as.push_back(quantize(x.data() + i * 2 * k, 2, k, k, {}));
  const std::vector<std::int32_t> counts = {2, 0, 1, 2};
  const GroupedGemm masked{Grouping::m_masked, counts, as, b, 0, {}, 0};
  for (std::int64_t e = 0; e < groups; ++e)
    for (std::int64_t row = 0; row < 2; ++row) {
      const auto got = grouped_at(masked, e, row, 1);
      const auto at = static_cast<std::size_t>(e);
      CHECK(got.has_value() == (row < counts[at]));
      if (got) CHECK(got->value == dot_of_values(as[at], row, b[at], 1));
    }
}

TEST_CASE("grouped.gradients contract each group's tokens, and an empty group gives beta * C") {
  const std::int64_t tokens = 300, m = 4, n = 3;
  const auto dy = normals(tokens * m, 8), x = normals(tokens * n, 9), c = normals(3 * m * n, 10);
  const std::vector<std::int32_t> ends = {37, 37, 290};
  const std::vector<Quantized> a = {quantize_grouped(dy.data(), tokens, m, m, ends, {})};
  const std::vector<Quantized> b = {quantize_grouped(x.data(), tokens, n, n, ends, {})};
  const GroupedGemm g{Grouping::k_grouped, ends, a, b, 0, {1.0, 0.25, c.data(), n, nullptr}, m * n};
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < 3; ++e) {
    const auto count = ends[static_cast<std::size_t>(e)] - first;
    const auto qa = quantize_columns(dy.data() + first * m, count, m, m, {});
    const auto qb = quantize_columns(x.data() + first * n, count, n, n, {});
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < n; ++j) {
        const double added =
            0.25 * static_cast<double>(c[static_cast<std::size_t>((e * m + i) * n + j)]);
        CHECK(grouped_at(g, e, i, j)->value ==
              doctest::Approx(dot_of_values(qa, i, qb, j) + added).epsilon(1e-12));
      }
    first += count;
  }
}
