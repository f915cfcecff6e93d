#include "generator/cpu/families.hpp"

namespace quarterturn::cpu {

std::vector<const Family*> families() { return {&gemm(), &weight_only(), &quantize()}; }

}  // namespace quarterturn::cpu
