// Quantised operands for tests: codes and scale bytes at random, laid out as kernels read them and
// as the oracle does.
#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/elements.h"
#include "cpu/layouts.h"
#include "reference/gemm.hpp"
#include "templates/args.h"

namespace quarterturn::kernels {

/// Bytes at an address that is a multiple of 64, with poisoned bytes on both sides: 0xff makes
/// codes of -12.75 or -6, scale bytes of NaN and floats of NaN, so nobody reads them unnoticed.
class Memory {
 public:
  Memory() = default;
  explicit Memory(std::int64_t bytes, int fill = 0xff)
      : bytes_(bytes), whole_(static_cast<std::size_t>(bytes) + 3 * kGuard, 0xff) {
    std::memset(data(), fill, static_cast<std::size_t>(bytes));
  }
  unsigned char* data() {
    const auto at = reinterpret_cast<std::uintptr_t>(whole_.data()) + kGuard;
    return reinterpret_cast<unsigned char*>((at + 63) / 64 * 64);
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  std::int64_t bytes() const { return bytes_; }
  bool guards_intact() {
    for (const auto* p = whole_.data(); p < data(); ++p)
      if (*p != 0xff) return false;
    for (const auto* p = data() + bytes_; p < whole_.data() + whole_.size(); ++p)
      if (*p != 0xff) return false;
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 4096;
  std::int64_t bytes_ = 0;
  std::vector<unsigned char> whole_;
};

/// codes [rows, blocks * 32], one a byte; bytes [rows, blocks].
struct Operand {
  std::int64_t rows = 0, blocks = 0;
  std::vector<std::uint8_t> codes, bytes;

  Operand() = default;
  /// Elements from `k` on are padding: zero blocks, or zero codes in the last block.
  Operand(std::int64_t rows_, std::int64_t k, std::int64_t unit, std::mt19937& random,
          int least_byte = 110, int most_byte = 130)
      : rows(rows_), blocks((k + unit - 1) / unit * unit / 32) {
    codes.resize(static_cast<std::size_t>(rows * blocks * 32));
    bytes.resize(static_cast<std::size_t>(rows * blocks));
    std::uniform_int_distribution<int> byte(least_byte, most_byte);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < k; ++i) code(r, i) = random() % 16;
      for (std::int64_t b = 0; b * 32 < k; ++b)
        scale(r, b) = static_cast<std::uint8_t>(byte(random));
    }
  }
  /// As the oracle quantised it.
  explicit Operand(const reference::Quantized& x)
      : rows(x.rows),
        blocks(x.k / 32),
        codes(static_cast<std::size_t>(x.rows * x.k)),
        bytes(x.scales) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t i = 0; i < x.k; ++i) code(r, i) = x.code(r, i);
  }
  std::uint8_t& code(std::int64_t row, std::int64_t k) {
    return codes[static_cast<std::size_t>(row * blocks * 32 + k)];
  }
  std::uint8_t code(std::int64_t row, std::int64_t k) const {
    return codes[static_cast<std::size_t>(row * blocks * 32 + k)];
  }
  std::uint8_t& scale(std::int64_t row, std::int64_t block) {
    return bytes[static_cast<std::size_t>(row * blocks + block)];
  }
  std::uint8_t scale(std::int64_t row, std::int64_t block) const {
    return bytes[static_cast<std::size_t>(row * blocks + block)];
  }
  int twice(std::int64_t row, std::int64_t k) const {
    static constexpr int grid[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    return code(row, k) & 8 ? -grid[code(row, k) & 7] : grid[code(row, k) & 7];
  }
};

/// An operand in int8_blocks or panel16.
struct Packed {
  Memory codes, scales;
};

inline Packed int8_blocks(const Operand& x) {
  Packed out{Memory(x.rows * x.blocks * 32), Memory(x.rows * x.blocks * 8)};
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t b = 0; b < x.blocks; ++b) {
      int sum = 0;
      bool all_zero = true;
      for (std::int64_t i = 32 * b; i < 32 * b + 32; ++i) {
        out.codes.as<qt::cpu::i8>()[r * x.blocks * 32 + i] =
            static_cast<qt::cpu::i8>(x.twice(r, i));
        sum += x.twice(r, i);
        all_zero = all_zero && x.twice(r, i) == 0;
      }
      out.scales.as<qt::cpu::Int8Scale>()[r * x.blocks + b] =
          qt::cpu::int8_scale(x.scale(r, b), sum, all_zero);
    }
  return out;
}

inline Packed panel16(const Operand& x) {
  const auto panels = qt::cpu::panels_of(x.rows);
  Packed out{Memory(panels * x.blocks * qt::cpu::kPanelCodes, 0),
             Memory(panels * x.blocks * qt::cpu::kPanelScales, 0)};
  for (std::int64_t r = 0; r < x.rows; ++r)
    for (std::int64_t b = 0; b < x.blocks; ++b) {
      const auto at = qt::cpu::panel_block(r / 16, b, x.blocks);
      for (int i = 0; i < 32; ++i) {
        auto& byte = out.codes.data()[at * qt::cpu::kPanelCodes +
                                      qt::cpu::panel_byte(static_cast<int>(r % 16), i)];
        byte = static_cast<unsigned char>(byte | x.code(r, 32 * b + i) << qt::cpu::panel_shift(i));
      }
      out.scales.data()[at * qt::cpu::kPanelScales + r % 16] = x.scale(r, b);
    }
  return out;
}

/// The operand as the oracle takes it.
inline reference::Quantized plain(const Operand& x) {
  reference::Quantized out;
  out.rows = x.rows;
  out.k = x.blocks * 32;
  out.scales = x.bytes;
  for (std::size_t i = 0; i + 1 < x.codes.size(); i += 2)
    out.codes.push_back(static_cast<std::uint8_t>(x.codes[i] | x.codes[i + 1] << 4));
  return out;
}

}  // namespace quarterturn::kernels
