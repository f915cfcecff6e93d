#include "reference/noise.hpp"

namespace quarterturn::reference {

Words philox4x32(Words counter, std::array<std::uint32_t, 2> key, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

namespace {

Words call_of(const NoiseKey& key, std::uint64_t call) {
  return philox4x32(
      {static_cast<std::uint32_t>(call), static_cast<std::uint32_t>(call >> 32), key.stream,
       key.operand + 4 * key.transposed},
      {static_cast<std::uint32_t>(key.seed), static_cast<std::uint32_t>(key.seed >> 32)}, 7);
}

bool is_of_hardware(Rounding rounding) {
  return rounding == Rounding::sr_cvt_rs || rounding == Rounding::sr_cvt_scalef32;
}

}  // namespace

bool is_stochastic(Rounding rounding) {
  return rounding == Rounding::sr16 || rounding == Rounding::sr22 || rounding == Rounding::sr8 ||
         is_of_hardware(rounding);
}

std::uint32_t word_of_instruction(Rounding rounding, const NoiseKey& key, std::uint64_t position) {
  const std::uint64_t together = rounding == Rounding::sr_cvt_rs ? 4 : 2;
  const std::uint64_t word = position / together;
  return call_of(key, word / 4)[word % 4];
}

std::uint32_t draw_of_instruction(Rounding rounding, std::uint32_t word, std::uint32_t index) {
  if (rounding == Rounding::sr_cvt_scalef32) return word / 1024;
  // Elements 0..3 are the operands f, e, b, a.
  constexpr std::uint32_t bytes[4] = {0, 2, 1, 3};
  return (word >> (8 * bytes[index])) % 256 * 16384;
}

std::uint32_t draw(Rounding rounding, const NoiseKey& key, std::uint64_t position) {
  if (!is_stochastic(rounding)) return 0;
  if (is_of_hardware(rounding))
    return draw_of_instruction(
        rounding, word_of_instruction(rounding, key, position),
        static_cast<std::uint32_t>(position % (rounding == Rounding::sr_cvt_rs ? 4 : 2)));
  const std::uint64_t elements = rounding == Rounding::sr16   ? 8
                                 : rounding == Rounding::sr22 ? 4
                                                              : 16;
  const std::uint64_t call = position / elements;
  const auto index = static_cast<std::uint32_t>(position % elements);
  const Words words = call_of(key, call);
  if (rounding == Rounding::sr22) return words[index] / 1024;
  if (rounding == Rounding::sr16) {
    const std::uint32_t half = index % 2 == 0 ? words[index / 2] % 65536 : words[index / 2] / 65536;
    return half * 64 + 32;
  }
  const std::uint32_t byte = (words[index / 4] >> (8 * (index % 4))) % 256;
  return byte * 16384;
}

}  // namespace quarterturn::reference
