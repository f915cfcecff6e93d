// The rotation alone: X [m, k] to D [m, k], each segment of g elements rotated and rounded once to
// D's type.
#ifndef QT_CUDA_HADAMARD_H
#define QT_CUDA_HADAMARD_H

#include "cuda/dequantize.h"
#include "cuda/rotate.h"

namespace qt::cuda {

/// A thread rotates 32 elements, with its neighbours where a segment is longer.
template <class Config>
QT_FN void hadamard(const Config&, const qt_args& args) {
  constexpr int g = Config::rotation;
  const i64 k = Config::k > 0 ? Config::k : args.k;
  const i64 batch = block_index_z();
  const i64 blocks = k / 32;
  const i64 at = i64(block_index()) * Config::threads + thread_index();
  const bool inside = at < args.m * blocks;
  const i64 row = inside ? at / blocks : 0, block = inside ? at % blocks : 0;
  Raw<Config::input> raw;
  load_block<Config::input>(
      raw, args.a.data, batch * args.a.batch_stride + row * args.a.ld + block * 32, inside ? 32 : 0,
      is_aligned<Config::input>(static_cast<const u8*>(args.a.data) +
                                    batch * args.a.batch_stride * bytes_of(Config::input),
                                args.a.ld));
  float x[32];
  QT_UNROLL
  for (int j = 0; j < 32; ++j) x[j] = raw.value(j);
  const SignMask mask = signs_of<Config>(args);
  rotate_over_lanes<g, Config::signs != Signs::none>(x, block_signs<g>(mask, u32(block)),
                                                     thread_index(), 1u);
  const float norm = hadamard_norm(g);
  if (!inside) return;
  QT_UNROLL
  for (int part = 0; part < 4; ++part) {
    float eight[8];
    QT_UNROLL
    for (int e = 0; e < 8; ++e) eight[e] = mul(x[8 * part + e], norm);
    store_eight<Config::output>(
        args.d.data, batch * args.d.batch_stride + row * args.d.ld + block * 32 + part * 8, eight,
        8);
  }
}

}  // namespace qt::cuda

#endif
