// The kernel families of the CPU back end; each is one file here and one in templates/cpu/.
#pragma once

#include <vector>

#include "generator/family.hpp"

namespace quarterturn::cpu {

const Family& gemm();
const Family& weight_only();
const Family& hadamard_gemm();
const Family& quantize();
const Family& pack();
const Family& dequantize();
const Family& hadamard();
const Family& column_sums();

std::vector<const Family*> families();

}  // namespace quarterturn::cpu
