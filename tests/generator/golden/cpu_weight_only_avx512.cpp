// cpu_weight_only/1{block_m=48,isa=512,part_n=96,prefetch=8,tile_m=8,tile_n=48}
//   solves role=fprop m=1..8 n=5760 k=2880 a_type=bf16 b_type=mxfp4 d_type=bf16 bias=per_column
//   on     x86-64-v4:avx512_vbmi,avx512_vnni
#include "args.h"
#include "cpu/primitives_avx512.h"
#include "cpu/weight_only.h"

struct Config {
  using Isa = qt::cpu::Avx512;
  static constexpr long long m = 0;             // given at run time: 1 to 8
  static constexpr long long n = 5760;
  static constexpr long long k = 2880;
  static constexpr int k_unit = 32;             // operands are padded to a multiple of this along K
  static constexpr qt::Grouping grouping = qt::Grouping::none;  // of rows or tokens by experts
  static constexpr qt::cpu::DType d_type = qt::cpu::DType::bf16;  // of D
  static constexpr qt::cpu::DType side_type = qt::cpu::DType::bf16;  // of C, bias, aux and z
  static constexpr bool accumulate = false;     // adds beta * C
  static constexpr bool bias = true;            // adds a vector of n
  static constexpr qt::Epilogue epilogue = qt::Epilogue::none;  // from z to D
  static constexpr bool keeps_z = false;        // stores z too
  static constexpr qt::cpu::DType a_type = qt::cpu::DType::bf16;  // of A
  static constexpr float descale = 1.0f;        // this scale rule needs none
  static constexpr int tile_m = 8;              // rows whose terms stay in registers
  static constexpr int tile_n = 48;             // columns whose terms stay in registers
  static constexpr int block_m = 48;            // rows of a part
  static constexpr int part_n = 96;             // columns of a part
  static constexpr int prefetch = 8;            // blocks of K to fetch ahead
};

extern "C" __attribute__((visibility("default"))) void qturn_kernel(const qt_args* args,
                                                                    long long part) {
  qt::cpu::weight_only(Config{}, args, part);
}
