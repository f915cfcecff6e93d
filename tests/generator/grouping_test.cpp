#include "generator/grouping.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "templates/tokens.h"

using namespace quarterturn;

namespace {

Problem wgrad() {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::wgrad;
  p.m = p.n = Extent::exactly(96);
  p.k = {0, 8192};
  p.grouping = Grouping::k_grouped;
  p.groups = {1, 64};
  p.a_type = p.b_type = DType::bf16;
  p.d_type = DType::f32;
  p.a_major = p.b_major = Major::rows;
  return p;
}

template <class Change>
std::string refusal(Problem p, Change change) {
  change(p);
  return validate(p).message();
}

}  // namespace

TEST_CASE("grouping.entries are what each operand has one of for each group") {
  Problem p = wgrad();
  const auto same = [](const Entries& e, std::int64_t a, std::int64_t b, std::int64_t d) {
    return e.a == a && e.b == b && e.d == d;
  };
  CHECK(same(entries_of(p, 1, 8), 1, 1, 8));
  p.grouping = Grouping::m_contiguous;
  CHECK(same(entries_of(p, 1, 8), 1, 8, 1));
  p.grouping = Grouping::m_masked;
  CHECK(same(entries_of(p, 1, 8), 8, 8, 8));
  p.grouping = Grouping::none;
  CHECK(same(entries_of(p, 3, 1), 3, 3, 3));
}

TEST_CASE("grouping.copies pad every group, in places that need no sum and never overlap") {
  for (const int rotation : {0, 32, 128, 256}) {
    Problem p = wgrad();
    p.rotation = rotation;
    const auto unit = group_unit(p);
    CHECK(unit == (rotation == 256 ? 256 : 128));
    CHECK(unit == qt::group_unit(rotation));
    for (const std::vector<int>& ends : std::vector<std::vector<int>>{{0, 0, 0},
                                                                      {1, 2, 3},
                                                                      {127, 128, 129},
                                                                      {256, 256, 1000},
                                                                      {5, 700, 700},
                                                                      {0, 0, 4096}}) {
      const std::int64_t k = ends.back() + 37;
      std::int64_t free = 0;
      for (std::size_t g = 0; g < ends.size(); ++g) {
        const auto range = qt::group_range(ends.data(), static_cast<std::int64_t>(g), k);
        const auto place = qt::group_place(range, static_cast<std::int64_t>(g), unit);
        CHECK(place.first % unit == 0);
        CHECK(place.first >= free);
        CHECK(place.length >= range.end - range.first);
        free = place.first + place.length;
      }
      CHECK(free <= copy_length(p, k, 3));
      CHECK(copy_length(p, k, 3) == qt::grouped_length(k, 3, unit));
    }
  }
}

TEST_CASE("grouping.tokens of a copy's parts are those of its groups, each in one place") {
  for (const int unit : {128, 256})
    for (const std::vector<int>& ends : std::vector<std::vector<int>>{
             {0, 0, 0}, {1, 2, 3}, {127, 128, 129}, {256, 256, 1000}, {0, 700, 700}, {0, 0, 4096}})
      for (const std::int64_t k : {std::int64_t{ends.back()}, std::int64_t{ends.back() + 300}}) {
        const auto groups = static_cast<std::int64_t>(ends.size());
        const auto length = qt::grouped_length(k, groups, unit);
        std::vector<std::int64_t> token(static_cast<std::size_t>(length), -1);
        for (std::int64_t g = 0; g < groups; ++g) {
          const auto range = qt::group_range(ends.data(), g, k);
          const auto place = qt::group_place(range, g, unit);
          for (auto i = range.first; i < range.end; ++i)
            token[static_cast<std::size_t>(place.first + i - range.first)] = i;
        }
        // One unit more holds all that no group owns.
        std::vector<int> beside(static_cast<std::size_t>(k), 0);
        for (std::int64_t at = 0; at < length + unit; at += 32) {
          const auto here = qt::tokens_at(ends.data(), groups, k, unit, at);
          const auto rest = qt::unowned_at(ends.data(), groups, k, unit, at);
          CHECK((here.first >= here.end || rest.first >= rest.end));
          for (std::int64_t i = 0; i < 32; ++i) {
            if (rest.first + i < rest.end) ++beside[static_cast<std::size_t>(rest.first + i)];
            if (at + i >= length) continue;
            const auto want = token[static_cast<std::size_t>(at + i)];
            CHECK((here.first + i < here.end ? here.first + i : -1) == want);
          }
        }
        for (std::int64_t i = 0; i < k; ++i)
          CHECK(beside[static_cast<std::size_t>(i)] == (i < ends.back() ? 0 : 1));
      }
}

