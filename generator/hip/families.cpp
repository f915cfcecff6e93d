#include "generator/hip/families.hpp"

#include <fmt/format.h>

namespace quarterturn::hip {

std::vector<const Family*> families() {
  auto out = shared_families();
  out.push_back(&gemm_mfma_scale());
  return out;
}

std::string refuse_target(const Target& target) {
  if (target.vendor != Vendor::amd || target.arch == "gfx950") return {};
  return fmt::format(
      "needs gfx950 (MI350X, MI355X): {} has no MXFP4 matrix cores; use the CPU back end there "
      "(QTURN_BACKEND=cpu)",
      target.arch);
}

}  // namespace quarterturn::hip
