// quantize_segment(), the entry that kernels call, against the reference: every rotation and every
// kind of signs under four pairs of rule and rounding.
#include <algorithm>

#include "mxfp4/block.h"
#include "tests/numerics/compare.hpp"

using namespace quarterturn;
using namespace quarterturn::numerics;

namespace {

template <int g, qt::Signs signs, qt::ScaleRule rule, qt::Rounding rounding>
void compare(Differences& differences, Random& random) {
  constexpr int n = qt::segment_size(g);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const auto x = mixed_matrix(1, n, random);
    reference::QuantizeSpec spec;
    spec.rotation = g;
    spec.signs = static_cast<reference::Signs>(signs);
    spec.rule = static_cast<reference::ScaleRule>(rule);
    spec.rounding = static_cast<reference::Rounding>(rounding);
    spec.sign_seed = random();
    for (auto& word : spec.sign_mask) word = static_cast<std::uint32_t>(random());
    spec.noise = {random(), 11, 1, 1};
    spec.row0 = repeat;
    const auto oracle = reference::quantize(x.data(), 1, n, n, spec);

    float values[n];
    std::copy(x.begin(), x.end(), values);
    qt::SignMask mask = qt::sign_mask_from_seed(spec.sign_seed);
    if (signs == qt::Signs::fixed)
      std::copy(spec.sign_mask.begin(), spec.sign_mask.end(), mask.word);
    const qt::Noise noise = {spec.noise.seed, spec.noise.stream, qt::noise_lane(1, 1)};
    qt::u8 bytes[n / 32];
    qt::u32 packed[n / 8];
    qt::quantize_segment<g, signs, rule, rounding>(
        values, mask, noise, qt::noise_position(0, 0, spec.row0, 0, n), bytes, packed);
    bool equal = std::equal(std::begin(bytes), std::end(bytes), oracle.scales.begin());
    for (std::int64_t j = 0; j < n; ++j)
      equal = equal && (packed[j / 8] >> (4 * (j % 8)) & 15) == oracle.code(0, j);
    differences.count(equal, [&] { return describe(spec); });
  }
}

template <int g, qt::Signs signs>
void compare_pairs(Differences& differences, Random& random) {
  using enum qt::ScaleRule;
  using enum qt::Rounding;
  compare<g, signs, rceil, rne>(differences, random);
  compare<g, signs, ts34, sr16>(differences, random);
  compare<g, signs, search, half_to_zero>(differences, random);
  compare<g, signs, quest, sr8>(differences, random);
}

template <int g>
void compare_signs(Differences& differences, Random& random) {
  compare_pairs<g, qt::Signs::none>(differences, random);
  compare_pairs<g, qt::Signs::fixed>(differences, random);
  compare_pairs<g, qt::Signs::per_call>(differences, random);
}

}  // namespace

TEST_CASE("segment.equals the reference under every rotation and kind of signs") {
  Random random(15);
  Differences differences;
  compare_signs<0>(differences, random);
  compare_signs<16>(differences, random);
  compare_signs<32>(differences, random);
  compare_signs<64>(differences, random);
  compare_signs<128>(differences, random);
  compare_signs<256>(differences, random);
  differences.check(2880);
}
