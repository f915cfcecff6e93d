#include "runtime/lookup_table.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>

#include "runtime/layers.hpp"

using namespace quarterturn;

namespace {

Problem fprop(std::int64_t lo, std::int64_t hi, std::int64_t n = 4096) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.role = Role::fprop;
  p.m = {lo, hi};
  p.n = Extent::exactly(n);
  p.k = Extent::exactly(4096);
  p.a_type = p.d_type = DType::bf16;
  p.b_type = DType::mxfp4;
  p.rotation = 32;
  return p;
}

Plan plan(std::int64_t tile) {
  return Plan{{{StepKind::whole, Variant{"made_up", 1, {{"tile", tile}}}}}};
}

Answer answer(const Problem& problem, std::int64_t tile, Validity validity = Validity::valid,
              Layer layer = Layer::database, std::int32_t order = 0) {
  return {problem, plan(tile), validity, layer, order, "made up"};
}

std::int64_t tile_of(const Found& found) {
  return found.answer ? found.answer->plan->steps[0].variant.value("tile") : -1;
}

void bump(Extent& extent) { extent.hi += 7; }
template <class T>
void bump(T& value) {
  value = static_cast<T>(static_cast<int>(value) + 1);
}

}  // namespace

TEST_CASE("lookup_table.empty and unknown") {
  const LookupTable none;
  CHECK(none.find(fprop(1, 1)).answer == nullptr);
  const LookupTable empty{std::vector<Answer>{}};
  CHECK(empty.find(fprop(1, 1)).answer == nullptr);
  const LookupTable one({answer(fprop(1, 16), 1)});
  CHECK(one.find(fprop(1, 16, 8192)).answer == nullptr);
  auto other = fprop(1, 16);
  other.scale_rule = ScaleRule::floor;
  CHECK(one.find(other).answer == nullptr);
  CHECK(one.candidates(other).empty());
}

