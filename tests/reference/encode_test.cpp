// Rounding to E2M1: ties by table, nearest by search, stochastic by counting every draw.
#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "reference/formats.hpp"
#include "reference/quantize.hpp"
#include "tests/reference/samples.hpp"

using namespace quarterturn::reference;

namespace {

struct Tie {
  double at;
  int even, away, to_zero;
};

constexpr Tie kTies[] = {{0.25, 0, 1, 0}, {0.75, 2, 2, 1}, {1.25, 2, 3, 2}, {1.75, 4, 4, 3},
                         {2.5, 4, 5, 4},  {3.5, 6, 6, 5},  {5, 6, 7, 6}};

// The number of draws out of 2^bits under which a magnitude rounds up.
int ups(double a, Rounding rounding, int bits) {
  const int below = encode(a, Rounding::sr22, 0);
  int count = 0;
  bool neighbours = true;
  for (std::uint32_t n = 0; n < (1u << bits); ++n) {
    const std::uint32_t draw = rounding == Rounding::sr16  ? (n << 6) | 0x20
                               : rounding == Rounding::sr8 ? n << 14
                                                           : n;
    const int code = encode(a, rounding, draw);
    neighbours = neighbours && (code == below || code == below + 1);
    count += code - below;
  }
  CHECK(neighbours);
  return count;
}

double fraction_of(double a) {
  int low = 0;
  while (low < 6 && kMagnitudes[low + 1] <= a) ++low;
  return (a - kMagnitudes[low]) / (kMagnitudes[low + 1] - kMagnitudes[low]);
}

}  // namespace

TEST_CASE("encode.ties by each rule, and one ulp to either side") {
  for (const auto& tie : kTies)
    for (const int sign : {0, 8}) {
      const double s = sign != 0 ? -1 : 1;
      CHECK(encode(s * tie.at, Rounding::rne, 0) == tie.even + sign);
      CHECK(encode(s * tie.at, Rounding::half_away, 0) == tie.away + sign);
      CHECK(encode(s * tie.at, Rounding::half_to_zero, 0) == tie.to_zero + sign);
      for (const auto rounding : {Rounding::rne, Rounding::half_away, Rounding::half_to_zero}) {
        CHECK(encode(s * std::nextafter(tie.at, 0.0), rounding, 0) == tie.to_zero + sign);
        CHECK(encode(s * std::nextafter(tie.at, 9.0), rounding, 0) == tie.away + sign);
      }
    }
}

TEST_CASE("encode.every code's value is exact under every rounding and draw") {
  for (std::uint8_t code = 0; code < 16; ++code)
    for (const auto rounding : {Rounding::rne, Rounding::sr16, Rounding::sr22, Rounding::sr8,
                                Rounding::half_away, Rounding::half_to_zero})
      for (const std::uint32_t draw : {0u, 0x20u, 0x200000u, 0x3fffe0u, 0x3fffffu})
        CHECK(encode(e2m1_value(code), rounding, draw) == code);
}

TEST_CASE("encode.nearest is the nearest code") {
  Samples random(1);
  for (int n = 0; n < 200000; ++n) {
    const double a = static_cast<float>(6.5 * random.uniform() * std::exp2(-3 * random.uniform()));
    int nearest = 0;
    for (int code = 1; code < 8; ++code)
      if (std::fabs(kMagnitudes[code] - a) < std::fabs(kMagnitudes[nearest] - a)) nearest = code;
    REQUIRE(encode(a, Rounding::rne, 0) == nearest);
    REQUIRE(encode(-a, Rounding::rne, 0) == nearest + 8);
  }
}

TEST_CASE("encode.magnitudes of 6 and more saturate") {
  for (const double a : {6.0, 6.5, 7.999, 8.0, 100.0, 0x1p200})
    for (const auto rounding :
         {Rounding::rne, Rounding::sr16, Rounding::half_away, Rounding::half_to_zero}) {
      CHECK(encode(a, rounding, 0) == 7);
      CHECK(encode(-a, rounding, 0x3fffff) == 15);
    }
}

TEST_CASE("encode.signs are copied, so that a negative value may become -0") {
  CHECK(encode(-0.0, Rounding::rne, 0) == 8);
  CHECK(encode(-0.1, Rounding::rne, 0) == 8);
  CHECK(encode(-0x1p-300, Rounding::sr16, 0x20) == 8);
}

TEST_CASE("encode.stochastic rounding goes up with exactly k / 2^n draws") {
  Samples random(2);
  std::vector<double> values = {1e-3, 0.25,  0.499, 0.5, 0.75,        1.99,   2,
                                3.25, 3.999, 4.001, 5.9, 6 - 0x1p-20, 0x1p-24};
  for (int i = 0; i < 20; ++i) values.push_back(static_cast<float>(6 * random.uniform()));
  for (const double a : values) {
    const double fraction = fraction_of(a);
    // 16 bits and a half: the nearest k, so within half a draw of the truth.
    CHECK(std::fabs(ups(a, Rounding::sr16, 16) - fraction * 65536) <= 0.5 + 1.0 / 64);
    // 8 bits without a half: the next lower k, which is the known bias of hardware that has only 8.
    CHECK(ups(a, Rounding::sr8, 8) == static_cast<int>(std::floor(fraction * 256)));
  }
  for (const double a : {0.499, 1.99, 2.7182817459106445, 5.9}) {
    const double fraction = fraction_of(a);
    CHECK(ups(a, Rounding::sr22, 22) == static_cast<int>(std::floor(fraction * 4194304)));
  }
}
