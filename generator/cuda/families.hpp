// The kernel families of the CUDA back end; each is one file here and one in templates/cuda/.
#pragma once

#include <vector>

#include "generator/family.hpp"

namespace quarterturn::cuda {

const Family& quantize();
const Family& quantize_cvt_rs();
const Family& gemm_e5m2();
const Family& gemm_int8();
const Family& gemm_bf16();
const Family& gemm_mma();
const Family& gemm_sm100();
const Family& gemm_sm120();
const Family& stand_in();
const Family& gemm_packed();
const Family& gemm_packed_int8();
const Family& gemm_packed_bf16();
const Family& gemm_packed_tiles();
const Family& gemm_packed_tiles_int8();
const Family& gemm_packed_tiles_bf16();
const Family& pack();
const Family& dequantize();
const Family& hadamard();
const Family& column_sums();

std::vector<const Family*> families();

/// The compute capability of an NVIDIA target: 90 for "sm_90a".
int capability(const Target& target);

}  // namespace quarterturn::cuda
