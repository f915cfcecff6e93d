// The kernel families of the HIP back end. Those that only move and round are texts of
// templates/cuda over AMD's primitives; products have files of their own.
#pragma once

#include <string>
#include <vector>

#include "generator/family.hpp"

namespace quarterturn::hip {

const Family& gemm_mfma_scale();
const Family& weight_only();
const Family& pack();
/// quantize, quantize_cvt_scalef32, dequantize, hadamard, column_sums: see on_amd.cpp.
std::vector<const Family*> shared_families();

std::vector<const Family*> families();

/// Why no family of this folder runs on `target`, and what to do; empty for gfx950.
std::string refuse_target(const Target& target);

}  // namespace quarterturn::hip
