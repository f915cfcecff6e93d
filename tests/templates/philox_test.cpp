// Philox against the vectors that the Random123 library publishes (its tests/kat_vectors).
#include "mxfp4/philox.h"

#include <doctest/doctest.h>

using namespace qt;

namespace {

struct Vector {
  u32 counter[4], key[2], out7[4], out10[4];
};

constexpr Vector kVectors[] = {
    {{0, 0, 0, 0},
     {0, 0},
     {0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48},
     {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{~0u, ~0u, ~0u, ~0u},
     {~0u, ~0u},
     {0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

template <int rounds>
Philox call(const Vector& v) {
  return philox4x32<rounds>(v.counter[0], v.counter[1], v.counter[2], v.counter[3], v.key[0],
                            v.key[1]);
}

}  // namespace

TEST_CASE("philox.published vectors of 7 rounds") {
  for (const auto& v : kVectors)
    for (int w = 0; w < 4; ++w) CHECK(call<7>(v).word[w] == v.out7[w]);
}

TEST_CASE("philox.published vectors of 10 rounds") {
  for (const auto& v : kVectors)
    for (int w = 0; w < 4; ++w) CHECK(call<10>(v).word[w] == v.out10[w]);
}
