// What tests of Blackwell's families on the simulated machine share: devices, operands and addends
// whose binary32 sums are exact in any order.
#pragma once

#include <doctest/doctest.h>

#include "tests/cuda/gemm_calls.hpp"

namespace quarterturn::cuda_test {

inline Device& device(int ordinal) {
  setenv("QTURN_TEST_SIMULATED_CUDA", QTURN_SIMULATED_CUDA, 1);
  std::string why;
  Device* found = Device::find(why, ordinal);
  if (!found) throw std::runtime_error(why);
  return *found;
}
inline Device& sm100() { return device(2); }
inline Device& sm120() { return device(3); }

// What is added and multiplied has few bits, near each other.
inline Quantized exact_operand(std::int64_t rows, std::int64_t k, std::uint32_t seed) {
  Quantized out = random_operand(rows, k, Data::forward, seed);
  std::mt19937 random(seed);
  for (auto& scale : out.scales) scale = static_cast<std::uint8_t>(126 + random() % 3);
  return out;
}

// Operands of all batch entries behind each other.
struct Operands {
  std::vector<Quantized> each;
  std::unique_ptr<Memory> codes, scales;
  qt_tensor tensor{};

  // `behind`: the scales behind a row's last block.
  Operands(Device& device, std::vector<Quantized> matrices, std::uint8_t behind = 0)
      : each(std::move(matrices)) {
    std::vector<std::uint8_t> all_codes, all_scales;
    for (const auto& one : each) {
      const auto tiles = tiles_128x4(one, behind);
      all_codes.insert(all_codes.end(), one.codes.begin(), one.codes.end());
      all_scales.insert(all_scales.end(), tiles.begin(), tiles.end());
    }
    codes = std::make_unique<Memory>(device, all_codes);
    scales = std::make_unique<Memory>(device, all_scales);
    const auto count = static_cast<std::int64_t>(all_scales.size() / each.size());
    tensor = {codes->data(), scales->data(), each[0].k, 0, each[0].rows * each[0].k, count};
  }
  Operands(Device& device, std::int64_t rows, std::int64_t k, std::int64_t batch,
           std::uint32_t seed, std::uint8_t behind)
      : Operands(device, matrices(rows, k, batch, seed), behind) {}

 private:
  static std::vector<Quantized> matrices(std::int64_t rows, std::int64_t k, std::int64_t batch,
                                         std::uint32_t seed) {
    std::vector<Quantized> out;
    for (std::int64_t i = 0; i < batch; ++i)
      out.push_back(exact_operand(rows, k, seed + static_cast<std::uint32_t>(i)));
    return out;
  }
};

inline float value_of(std::mt19937& random) { return static_cast<float>(random() % 17) - 8; }

inline std::vector<unsigned char> values(DType type, std::int64_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<unsigned char> out(static_cast<std::size_t>(count * bytes_of(type)));
  for (std::int64_t i = 0; i < count; ++i)
    put_float(type, out.data() + i * bytes_of(type), value_of(random));
  return out;
}

constexpr Landing kLandings[] = {Landing::late, Landing::eager, Landing::mixed};

}  // namespace quarterturn::cuda_test
