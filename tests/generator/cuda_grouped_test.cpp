// Grouped problems (mixtures of experts) on the CUDA back end: which plans there are, what they
// launch, and what is refused.
#include <doctest/doctest.h>

#include <set>

#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"

using namespace quarterturn;

namespace {

Problem experts(Grouping grouping, Contract contract, Spread spread) {
  Problem p;
  p.op = Op::hadamard_gemm;
  p.grouping = grouping;
  p.groups = {1, 16};
  p.n = Extent::exactly(512);
  p.a_type = p.b_type = p.d_type = DType::bf16;
  p.rotation = 32;
  p.contract = contract;
  p.spread = spread;
  if (grouping == Grouping::k_grouped) {
    p.role = Role::wgrad;
    p.m = Extent::exactly(480);
    p.k = {0, 2048};
    p.a_major = p.b_major = Major::rows;
  } else {
    p.role = Role::fprop;
    p.m = {0, 2048};
    p.k = Extent::exactly(480);
  }
  return p;
}

std::set<std::string> families_of(const Problem& p, const char* arch) {
  std::set<std::string> out;
  const auto target = *parse_target(arch);
  for (const auto& plan : plans(p, target, 2000)) {
    CHECK(check_plan(p, target, plan).message() == "");
    out.insert(plan.main_step().variant.family);
  }
  return out;
}

Problem multiply(Grouping grouping, Contract contract, Spread spread) {
  auto p = experts(grouping, contract, spread);
  p.op = Op::gemm;
  p.a_type = p.b_type = DType::mxfp4;
  p.a_major = p.b_major = Major::k;
  return p;
}

qt_args args_of(const Problem& p, std::int64_t tokens, std::int64_t groups) {
  qt_args args{};
  const bool by_tokens = p.grouping == Grouping::k_grouped;
  args.m = by_tokens ? p.m.lo : tokens;
  args.n = p.n.lo;
  args.k = by_tokens ? tokens : p.k.lo;
  args.groups = groups;
  args.batch = entries_of(p, 1, groups).d;
  return args;
}

}  // namespace

TEST_CASE("cuda_grouped.every form has a plan of every family that multiplies expanded rows") {
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked, Grouping::k_grouped}) {
    CAPTURE(name_of(grouping));
    CHECK(families_of(experts(grouping, Contract::fast, Spread::any), "sm_90a") ==
          std::set<std::string>{"cuda_gemm_e5m2", "cuda_gemm_bf16", "cuda_gemm_mma"});
    CHECK(families_of(experts(grouping, Contract::exact, Spread::narrow), "sm_90a") ==
          std::set<std::string>{"cuda_gemm_int8", "cuda_gemm_bf16", "cuda_gemm_mma"});
    CHECK(families_of(experts(grouping, Contract::exact, Spread::any), "sm_80") ==
          std::set<std::string>{"cuda_gemm_mma"});
  }
}

TEST_CASE("cuda_grouped.grids hold the tiles of any sizes that groups may have") {
  const auto target = *parse_target("sm_80");
  const auto& family = cuda::gemm_mma();
  for (const auto grouping : {Grouping::m_contiguous, Grouping::m_masked, Grouping::k_grouped}) {
    const auto p = multiply(grouping, Contract::exact, Spread::any);
    const auto v = family.default_variant(p, target);
    const auto blocks = [&](std::int64_t tokens, std::int64_t groups) {
      const auto launch = family.launch(p, v, args_of(p, tokens, groups), 100);
      return launch.grid[0] * launch.grid[2];
    };
    const auto across = static_cast<std::uint32_t>(ceil_div(p.n.lo, v.value("tile_n")));
    REQUIRE(v.value("tile_m") == 128);
    CAPTURE(name_of(grouping));
    if (grouping == Grouping::m_contiguous) {
      // One row in each but the last: as many tiles as groups, and 128 * 2 - 3 rows in that one.
      CHECK(blocks(256, 4) == 5 * across);
      CHECK(blocks(3, 16) == 3 * across);
      CHECK(blocks(0, 4) == 0);
    } else if (grouping == Grouping::m_masked) {
      CHECK(blocks(130, 4) == 2 * 4 * across);
    } else {
      CHECK(blocks(1000, 4) == ceil_div(480, 128) * 4 * across);
      CHECK(blocks(0, 4) == ceil_div(480, 128) * 4 * across);  // zeros, or beta * C
    }
  }
}

TEST_CASE("cuda_grouped.persistent kernels take no more blocks than the device has units") {
  const auto target = *parse_target("sm_90a");
  const auto p = multiply(Grouping::m_contiguous, Contract::fast, Spread::any);
  const auto& family = cuda::gemm_e5m2();
  auto v = family.default_variant(p, target);
  CHECK(family.launch(p, v, args_of(p, 2048, 16), 132).grid[0] <= 132);
  auto args = args_of(p, 2048, 16);
  args.b.batch_stride = 512 * 512;
  const auto launch = family.launch(p, v, args, 132);
  CHECK(launch.maps[0].sizes[2] == 1);   // A's rows, whatever their groups
  CHECK(launch.maps[1].sizes[2] == 16);  // a matrix of B for each
  CHECK(launch.maps[1].strides_bytes[1] == 512 * 512);
}

TEST_CASE("cuda_grouped.token copies are quantised over their whole length, without tokens too") {
  const auto target = *parse_target("sm_90a");
  for (const auto copies : {Copies::columns, Copies::both})
    for (const int g : {32, 256}) {
      Problem p;
      p.op = Op::quantize;
      p.m = {0, 4096};
      p.k = Extent::exactly(512);
      p.a_type = DType::bf16;
      p.d_type = DType::mxfp4;
      p.rotation = g;
      p.copies = copies;
      p.grouping = Grouping::k_grouped;
      p.groups = {1, 8};
      REQUIRE(validate(p).message() == "");
      REQUIRE(cuda::quantize().refuses(p, target) == "");
      qt_args args{};
      args.k = 512;
      args.batch = 1;
      args.groups = 8;
      const auto v = cuda::quantize().default_variant(p, target);
      CHECK(cuda::quantize().launch(p, v, args, 132).grid[0] > 0);
    }
}

TEST_CASE("cuda_grouped.what groups do not have yet is refused with its reason") {
  const auto target = *parse_target("sm_90a");
  auto p = multiply(Grouping::m_contiguous, Contract::fast, Spread::any);
  CHECK(cuda::gemm_packed().refuses(p, target) == "has no grouped or batched form");
  CHECK(cuda::gemm_packed_tiles().refuses(p, target) == "has no grouped or batched form");
  p.epilogue = Epilogue::gelu;
  for (const Family* family : {&cuda::gemm_e5m2(), &cuda::gemm_mma()})
    CHECK(family->refuses(p, target) == "has no activation in the epilogue of groups");
  Problem permuted;
  permuted.op = Op::pack;
  permuted.m = {1, 64};
  permuted.k = Extent::exactly(512);
  permuted.a_type = permuted.d_type = DType::mxfp4;
  permuted.a_layout = Layout::plain;
  permuted.d_layout = Layout::permuted;
  permuted.grouping = Grouping::m_masked;
  CHECK(cuda::pack().refuses(permuted, target) == "permutes one weight, not a batch");
}