TEST_CASE("family_key.every field counts, but the tokens") {
  const Problem plain = fprop(1, 16);
  const FamilyKey key(plain);
  std::vector<FamilyKey> keys{key};
  const auto differs = [&](const Problem& changed) {
    const FamilyKey next(changed);
    for (const auto& before : keys) CHECK_FALSE(before == next);
    keys.push_back(next);
  };
#define X(type, name, value)            \
  {                                     \
    Problem changed = plain;            \
    bump(changed.name);                 \
    if (std::string_view(#name) == "m") \
      CHECK(FamilyKey(changed) == key); \
    else                                \
      differs(changed);                 \
  }
  QTURN_PROBLEM_FIELDS(X)
#undef X
  CHECK(keys.size() > 25);
}

TEST_CASE("lookup_table.exact, bucket, borrowed by range") {
  const LookupTable table({answer(fprop(1, 16), 1), answer(fprop(17, 64), 2),
                           answer(fprop(1, 8192), 3), answer(fprop(9000, 9999), 4)});
  const auto check = [&](std::int64_t lo, std::int64_t hi, Match match, std::int64_t tile) {
    const auto found = table.find(fprop(lo, hi));
    CHECK(found.match == match);
    CHECK(tile_of(found) == tile);
  };
  check(1, 16, Match::exact, 1);
  check(17, 64, Match::exact, 2);
  check(4, 4, Match::bucket, 1);  // the tightest range that contains it
  check(20, 30, Match::bucket, 2);
  check(10, 20, Match::bucket, 3);  // straddles the tight ones
  check(9000, 10000, Match::borrowed, 4);
  check(20000, 20000, Match::borrowed, 4);  // the nearest
  check(8500, 8500, Match::borrowed, 3);
}

TEST_CASE("lookup_table.in Wgrad the tokens are k") {
  auto stored = fprop(4096, 4096);
  stored.role = Role::wgrad;
  stored.b_type = DType::bf16;
  stored.k = {0, 8192};
  const LookupTable table({answer(stored, 1)});
  auto asked = stored;
  asked.k = {33, 33};
  CHECK(table.find(asked).match == Match::bucket);
  asked.m = Extent::exactly(2048);
  CHECK(table.find(asked).answer == nullptr);
}

TEST_CASE("lookup_table.validity beats layer, and pins beat both") {
  const auto asked = fprop(1, 16);
  std::vector<Answer> answers = {answer(asked, 1, Validity::stale, Layer::database),
                                 answer(asked, 2, Validity::valid, Layer::snapshot, 1),
                                 answer(asked, 3, Validity::valid, Layer::snapshot, 0),
                                 answer(asked, 4, Validity::borrowed, Layer::database),
                                 answer(fprop(1, 64), 5, Validity::valid, Layer::database)};
  const LookupTable table(answers);
  std::vector<std::int64_t> tiles;
  std::vector<Match> matches;
  for (const auto& found : table.candidates(asked)) {
    tiles.push_back(tile_of(found));
    matches.push_back(found.match);
  }
  CHECK(tiles == std::vector<std::int64_t>{3, 2, 5, 1, 4});
  CHECK(matches == std::vector<Match>{Match::exact, Match::exact, Match::bucket, Match::stale,
                                      Match::borrowed});
  CHECK(tile_of(table.find(asked)) == 3);

  answers.push_back(answer(fprop(1, 128), 6, Validity::valid, Layer::pin));
  const LookupTable pinned(answers);
  CHECK(tile_of(pinned.find(asked)) == 6);
  CHECK(tile_of(pinned.find(fprop(4096, 4096))) == 6);  // the nearest range, as anybody's
}

TEST_CASE("lookup_table.answers of another class serve when nothing else does") {
  const LookupTable table(
      {answer(fprop(1, 16), 1, Validity::borrowed), answer(fprop(17, 32), 2, Validity::valid)});
  CHECK(table.find(fprop(1, 16)).match == Match::borrowed);
  CHECK(tile_of(table.find(fprop(1, 16))) == 1);  // the same range rather than a neighbour
  CHECK(tile_of(table.find(fprop(40, 40))) == 2);
}

TEST_CASE("lookup_table.the order of answers does not matter") {
  std::vector<Answer> answers;
  for (std::int64_t i = 0; i < 40; ++i)
    answers.push_back(
        answer(fprop(1 + i, 100 + 3 * i), i, i % 3 ? Validity::valid : Validity::stale));
  const LookupTable forward(answers);
  std::reverse(answers.begin(), answers.end());
  const LookupTable backward(answers);
  for (std::int64_t m = 1; m < 300; m += 7)
    CHECK(tile_of(forward.find(fprop(m, m))) == tile_of(backward.find(fprop(m, m))));
}

TEST_CASE("lookup_table.thousands of problems, each found") {
  std::vector<Answer> answers;
  for (std::int64_t i = 0; i < 3000; ++i) answers.push_back(answer(fprop(1, 16, 32 * (i + 1)), i));
  const LookupTable table(answers);
  for (std::int64_t i = 0; i < 3000; ++i) {
    const auto found = table.find(fprop(1, 16, 32 * (i + 1)));
    REQUIRE(found.match == Match::exact);
    REQUIRE(tile_of(found) == i);
  }
  CHECK(table.find(fprop(1, 16, 33)).answer == nullptr);

  const auto start = std::chrono::steady_clock::now();
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < 300000; ++i)
    sum +=
        table.find(answers[static_cast<std::size_t>(i * 7 % 3000)].problem).match == Match::exact;
  const auto ns =
      std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() /
      300000;
  CHECK(sum == 300000);
  MESSAGE(ns << " ns a look-up among 3000 answers");
}

TEST_CASE("layers.pins are read line by line, and bad lines are named") {
  LoadedLayers layers;
  parse_pins(
      "# what production runs\n"
      "\n"
      "op=gemm m=1..16 n=64 k=64 -> gemm=cpu_gemm/1{tile_m=4}\r\n"
      "op=gemm m=1..16\n"
      "op=nonsense -> gemm=cpu_gemm/1{}\n"
      "op=gemm -> gemm\n",
      "pins.txt", layers);
  REQUIRE(layers.answers.size() == 1);
  CHECK(layers.answers[0].problem.m == Extent{1, 16});
  CHECK(layers.answers[0].plan.text() == "gemm=cpu_gemm/1{tile_m=4}");
  CHECK(layers.answers[0].layer == Layer::pin);
  REQUIRE(layers.notes.size() == 3);
  CHECK(layers.notes[0].find("pins.txt:4:") == 0);
  CHECK(layers.notes[1].find("pins.txt:5:") == 0);
  CHECK(layers.notes[2].find("pins.txt:6:") == 0);
}
