// Reading 32 consecutive high-precision elements as binary32, whatever their type and alignment.
#ifndef QT_CUDA_LOAD_H
#define QT_CUDA_LOAD_H

#include "cuda/primitives.h"
#include "mxfp4/types.h"

namespace qt::cuda {

/// The spelling and the order are those of the generator's DType.
enum class DType { none, bf16, f16, f32 };

QT_FN constexpr int bytes_of(DType type) { return type == DType::f32 ? 4 : 2; }

/// Element `half` (0 low, 1 high) of two packed 16-bit ones.
template <DType type>
QT_FN float half_of(u32 pair, int half) {
  if constexpr (type == DType::bf16) return float_of(half ? pair & 0xffff0000u : pair << 16);
  return f16_to_float(u16(half ? pair >> 16 : pair));
}

template <DType type>
QT_FN float element(const void* base, i64 index) {
  if constexpr (type == DType::f32) return static_cast<const float*>(base)[index];
  return half_of<type>(static_cast<const u16*>(base)[index], 0);
}

/// Four neighbours in the words they were read as.
template <DType type>
struct Four {
  u32 word[bytes_of(type)];

  QT_FN float value(int e) const {
    if constexpr (type == DType::f32) return float_of(word[e]);
    return half_of<type>(word[e / 2], e % 2);
  }
};

/// Four neighbours at a place that is a multiple of their size.
template <DType type>
QT_FN Four<type> load_four(const u8* from) {
  Four<type> out;
  if constexpr (type == DType::f32) {
    const Words4 words = load_global(reinterpret_cast<const Words4*>(from));
    QT_UNROLL
    for (int e = 0; e < 4; ++e) out.word[e] = words.word[e];
  } else {
    const Words2 words = load_global(reinterpret_cast<const Words2*>(from));
    QT_UNROLL
    for (int e = 0; e < 2; ++e) out.word[e] = words.word[e];
  }
  return out;
}
template <DType type>
QT_FN void load_four(const u8* from, float (&v)[4]) {
  const Four<type> four = load_four<type>(from);
  QT_UNROLL
  for (int e = 0; e < 4; ++e) v[e] = four.value(e);
}

/// 32 elements in the words they were read as.
template <DType type>
struct Raw {
  static constexpr int words = 8 * bytes_of(type);
  u32 word[words];

  QT_FN float value(int j) const {
    if constexpr (type == DType::f32) return float_of(word[j]);
    return half_of<type>(word[j / 2], j % 2);
  }
};

/// `valid` of 32 elements from `from` on; the rest are zero. `aligned`: every such start is at a
/// multiple of 16 bytes.
template <DType type>
QT_FN void load_block(Raw<type>& raw, const void* base, i64 from, int valid, bool aligned) {
  if (aligned && valid >= 32) {
    const Words4* at =
        reinterpret_cast<const Words4*>(static_cast<const u8*>(base) + from * bytes_of(type));
    QT_UNROLL
    for (int i = 0; i < Raw<type>::words / 4; ++i) {
      const Words4 v = load_words(at + i);
      QT_UNROLL
      for (int w = 0; w < 4; ++w) raw.word[4 * i + w] = v.word[w];
    }
    return;
  }
  QT_UNROLL
  for (int w = 0; w < Raw<type>::words; ++w) {
    if constexpr (type == DType::f32) {
      raw.word[w] = w < valid ? static_cast<const u32*>(base)[from + w] : 0u;
    } else {
      const u16* at = static_cast<const u16*>(base) + from;
      const u32 low = 2 * w < valid ? at[2 * w] : 0u;
      const u32 high = 2 * w + 1 < valid ? at[2 * w + 1] : 0u;
      raw.word[w] = low | high << 16;
    }
  }
}

/// Whether rows of `ld` elements at `base` all start at multiples of 16 bytes.
template <DType type>
QT_FN bool is_aligned(const void* base, i64 ld) {
  return ((reinterpret_cast<u64>(base) | u64(ld) * u64(bytes_of(type))) & 15u) == 0;
}

}  // namespace qt::cuda

#endif
