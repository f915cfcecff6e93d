// The vectors of MX blocks that quantising kernels compute in: their names in kernel text.
#pragma once

#include <string>
#include <string_view>

#include "generator/cpu/kernel_text.hpp"

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

/// What an instruction set adds to the bytes that an element moves, for predicted costs.
constexpr double slowness(Isa isa) { return isa == Isa::avx512 ? 0 : isa == Isa::avx2 ? 4 : 16; }

}  // namespace quarterturn::cpu
