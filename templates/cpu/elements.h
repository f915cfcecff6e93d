// High-precision elements in memory: read as binary32, written with one rounding to nearest even.
#ifndef QT_CPU_ELEMENTS_H
#define QT_CPU_ELEMENTS_H

#include "mxfp4/types.h"

namespace qt {
namespace cpu {

/// The spelling and the order are those of the generator's DType.
enum class DType { none, bf16, f16, f32, mxfp4 };

QT_FN float load_element(const void* data, i64 index, DType type) {
  if (type == DType::bf16) return f32_from_bf16(static_cast<const u16*>(data)[index]);
  if (type == DType::f16) return f32_from_f16(static_cast<const u16*>(data)[index]);
  return static_cast<const float*>(data)[index];
}

QT_FN const void* element_at(const void* data, i64 index, DType type) {
  return static_cast<const u8*>(data) + index * (type == DType::f32 ? 4 : 2);
}

QT_FN void store_element(void* data, i64 index, DType type, float value) {
  if (type == DType::bf16)
    static_cast<u16*>(data)[index] = bf16_from_f32(value);
  else if (type == DType::f16)
    static_cast<u16*>(data)[index] = f16_from_f32(value);
  else
    static_cast<float*>(data)[index] = value;
}

}  // namespace cpu
}  // namespace qt

#endif
