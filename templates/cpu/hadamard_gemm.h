// D = alpha * quantise(A) * B^T + beta * C + bias in one kernel, B being a prepared weight: each
// part rotates and quantises its own rows of A into its share of the workspace, then multiplies
// them.
//
// Codes and scales are those that a quantise step writes, and the product is cpu/gemm.h's, so the
// result has the same bits as the two steps one after the other.
#ifndef QT_CPU_HADAMARD_GEMM_H
#define QT_CPU_HADAMARD_GEMM_H

#include "cpu/gemm.h"
#include "cpu/quantize.h"

namespace qt {
namespace cpu {

/// The part of a Config that the quantiser reads, for A's rows into int8_blocks.
template <class Config>
struct QuantizeRows {
  using Isa = typename Config::Lanes;
  static constexpr i64 m = 0, k = 0;
  static constexpr DType a_type = Config::a_type;
  static constexpr Copies copies = Copies::rows;
  static constexpr Layout d_layout = Layout::int8_blocks;
  static constexpr int rotation = Config::rotation;
  static constexpr Signs signs = Config::signs;
  static constexpr ScaleRule scale_rule = Config::scale_rule;
  static constexpr ScaleBlock scale_block = ScaleBlock::b1x32;
  static constexpr Rounding rounding = Config::rounding;
  static constexpr Prologue prologue = Prologue::none;
};

/// Quantises rows [d.row, d.row + d.rows) of A into `codes` and `scales`, from their first row on.
template <class Config>
QT_CPU_NOINLINE void quantize_rows(const qt_args* args, const PartOfD& d, i64 k, i64 blocks,
                                   u8* codes, u8* scales) {
  constexpr QuantizeRows<Config> config;
  const i64 first = d.batch * args->a.batch_stride + d.row * args->a.ld;
  const Copy copy = {static_cast<const u8*>(args->a.data) + first * bytes_of(config.a_type),
                     config.a_type,
                     args->a.ld,
                     1,
                     d.rows,
                     k,
                     {Layout::int8_blocks, codes, scales, 0, 0, blocks},
                     noise_of(*args, 0, 0),
                     args->row0 + d.row,
                     args->k0,
                     args->k_global > 0 ? args->k_global : k};
  quantize_range(config, copy, sign_mask(config, args), {0, d.rows, 0, blocks});
}

template <class Config>
QT_FN void hadamard_gemm(const Config& config, const qt_args* args, i64 part) {
  const FloatMode mode;
  const i64 m = config.m ? config.m : args->m;
  const i64 n = config.n ? config.n : args->n;
  const i64 k = config.k ? config.k : args->k;
  const i64 blocks = (k + config.k_unit - 1) / config.k_unit * config.k_unit / kBlock;
  const i64 columns = part_columns(config, n);
  const PartOfD d =
      part_of_d(GemmParts::of(m, columns, Config::block_m, Config::part_n), m, columns, part);
  const QuantizedRows room = QuantizedRows::of(m, blocks, Config::block_m);
  u8* codes = static_cast<u8*>(args->workspace) + part * room.bytes();
  u8* scales = codes + room.code_bytes;
  quantize_rows<Config>(args, d, k, blocks, codes, scales);
  multiply_part(config, args, d, n, blocks,
                {reinterpret_cast<const i8*>(codes), reinterpret_cast<const Int8Scale*>(scales),
                 blocks * kBlock, blocks},
                {d.batch, 0, blocks});
}

}  // namespace cpu
}  // namespace qt

#endif
