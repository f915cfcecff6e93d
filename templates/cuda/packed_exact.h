// Products of an expanded operand A (expand.h) and permuted weights B (permuted.h) whose rows do
// not fit E5M2's window: computed one by one, by plain arithmetic, where the tensor cores' result
// is left out.
#ifndef QT_CUDA_PACKED_EXACT_H
#define QT_CUDA_PACKED_EXACT_H

#include "cuda/epilogue.h"
#include "cuda/permuted.h"
#include "cuda/primitives_wgmma.h"

namespace qt::cuda {

/// Rows that do not fit, computed here since the code was loaded, for qturn_stats.
QT_COUNTER(quarterturn_stand_ins);

namespace packed {

/// Sums as words, and back.
QT_FN u32 word_of(float sum) { return bits_of(sum); }
QT_FN u32 word_of(i32 sum) { return u32(sum); }
QT_FN void add_word(float& sum, u32 word) { sum = sum + float_of(word); }
QT_FN void add_word(i32& sum, u32 word) { sum = sum + i32(word); }

template <int n>
QT_FN void multiply(float (&d)[n], const Words4& a, u64 b, u32 keep) {
  wgmma_e5m2(d, a, b, keep);
}
template <int n>
QT_FN void multiply(i32 (&d)[n], const Words4& a, u64 b, u32 keep) {
  wgmma_s8(d, a, b, keep);
}

/// Element k of a row of A, its scale and all.
template <class Config>
QT_FN float a_value(const u8* row, i64 pitch, u32 reference, u32 k) {
  if (reference == kUnfit) {
    const u32 code = row[k / 2u] >> (4u * (k % 2u)) & 15u;
    return dequantize(code, row[pitch / 2 + k / 32u]);
  }
  const u8 byte = row[expanded_place(k)];
  constexpr bool int8 = Config::element == Expanded::int8;
  const float value = int8 ? float(i32(u32(byte) << 24) >> 24) : f16_to_float(u16(byte << 8));
  return mul(value, reference_value<Config::element>(reference));
}

/// The exact product of one row of each operand, in every lane of a warp.
template <class Config>
QT_FN float exact_product(const qt_args& args, u32 k_chunks, u32 token, u32 weight, u32 a_reference,
                          u32 lane) {
  const i64 pitch = i64(k_chunks) * 128;
  const u8* const a = static_cast<const u8*>(args.a.data) + i64(token) * pitch;
  const u64 first = u64(weight / kStripe) * k_chunks;
  float sum = 0.0f;
  for (u32 block = lane; block < k_chunks * 4u; block += 32u) {
    const u8* const codes =
        static_cast<const u8*>(args.b.data) + (first + block / 4u) * kChunkCodes;
    const u32 byte = static_cast<const u8*>(
        args.b.scales)[(first + block / 4u) * kChunkScales + scale_place(weight, block)];
    for (u32 s = 0; s < 4u; ++s) {
      const u32 word =
          restore_signs(*reinterpret_cast<const u32*>(codes + word_place(weight, block, s)));
      for (u32 e = 0; e < 8u; ++e)
        sum = fma_rn(a_value<Config>(a, pitch, a_reference, block * 32u + s * 8u + e),
                     dequantize((word >> (4u * e)) & 15u, byte), sum);
    }
  }
  QT_UNROLL
  for (u32 step = 16; step > 0; step /= 2) sum = sum + shuffle_xor(sum, step);
  return sum;
}

template <class Config>
QT_FN void store_one(const qt_args& args, u32 token, u32 weight, float v) {
  float bias = 0.0f;
  if constexpr (Config::bias) bias = element<Config::output>(args.bias, weight);
  if constexpr (Config::bias || Config::accumulate)
    v = v + addend<Config>(args, {0, args.m, args.n}, token, weight, bias);
  const i64 at = i64(token) * args.d.ld + weight;
  if constexpr (Config::output == DType::f32) {
    static_cast<float*>(args.d.data)[at] = v;
  } else {
    static_cast<u16*>(args.d.data)[at] = u16(pack_pair<Config::output>(v, 0.0f));
  }
}

/// The products of `weights` rows of B from `weight0` on and `tokens` rows of A from `token0` on,
/// of which one or the other does not fit. A warp computes them together.
template <class Config>
QT_FN void store_unfit(const qt_args& args, u32 k_chunks, const u8* b_references, u32 weight0,
                       u32 weights, u32 token0, u32 tokens, u32 lane) {
  const u8* const a_references = static_cast<const u8*>(args.a.scales);
  const float factor = mul(args.alpha, Config::descale);
  for (u32 i = 0; i < tokens * weights; ++i) {
    const u32 token = token0 + i % tokens, weight = weight0 + i / tokens;
    if (token >= args.m || weight >= args.n) continue;
    const u32 of_token = a_references[token];
    const bool token_unfit = of_token == kUnfit, weight_unfit = b_references[weight] == kUnfit;
    if (!token_unfit && !weight_unfit) continue;
    const float sum = exact_product<Config>(args, k_chunks, token, weight, of_token, lane);
    if (lane == 0) {
      store_one<Config>(args, token, weight, mul(factor, sum));
      // Each row once, by who computes its first product.
      const u32 rows = u32(token_unfit && weight == 0) + u32(weight_unfit && token == 0);
      if (rows > 0) count_event(&quarterturn_stand_ins, rows);
    }
  }
}

}  // namespace packed
}  // namespace qt::cuda

#endif
