#include "generator/cpu/families.hpp"

namespace quarterturn::cpu {

std::vector<const Family*> families() {
  return {&gemm(), &weight_only(), &hadamard_gemm(), &quantize(),
          &pack(), &dequantize(),  &hadamard(),      &column_sums()};
}

}  // namespace quarterturn::cpu
