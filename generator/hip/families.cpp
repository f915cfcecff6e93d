#include "generator/hip/families.hpp"

#include <fmt/format.h>

namespace quarterturn::hip {

std::vector<const Family*> families() {
  auto out = shared_families();
  out.insert(out.end(), {&gemm_mfma_scale(), &weight_only(), &pack()});
  return out;
}

std::string refuse_target(const Target& target) {
  if (target.vendor != Vendor::amd || target.arch == "gfx950") return {};
  return fmt::format(
      "{} has no MXFP4 matrix cores: of AMD's GPUs, kernels here are for gfx950 (MI350X, MI355X) "
      "alone. Use the CPU there (QTURN_BACKEND=cpu, with memory of the host)",
      target.arch);
}

}  // namespace quarterturn::hip
