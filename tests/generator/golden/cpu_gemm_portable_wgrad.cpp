// cpu_gemm/1{block_k=512,block_m=96,decode=1,isa=0,part_n=96,prefetch=0,tile_m=2,tile_n=48}
//   solves role=wgrad m=4096 n=4096 k=0..8192 a_type=mxfp4 b_type=mxfp4 d_type=bf16 rotation=128 scale_rule=ts34 bias=per_column accumulate=accumulate
//   on     aarch64
#include "args.h"
#include "cpu/primitives_portable.h"
#include "cpu/gemm.h"

struct Config {
  using Isa = qt::cpu::Portable;
  static constexpr long long m = 4096;
  static constexpr long long n = 4096;
  static constexpr long long k = 0;             // given at run time: 0 to 8192
  static constexpr int k_unit = 128;            // operands are padded to a multiple of this along K
  static constexpr qt::Grouping grouping = qt::Grouping::none;  // of rows or tokens by experts
  static constexpr qt::cpu::DType d_type = qt::cpu::DType::bf16;  // of D
  static constexpr qt::cpu::DType side_type = qt::cpu::DType::bf16;  // of C, bias, aux and z
  static constexpr bool accumulate = true;      // adds beta * C
  static constexpr bool bias = true;            // adds a vector of n
  static constexpr qt::Epilogue epilogue = qt::Epilogue::none;  // from z to D
  static constexpr bool keeps_z = false;        // stores z too
  static constexpr float descale = 16.0f / 9.0f;  // takes 3/4 of TS34 out of both operands
  static constexpr int tile_m = 2;              // rows whose sums stay in registers
  static constexpr int tile_n = 48;             // columns whose sums stay in registers
  static constexpr qt::cpu::Decode decode = qt::cpu::Decode::buffer;  // where weights are decoded
  static constexpr int block_m = 96;            // rows of a part
  static constexpr int part_n = 96;             // columns of a part
  static constexpr int block_k = 512;           // K that the buffer holds
  static constexpr int prefetch = 0;            // blocks of K to fetch ahead
};

extern "C" __attribute__((visibility("default"))) void qturn_kernel(const qt_args* args,
                                                                    long long part) {
  qt::cpu::gemm(Config{}, args, part);
}
