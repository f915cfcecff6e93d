#include "tests/simulated/tensor_map.hpp"

namespace quarterturn::simulated {
namespace {

int element_bytes_of(int type) {
  switch (type) {
    case 0:  // u8
      return 1;
    case 6:  // f16
    case 9:  // bf16
      return 2;
    case 7:  // f32
      return 4;
    default:
      return 0;
  }
}

}  // namespace

bool encode(TensorMap& out, int type, std::uint32_t rank, void* address, const std::uint64_t* sizes,
            const std::uint64_t* strides, const std::uint32_t* box,
            const std::uint32_t* element_steps, int swizzle) {
  const int bytes = element_bytes_of(type);
  if (bytes == 0 || rank < 1 || rank > 5 || swizzle < 0 || swizzle > 3) return false;
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) return false;
  const std::uint32_t span = swizzle == 0 ? 0 : 16u << swizzle;
  if (box[0] * static_cast<std::uint32_t>(bytes) % 16 != 0) return false;
  if (span > 0 && box[0] * static_cast<std::uint32_t>(bytes) > span) return false;
  for (std::uint32_t i = 0; i < rank; ++i)
    if (sizes[i] == 0 || sizes[i] > 0xffffffffu || box[i] == 0 || box[i] > 256 ||
        element_steps[i] != 1)
      return false;
  for (std::uint32_t i = 0; i + 1 < rank; ++i)
    if (strides[i] % 16 != 0 || strides[i] >= std::uint64_t(1) << 40) return false;
  out = {};
  out.magic = TensorMap::kMagic;
  out.rank = static_cast<std::uint8_t>(rank);
  out.element_bytes = static_cast<std::uint8_t>(bytes);
  out.swizzle_bytes = static_cast<std::uint8_t>(span);
  out.address = static_cast<const unsigned char*>(address);
  for (std::uint32_t i = 0; i < rank; ++i) {
    out.sizes[i] = static_cast<std::uint32_t>(sizes[i]);
    out.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i + 1 < rank) out.strides[i] = strides[i];
  }
  return true;
}

}  // namespace quarterturn::simulated
