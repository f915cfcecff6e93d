// cpu_quantize/1{isa=512,tile_k=2048,tile_m=256}
//   solves op=quantize m=0..8192 k=4096 a_type=bf16 d_type=mxfp4 copies=both rotation=128 signs=per_call a_rounding=sr16
//   on     x86-64-v4:avx512_vbmi,avx512_vnni
#include "args.h"
#include "cpu/primitives_lanes_avx512.h"
#include "cpu/quantize.h"

struct Config {
  using Isa = qt::cpu::Avx512Lanes;             // blocks side by side in registers
  static constexpr long long m = 0;             // given at run time: 0 to 8192
  static constexpr long long k = 4096;
  static constexpr qt::cpu::DType a_type = qt::cpu::DType::bf16;  // elements of X
  static constexpr qt::cpu::Copies copies = qt::cpu::Copies::both;  // of X, of X^T, or of both
  static constexpr qt::cpu::Layout d_layout = qt::cpu::Layout::plain;  // of codes and scales
  static constexpr int rotation = 128;          // elements of a Hadamard segment; 0: none
  static constexpr qt::Signs signs = qt::Signs::per_call;  // flipped before the rotation
  static constexpr qt::ScaleRule scale_rule = qt::ScaleRule::rceil;  // from a block's values to its scale
  static constexpr qt::cpu::ScaleBlock scale_block = qt::cpu::ScaleBlock::b1x32;  // elements that share a scale
  static constexpr qt::Rounding rounding = qt::Rounding::sr16;  // to E2M1
  static constexpr qt::Grouping grouping = qt::Grouping::none;  // of rows or tokens by experts
  static constexpr qt::Prologue prologue = qt::Prologue::none;  // applied to X first
  static constexpr int tile_m = 256;            // rows of X in a part
  static constexpr int tile_k = 2048;           // columns of X in a part
};

extern "C" __attribute__((visibility("default"))) void qturn_kernel(const qt_args* args,
                                                                    long long part) {
  qt::cpu::quantize(Config{}, args, part);
}
