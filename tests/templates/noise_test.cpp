// Noise and signs: where each draw comes from, by values computed outside this code base.
#include "mxfp4/noise.h"

#include <doctest/doctest.h>

#include <set>
#include <tuple>

#include "mxfp4/signs.h"

using namespace qt;

namespace {

struct Draw {
  Rounding rounding;
  u64 seed;
  u32 stream, lane;
  u64 position;
  u32 r;
};

// From a Philox written in Python with unbounded integers, checked against the published vectors.
constexpr Draw kDraws[] = {
    {Rounding::sr16, 0x0ull, 0x0u, 0u, 0x0ull, 0x2dc260u},
    {Rounding::sr16, 0x123456789abcdefull, 0xdeadbeefu, 5u, 0x7ull, 0x250620u},
    {Rounding::sr16, 0x123456789abcdefull, 0xdeadbeefu, 5u, 0x123456789abcdull, 0x34d7a0u},
    {Rounding::sr16, 0xffffffffffffffffull, 0x1u, 1u, 0x1000000021ull, 0x381da0u},
    {Rounding::sr22, 0x0ull, 0x0u, 0u, 0x0ull, 0x17dbedu},
    {Rounding::sr22, 0x123456789abcdefull, 0xdeadbeefu, 5u, 0x7ull, 0x1c6106u},
    {Rounding::sr22, 0x123456789abcdefull, 0xdeadbeefu, 5u, 0x123456789abcdull, 0x12192eu},
    {Rounding::sr22, 0xffffffffffffffffull, 0x1u, 1u, 0x1000000021ull, 0x38a91au},
    {Rounding::sr8, 0x0ull, 0x0u, 0u, 0x0ull, 0x024000u},
    {Rounding::sr8, 0x123456789abcdefull, 0xdeadbeefu, 5u, 0x7ull, 0x35c000u},
    {Rounding::sr8, 0x123456789abcdefull, 0xdeadbeefu, 5u, 0x123456789abcdull, 0x3d4000u},
    {Rounding::sr8, 0xffffffffffffffffull, 0x1u, 1u, 0x1000000021ull, 0x008000u},
};

u32 draw_at(Rounding rounding, const Noise& noise, u64 position) {
  if (rounding == Rounding::sr16) return noise_at<Rounding::sr16>(noise, position);
  if (rounding == Rounding::sr22) return noise_at<Rounding::sr22>(noise, position);
  return noise_at<Rounding::sr8>(noise, position);
}

template <Rounding rounding>
void check_blocks() {
  const Noise noise{0xfeedfacecafebeefull, 42u, noise_lane(1, 1)};
  for (const u64 position :
       {0ull, 16ull, 32ull, 4096ull, 0xfffffff0ull * 16ull, 0x123456789abc0ull}) {
    u32 r[32];
    noise_block<rounding>(noise, position, r);
    for (u32 j = 0; j < 32; ++j) CHECK(r[j] == noise_at<rounding>(noise, position + j));
  }
}

}  // namespace

TEST_CASE("noise.draws of known places") {
  for (const auto& d : kDraws) {
    INFO("position ", d.position, " rounding ", int(d.rounding));
    CHECK(draw_at(d.rounding, {d.seed, d.stream, d.lane}, d.position) == d.r);
  }
}

TEST_CASE("noise.a block's draws are its elements' draws") {
  check_blocks<Rounding::sr16>();
  check_blocks<Rounding::sr22>();
  check_blocks<Rounding::sr8>();
}

TEST_CASE("noise.position is that of the whole operand, whatever the shard") {
  CHECK(noise_position(0, 0, 0, 0, 32) == 0);
  CHECK(noise_position(1, 0, 0, 0, 33) == 64);  // K rounds up to whole blocks
  CHECK(noise_position(1, 5, 0, 0, 4096) == 4096 + 5);
  for (i64 i = 0; i < 3; ++i)
    for (i64 k = 0; k < 64; ++k)
      CHECK(noise_position(i + 7, k + 96, 0, 0, 1000) == noise_position(i, k, 7, 96, 1000));
  // Beyond 32 bits.
  CHECK(noise_position(5, 1, 1ll << 20, 0, 1 << 20) == ((1ull << 20) + 5) * (1ull << 20) + 1);
}

TEST_CASE("noise.copies, operands, streams and seeds draw apart") {
  std::set<std::tuple<u32, u32, u32, u32>> calls;
  int count = 0;
  for (const u64 seed : {0ull, 1ull, 1ull << 32})
    for (u32 stream = 0; stream < 3; ++stream)
      for (u32 operand = 0; operand < 2; ++operand)
        for (u32 transposed = 0; transposed < 2; ++transposed)
          for (const u64 call : {0ull, 1ull, 1ull << 32}) {
            const Philox p = noise_call({seed, stream, noise_lane(operand, transposed)}, call);
            calls.insert({p.word[0], p.word[1], p.word[2], p.word[3]});
            ++count;
          }
  CHECK(int(calls.size()) == count);
  CHECK(noise_lane(1, 1) == 5u);
}

TEST_CASE("signs.mask of a known seed") {
  const SignMask mask = sign_mask_from_seed(0x0123456789abcdefull);
  const u32 expected[8] = {0x129846d2u, 0x611f57a3u, 0x51f4d663u, 0xfe60977fu,
                           0x41a217f0u, 0xc955615cu, 0xbc39bcadu, 0x7dab093eu};
  for (int w = 0; w < 8; ++w) CHECK(mask.word[w] == expected[w]);
}

TEST_CASE("signs.bit j flips element j and nothing else") {
  for (u32 j = 0; j < 256; ++j) {
    SignMask mask{};
    mask.word[j / 32] = 1u << (j % 32);
    for (u32 i = 0; i < 256; ++i) CHECK(flip_sign(3.0f, mask, i) == (i == j ? -3.0f : 3.0f));
  }
}
