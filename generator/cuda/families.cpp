#include "generator/cuda/families.hpp"

#include <cctype>

namespace quarterturn::cuda {

std::vector<const Family*> families() {
  return {&quantize(),
          &quantize_cvt_rs(),
          &pack(),
          &dequantize(),
          &hadamard(),
          &gemm_e5m2(),
          &gemm_int8(),
          &gemm_bf16(),
          &gemm_sm100(),
          &gemm_sm120(),
          &gemm_mma(),
          &gemm_packed(),
          &gemm_packed_int8(),
          &gemm_packed_bf16(),
          &gemm_packed_tiles(),
          &gemm_packed_tiles_int8(),
          &gemm_packed_tiles_bf16(),
          &stand_in(),
          &column_sums()};
}

int capability(const Target& target) {
  int value = 0;
  for (std::size_t i = 3; i < target.arch.size(); ++i) {
    if (std::isdigit(static_cast<unsigned char>(target.arch[i])) == 0) break;
    value = value * 10 + (target.arch[i] - '0');
  }
  return value;
}

}  // namespace quarterturn::cuda
