// cpu_gemm/1{block_k=512,block_m=48,decode=0,isa=512,part_n=96,prefetch=4,tile_m=6,tile_n=32}
//   solves role=fprop m=1..16 n=4096 k=14336 a_type=mxfp4 b_type=mxfp4 d_type=f32 rotation=32
//   on     x86-64-v4:avx512_vbmi,avx512_vnni
#include "args.h"
#include "cpu/primitives_avx512.h"
#include "cpu/gemm.h"

struct Config {
  using Isa = qt::cpu::Avx512;
  static constexpr long long m = 0;             // given at run time: 1 to 16
  static constexpr long long n = 4096;
  static constexpr long long k = 14336;
  static constexpr int k_unit = 32;             // operands are padded to a multiple of this along K
  static constexpr qt::Grouping grouping = qt::Grouping::none;  // of rows or tokens by experts
  static constexpr qt::cpu::DType d_type = qt::cpu::DType::f32;  // of D
  static constexpr qt::cpu::DType side_type = qt::cpu::DType::f32;  // of C, bias, aux and z
  static constexpr bool accumulate = false;     // adds beta * C
  static constexpr bool bias = false;           // adds a vector of n
  static constexpr qt::Epilogue epilogue = qt::Epilogue::none;  // from z to D
  static constexpr bool keeps_z = false;        // stores z too
  static constexpr float descale = 1.0f;        // this scale rule needs none
  static constexpr int tile_m = 6;              // rows whose sums stay in registers
  static constexpr int tile_n = 32;             // columns whose sums stay in registers
  static constexpr qt::cpu::Decode decode = qt::cpu::Decode::registers;  // where weights are decoded
  static constexpr int block_m = 48;            // rows of a part
  static constexpr int part_n = 96;             // columns of a part
  static constexpr int block_k = 512;           // K that the buffer holds
  static constexpr int prefetch = 4;            // blocks of K to fetch ahead
};

extern "C" __attribute__((visibility("default"))) void qturn_kernel(const qt_args* args,
                                                                    long long part) {
  qt::cpu::gemm(Config{}, args, part);
}
