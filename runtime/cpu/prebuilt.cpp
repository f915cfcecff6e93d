#include "runtime/cpu/prebuilt.hpp"

#include <fmt/format.h>

#include "cpu/gemm.h"
#include "cpu/quantize.h"
#include "runtime/cpu/kernel.hpp"

namespace quarterturn::cpu {
namespace {

// One kernel text under a Config whose values are members: any problem, at the price of looking
// them up.
template <class Config, void (*function)(const Config&, const qt_args*, qt::i64)>
class BuiltIn final : public CpuKernel {
 public:
  explicit BuiltIn(const Config& config) : config_(config) {}

  void run(const ThreadPool& pool, const qt_args& args, std::int64_t parts) const override {
    struct Call {
      const Config* config;
      const qt_args* args;
    } const call{&config_, &args};
    pool.run(
        [](const void* context, std::int64_t part) {
          const auto& now = *static_cast<const Call*>(context);
          function(*now.config, now.args, part);
        },
        &call, parts);
  }

 private:
  Config config_;
};

// The kernel texts spell these as the generator does, in the same order.
template <class To, class From>
To as(From value) {
  return static_cast<To>(static_cast<int>(value));
}
static_assert(static_cast<int>(qt::cpu::DType::mxfp4) == static_cast<int>(DType::mxfp4));
static_assert(static_cast<int>(qt::cpu::Layout::permuted) == static_cast<int>(Layout::permuted));
static_assert(static_cast<int>(qt::ScaleRule::search) == static_cast<int>(ScaleRule::search));
static_assert(static_cast<int>(qt::Rounding::half_to_zero) ==
              static_cast<int>(Rounding::half_to_zero));
static_assert(static_cast<int>(qt::Signs::per_call) == static_cast<int>(Signs::per_call));

struct GemmConfig {
  using Isa = qt::cpu::Portable;
  static constexpr int tile_m = 2, tile_n = 16, block_m = 48, part_n = 96, block_k = 512,
                       prefetch = 0;
  static constexpr qt::cpu::Decode decode = qt::cpu::Decode::buffer;
  qt::i64 m = 0, n = 0, k = 0;
  int k_unit = 32;
  qt::cpu::DType d_type = qt::cpu::DType::f32;
  bool accumulate = false, bias = false;
  float descale = 1.0f;
};

PrebuiltKernel gemm_kernel(const Problem& p, const Variant& wanted) {
  GemmConfig config;
  config.k_unit = static_cast<int>(padding_unit(p));
  config.d_type = as<qt::cpu::DType>(p.d_type);
  config.accumulate = p.accumulate == Accumulate::accumulate;
  config.bias = p.bias == Bias::per_column;
  config.descale = p.scale_rule == ScaleRule::ts34 ? 16.0f / 9.0f : 1.0f;
  Variant variant = wanted;
  variant.values = {{"isa", 0},
                    {"tile_m", GemmConfig::tile_m},
                    {"tile_n", GemmConfig::tile_n},
                    {"decode", static_cast<std::int64_t>(GemmConfig::decode)},
                    {"block_m", GemmConfig::block_m},
                    {"part_n", GemmConfig::part_n},
                    {"block_k", GemmConfig::block_k},
                    {"prefetch", GemmConfig::prefetch}};
  return {std::make_shared<BuiltIn<GemmConfig, qt::cpu::gemm<GemmConfig>>>(config), variant};
}

PrebuiltKernel quantize_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::QuantizeConfig;
  Config config;
  config.a_type = as<qt::cpu::DType>(p.a_type);
  config.copies = as<qt::cpu::Copies>(p.copies);
  config.d_layout = as<qt::cpu::Layout>(p.d_layout);
  config.rotation = p.rotation;
  config.signs = as<qt::Signs>(p.signs);
  config.scale_rule = as<qt::ScaleRule>(p.scale_rule);
  config.scale_block = as<qt::cpu::ScaleBlock>(p.scale_block);
  config.rounding = as<qt::Rounding>(p.a_rounding);
  config.tile_m = static_cast<int>(wanted.value("tile_m"));
  config.tile_k = static_cast<int>(wanted.value("tile_k"));
  return {std::make_shared<BuiltIn<Config, qt::cpu::quantize<Config>>>(config), wanted};
}

}  // namespace

Target portable_target() {
#if defined(__aarch64__)
  return {Vendor::cpu, "aarch64", {}, 0, 0};
#else
  return {Vendor::cpu, "x86-64", {}, 0, 0};
#endif
}

Result<PrebuiltKernel> prebuilt_kernel(const Problem& step, const Variant& wanted) {
  if (wanted.family == "cpu_gemm") return gemm_kernel(step, wanted);
  if (wanted.family == "cpu_quantize") return quantize_kernel(step, wanted);
  return Status(Code::not_supported,
                fmt::format("{} has no form without a compiler", wanted.family));
}

}  // namespace quarterturn::cpu
