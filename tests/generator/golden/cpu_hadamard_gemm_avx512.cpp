// cpu_hadamard_gemm/1{block_k=512,block_m=48,decode=0,isa=512,part_n=2112,prefetch=4,tile_m=6,tile_n=32}
//   solves op=hadamard_gemm role=fprop m=1..16 n=4096 k=4096 a_type=bf16 b_type=mxfp4 d_type=bf16 rotation=32 signs=per_call a_rounding=sr16
//   on     x86-64-v4:avx512_vbmi,avx512_vnni
#include "args.h"
#include "cpu/primitives_avx512.h"
#include "cpu/primitives_lanes_avx512.h"
#include "cpu/hadamard_gemm.h"

struct Config {
  using Isa = qt::cpu::Avx512;
  using Lanes = qt::cpu::Avx512Lanes;
  static constexpr long long m = 0;             // given at run time: 1 to 16
  static constexpr long long n = 4096;
  static constexpr long long k = 4096;
  static constexpr int k_unit = 32;             // operands are padded to a multiple of this along K
  static constexpr qt::Grouping grouping = qt::Grouping::none;  // of rows or tokens by experts
  static constexpr qt::cpu::DType d_type = qt::cpu::DType::bf16;  // of D
  static constexpr qt::cpu::DType side_type = qt::cpu::DType::bf16;  // of C, bias, aux and z
  static constexpr bool accumulate = false;     // adds beta * C
  static constexpr bool bias = false;           // adds a vector of n
  static constexpr qt::Epilogue epilogue = qt::Epilogue::none;  // from z to D
  static constexpr bool keeps_z = false;        // stores z too
  static constexpr qt::cpu::DType a_type = qt::cpu::DType::bf16;  // of A
  static constexpr int rotation = 32;           // elements of a Hadamard segment; 0: none
  static constexpr qt::Signs signs = qt::Signs::per_call;  // flipped before the rotation
  static constexpr qt::ScaleRule scale_rule = qt::ScaleRule::rceil;  // from a block's values to its scale
  static constexpr qt::Rounding rounding = qt::Rounding::sr16;  // to E2M1
  static constexpr float descale = 1.0f;        // this scale rule needs none
  static constexpr int tile_m = 6;              // rows whose sums stay in registers
  static constexpr int tile_n = 32;             // columns whose sums stay in registers
  static constexpr qt::cpu::Decode decode = qt::cpu::Decode::registers;  // where weights are decoded
  static constexpr int block_m = 48;            // rows of a part
  static constexpr int part_n = 2112;           // columns of a part
  static constexpr int block_k = 512;           // K that the buffer holds
  static constexpr int prefetch = 4;            // blocks of K to fetch ahead
};

extern "C" __attribute__((visibility("default"))) void qturn_kernel(const qt_args* args,
                                                                    long long part) {
  qt::cpu::hadamard_gemm(Config{}, args, part);
}
