// D in binary32 of a product whose z is exact in binary32, by the activations' defining text.
#pragma once

#include <vector>

#include "generator/problem.hpp"
#include "mxfp4/activation.h"

namespace qturn_test {

/// Of one row of z; `aux` is what a derivative is taken at, [aux_columns].
inline std::vector<float> unquantized_row(quarterturn::Epilogue epilogue,
                                          const std::vector<float>& z, const float* aux) {
  using quarterturn::Epilogue;
  const auto n = z.size();
  std::vector<float> out(static_cast<std::size_t>(
      quarterturn::output_columns(epilogue, static_cast<std::int64_t>(n))));
  const bool split = epilogue == Epilogue::swiglu_split || epilogue == Epilogue::dswiglu;
  for (std::size_t j = 0; j < n; ++j) {
    switch (epilogue) {
      case Epilogue::gelu:
        out[j] = qt::gelu(z[j]);
        break;
      case Epilogue::swiglu_split:
      case Epilogue::swiglu_interleaved:
        if (j < n / 2)
          out[j] = split ? qt::swiglu(z[j], z[n / 2 + j]) : qt::swiglu(z[2 * j], z[2 * j + 1]);
        break;
      case Epilogue::dswiglu:
      case Epilogue::dswiglu_interleaved: {
        const auto gate = split ? j : 2 * j, value = split ? n + j : 2 * j + 1;
        const auto g = qt::swiglu_gradient(z[j], aux[gate], aux[value]);
        out[gate] = g.gate;
        out[value] = g.value;
        break;
      }
      default:
        out[j] = z[j];
    }
  }
  return out;
}

}  // namespace qturn_test
