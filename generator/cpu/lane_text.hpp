// The vectors of MX blocks that quantising kernels compute in: their names in kernel text.
#pragma once

#include <string>
#include <string_view>

#include "generator/cpu/kernel_text.hpp"
#include "templates/cpu/quantize_parts.h"

namespace quarterturn::cpu {

/// "qt::cpu::Avx512Lanes"
constexpr std::string_view lanes_type(Isa isa) {
  return isa == Isa::avx512 ? "qt::cpu::Avx512Lanes"
         : isa == Isa::avx2 ? "qt::cpu::Avx2Lanes"
                            : "qt::cpu::PortableLanes";
}

/// The text that defines it.
constexpr std::string_view lanes_text(Isa isa) {
  return isa == Isa::avx512 ? "cpu/primitives_lanes_avx512.h"
         : isa == Isa::avx2 ? "cpu/primitives_lanes_avx2.h"
                            : "cpu/primitives_lanes.h";
}

/// "qt::cpu::Layout::plain"
inline std::string layout_text(Layout layout) {
  return "qt::cpu::Layout::" + std::string(name_of(layout));
}

/// Predicted cost of a kernel that moves `bytes` for each element in the given parts: the bytes,
/// what slower instructions add, each start of a row in a tile, each part, and the last part, which
/// others wait for. In bytes moved.
constexpr double moving_cost(const qt::cpu::QuantizeParts& parts, double bytes, Isa isa) {
  const double slowness = isa == Isa::avx512 ? 0 : isa == Isa::avx2 ? 0.5 : 16;
  const double work =
      static_cast<double>(parts.m) * static_cast<double>(parts.k) * (bytes + slowness);
  const double starts = static_cast<double>(parts.m) *
                        static_cast<double>(qt::cpu::QuantizeParts::tiles(parts.k, parts.tile_k));
  const double count = static_cast<double>(parts.per_entry());
  return count > 0 ? work + 1024 * starts + 2048 * count + work / count : 0;
}

}  // namespace quarterturn::cpu
