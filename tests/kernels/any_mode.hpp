// Quantising kernels with their modes at run time, so that one compilation serves all modes: in
// this program, as the prebuilt kernels are, and compiled for the instruction sets of this machine.
#pragma once

#include <string>
#include <vector>

#include "cpu/dequantize.h"
#include "cpu/hadamard.h"
#include "cpu/pack.h"
#include "cpu/quantize.h"

namespace quarterturn::kernels {

// Members of a run-time Config do not depend on its Isa, so one type fills all.
using QuantizeConfig = qt::cpu::QuantizeConfig<qt::cpu::PortableLanes>;
using PackConfig = qt::cpu::PackConfig<qt::cpu::PortableLanes>;
using DequantizeConfig = qt::cpu::DequantizeConfig<qt::cpu::PortableLanes>;
using HadamardConfig = qt::cpu::HadamardConfig<qt::cpu::PortableLanes>;

struct AnyMode {
  template <class Config>
  using Entry = void (*)(const Config&, const qt_args*, long long part);

  std::string name;
  Entry<QuantizeConfig> quantize = nullptr;
  Entry<PackConfig> pack = nullptr;
  Entry<DequantizeConfig> dequantize = nullptr;
  Entry<HadamardConfig> hadamard = nullptr;
};

/// Portable first, then what this machine has of AVX-512 and AVX2; compiled at the first call.
const std::vector<AnyMode>& any_modes();

}  // namespace quarterturn::kernels
