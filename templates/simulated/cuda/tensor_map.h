// A tensor map as the simulated driver encodes it and simulated copies read it.
#ifndef QT_SIMULATED_CUDA_TENSOR_MAP_H
#define QT_SIMULATED_CUDA_TENSOR_MAP_H

#include <cstdint>

namespace qt::simulated {

struct TensorMap {
  static constexpr std::uint32_t kMagic = 0x70614d54u;
  std::uint32_t magic = 0;
  std::uint8_t rank = 0, element_bytes = 0;
  std::uint8_t swizzle_bytes = 0;  ///< 0, 32, 64, 128: the span that 16-byte pieces move in
  std::uint8_t unused = 0;
  const unsigned char* address = nullptr;
  std::uint32_t sizes[5] = {1, 1, 1, 1, 1};  ///< elements, innermost first
  std::uint16_t box[5] = {1, 1, 1, 1, 1};    ///< elements of one copy
  std::uint64_t strides[4] = {};             ///< bytes, of dimensions 1 and up

  std::uint32_t box_bytes() const {
    std::uint32_t bytes = element_bytes;
    for (const auto extent : box) bytes *= extent;
    return bytes;
  }
};

/// The bits of a shared address that choose the 16-byte piece, mixed with those above them.
inline std::uint32_t swizzled(std::uint32_t at, std::uint32_t span) {
  return at ^ ((at >> 7 & (span / 16 - 1)) << 4);
}

}  // namespace qt::simulated

#endif