TEST_CASE("grouping.ranges stay inside whatever the numbers are") {
  const int ends[] = {-5, 2147483647, 3, -2147483647 - 1, 9};
  for (int g = 0; g < 5; ++g) {
    const auto range = qt::group_range(ends, g, 100);
    CHECK(range.first >= 0);
    CHECK(range.first <= range.end);
    CHECK(range.end <= 100);
    const auto place = qt::group_place(range, g, 128);
    CHECK(place.first + place.length <= qt::grouped_length(100, 5, 128));
    CHECK(qt::group_count(ends, g, 50) >= 0);
    CHECK(qt::group_count(ends, g, 50) <= 50);
  }
}

TEST_CASE("grouping.copy bytes have a reference for each group and row where rows have one") {
  const Problem p = wgrad();
  CHECK(copy_bytes(p, Layout::plain, 96, 1000, 8).codes == 96 * (7 + 8) * 128 / 2);
  CHECK(copy_bytes(p, Layout::e5m2, 96, 1000, 8).codes == 96 * (7 + 8) * 128);
  CHECK(copy_bytes(p, Layout::e5m2, 96, 1000, 8).scales == 96 * 8);
}

TEST_CASE("validate names what a grouped problem may not have") {
  CHECK(validate(wgrad()).ok());
  const auto has = [](const std::string& message, const char* part) {
    CHECK_MESSAGE(message.find(part) != std::string::npos, message);
  };
  has(refusal(wgrad(), [](Problem& p) { p.batch = Extent::exactly(2); }), "leave batch at 1");
  has(refusal(wgrad(), [](Problem& p) { p.groups = {1, 70000}; }), "at most 65535");
  has(refusal(wgrad(), [](Problem& p) { p.grouping = Grouping::none; }), "grouping = none");
  has(refusal(wgrad(), [](Problem& p) { p.a_major = Major::k; }), "a_major = rows");
  has(refusal(wgrad(), [](Problem& p) { p.bias = Bias::per_column; }), "leave bias at none");
  has(refusal(wgrad(), [](Problem& p) { p.scale_block = ScaleBlock::b32x32; }), "use 1x32");
  has(refusal(wgrad(),
              [](Problem& p) {
                p.op = Op::gemm;
                p.b_type = DType::mxfp4;
              }),
      "use hadamard_gemm");
  has(refusal(wgrad(),
              [](Problem& p) {
                p.grouping = Grouping::m_masked;
                p.k = Extent::exactly(96);
              }),
      "use a_major = k");
  // Tokens need no multiple whatever the role says.
  CHECK(refusal(wgrad(), [](Problem& p) {
          p.role = Role::none;
          p.k = Extent::exactly(77);
        }).empty());
  Problem x;
  x.op = Op::quantize;
  x.m = {0, 1024};
  x.k = Extent::exactly(64);
  x.a_type = DType::bf16;
  x.d_type = DType::mxfp4;
  x.groups = Extent::exactly(4);
  has(refusal(x, [](Problem& p) { p.grouping = Grouping::m_contiguous; }),
      "leave grouping at none");
  has(refusal(x, [](Problem& p) { p.grouping = Grouping::k_grouped; }), "copies = columns or both");
  has(refusal(x,
              [](Problem& p) {
                p.grouping = Grouping::m_masked;
                p.copies = Copies::both;
              }),
      "rows is allowed");
  has(refusal(x,
              [](Problem& p) {
                p.op = Op::hadamard;
                p.rotation = 32;
                p.d_type = DType::bf16;
                p.grouping = Grouping::m_masked;
              }),
      "use batch");
}

TEST_CASE("grouping.a grid has a block for each tile, products of one size along z") {
  Problem p;
  p.op = Op::gemm;
  qt_args args{};
  args.m = 300, args.n = 130, args.batch = 5, args.groups = 1;
  using Grid = std::array<std::uint32_t, 3>;
  CHECK(tile_grid(p, args, 128, 64) == Grid{9, 1, 5});
  p.grouping = Grouping::k_grouped;  // a D for each group
  CHECK(tile_grid(p, args, 128, 64) == Grid{9, 1, 5});
  p.grouping = Grouping::m_masked;
  CHECK(tile_grid(p, args, 128, 64) == Grid{45, 1, 1});
  p.grouping = Grouping::m_contiguous;  // each of four groups may end in a tile of its own
  args.batch = 1, args.groups = 4;
  CHECK(tile_grid(p, args, 128, 64) == Grid{3 * (3 + 3), 1, 1});
}
