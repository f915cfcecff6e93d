// What cuTensorMapEncodeTiled does and refuses, for the simulated device.
#pragma once

#include "templates/simulated/cuda/tensor_map.h"

namespace quarterturn::simulated {

using qt::simulated::TensorMap;

/// False for what the driver would not encode: addresses and strides that are no multiples of 16,
/// boxes above 256 or wider than the swizzle, empty dimensions. Types as CUtensorMapDataType.
bool encode(TensorMap& out, int type, std::uint32_t rank, void* address, const std::uint64_t* sizes,
            const std::uint64_t* strides, const std::uint32_t* box,
            const std::uint32_t* element_steps, int swizzle);

}  // namespace quarterturn::simulated
