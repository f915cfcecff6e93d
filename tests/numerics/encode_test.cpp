// One element's code, under every rounding, for scaled values spread over all of binary32.
#include "mxfp4/e2m1.h"

#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

// Draws at which a carry just happens or just does not, and one of no pattern.
constexpr std::uint32_t kDraws[] = {0, 1, 0x20, 0x1fffff, 0x200000, 0x2a5c13, 0x3fffdf, 0x3fffff};

template <qt::Rounding rounding>
void compare(Differences& differences, std::uint32_t bits, std::uint32_t draw) {
  const float y = from_bits(bits);
  const auto oracle =
      reference::encode(static_cast<double>(y), static_cast<reference::Rounding>(rounding), draw);
  differences.count(qt::e2m1_encode<rounding>(y, draw) == oracle, [&] {
    return fmt::format("{:08x} rounding {} draw {:06x}", bits, int(rounding), draw);
  });
}

void compare_all(Differences& differences, std::uint32_t bits, std::uint32_t draw) {
  compare<qt::Rounding::rne>(differences, bits, draw);
  compare<qt::Rounding::half_away>(differences, bits, draw);
  compare<qt::Rounding::half_to_zero>(differences, bits, draw);
  compare<qt::Rounding::sr16>(differences, bits, draw);
  compare<qt::Rounding::sr22>(differences, bits, draw);
  compare<qt::Rounding::sr8>(differences, bits, draw);
}

}  // namespace

TEST_CASE("encode.a walk through all magnitudes of either sign, Inf included") {
  Differences differences;
  std::uint32_t turn = 0;
  for (std::uint32_t magnitude = 0; magnitude <= 0x7f800000u; magnitude += 2503u) {
    compare_all(differences, magnitude | (turn % 2 << 31), kDraws[turn / 2 % 8]);
    ++turn;
  }
  compare_all(differences, 0x7f800000u, 0);
  compare_all(differences, 0xff800000u, 0x3fffff);
  differences.check(4000000);
}

TEST_CASE("encode.every neighbourhood of a code or a tie") {
  Differences differences;
  for (const double at :
       {0.25, 0.5, 0.75, 1.0, 1.25, 1.5,     1.75,    2.0,     2.5,     3.0,     3.5,
        4.0,  5.0, 6.0,  7.0, 8.0,  0x1p-21, 0x1p-22, 0x1p-23, 0x1p-24, 0x1p-25, 0x1p-126}) {
    const std::uint32_t middle = to_bits(static_cast<float>(at));
    for (std::uint32_t bits = middle - 300; bits <= middle + 300; ++bits)
      for (const std::uint32_t draw : kDraws) {
        compare_all(differences, bits, draw);
        compare_all(differences, bits | 0x80000000u, draw);
      }
  }
  for (std::uint32_t bits = 0; bits < 600; ++bits)  // subnormals and both zeros
    for (const std::uint32_t draw : kDraws) {
      compare_all(differences, bits, draw);
      compare_all(differences, bits | 0x80000000u, draw);
    }
  differences.check(1000000);
}
