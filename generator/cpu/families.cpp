#include "generator/cpu/families.hpp"

namespace quarterturn::cpu {

std::vector<const Family*> families() { return {&gemm(), &quantize()}; }

}  // namespace quarterturn::cpu
