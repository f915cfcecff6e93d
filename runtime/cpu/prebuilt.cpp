#include "runtime/cpu/prebuilt.hpp"

#include <fmt/format.h>

#include "cpu/column_sums.h"
#include "cpu/dequantize.h"
#include "cpu/gemm.h"
#include "cpu/hadamard.h"
#include "cpu/pack.h"
#include "cpu/primitives_lanes.h"
#include "cpu/quantize.h"
#include "cpu/weight_only.h"
#include "generator/grouping.hpp"
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
static_assert(static_cast<int>(qt::cpu::Layout::bf16) == static_cast<int>(Layout::bf16));
static_assert(static_cast<int>(qt::ScaleRule::search) == static_cast<int>(ScaleRule::search));
static_assert(static_cast<int>(qt::Rounding::sr_cvt_scalef32) ==
              static_cast<int>(Rounding::sr_cvt_scalef32));
static_assert(static_cast<int>(qt::Grouping::k_grouped) == static_cast<int>(Grouping::k_grouped));
static_assert(static_cast<int>(qt::Epilogue::dswiglu_interleaved) ==
              static_cast<int>(Epilogue::dswiglu_interleaved));
static_assert(static_cast<int>(qt::Prologue::swiglu_interleaved) ==
              static_cast<int>(Prologue::swiglu_interleaved));
static_assert(static_cast<int>(qt::Signs::per_call) == static_cast<int>(Signs::per_call));

// What the two products have in common. Their tiles are constants of the Configs.
template <class Config>
Config product_config(const Problem& p, float descale_ts34) {
  Config config;
  config.k_unit = static_cast<int>(unit_of(p));
  config.grouping = as<qt::Grouping>(p.grouping);
  config.d_type = as<qt::cpu::DType>(p.d_type);
  config.accumulate = p.accumulate == Accumulate::accumulate;
  config.bias = p.bias == Bias::per_column;
  config.side_type = as<qt::cpu::DType>(side_type(p));
  config.epilogue = as<qt::Epilogue>(p.epilogue);
  config.keeps_z = p.pre_activation == PreActivation::kept;
  config.descale = p.scale_rule == ScaleRule::ts34 ? descale_ts34 : 1.0f;
  return config;
}

Variant with_values(Variant variant, std::map<std::string, std::int64_t> values) {
  variant.values = std::move(values);
  return variant;
}

PrebuiltKernel gemm_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::GemmConfig;
  const auto config = product_config<Config>(p, 16.0f / 9.0f);
  return {std::make_shared<BuiltIn<Config, qt::cpu::gemm<Config>>>(config),
          with_values(wanted, {{"isa", 0},
                               {"tile_m", Config::tile_m},
                               {"tile_n", Config::tile_n},
                               {"decode", static_cast<std::int64_t>(Config::decode)},
                               {"block_m", Config::block_m},
                               {"part_n", Config::part_n},
                               {"block_k", Config::block_k},
                               {"prefetch", Config::prefetch}})};
}

PrebuiltKernel weight_only_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::WeightOnlyConfig;
  auto config = product_config<Config>(p, 4.0f / 3.0f);
  config.a_type = as<qt::cpu::DType>(p.a_type);
  return {std::make_shared<BuiltIn<Config, qt::cpu::weight_only<Config>>>(config),
          with_values(wanted, {{"isa", 0},
                               {"tile_m", Config::tile_m},
                               {"tile_n", Config::tile_n},
                               {"block_m", Config::block_m},
                               {"part_n", Config::part_n},
                               {"prefetch", Config::prefetch}})};
}

PrebuiltKernel quantize_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::QuantizeConfig<qt::cpu::PortableLanes>;
  Config config;
  config.a_type = as<qt::cpu::DType>(p.a_type);
  config.copies = as<qt::cpu::Copies>(p.copies);
  config.d_layout = as<qt::cpu::Layout>(p.d_layout);
  config.rotation = p.rotation;
  config.signs = as<qt::Signs>(p.signs);
  config.scale_rule = as<qt::ScaleRule>(p.scale_rule);
  config.scale_block = as<qt::cpu::ScaleBlock>(p.scale_block);
  config.rounding = as<qt::Rounding>(p.a_rounding);
  config.grouping = as<qt::Grouping>(p.grouping);
  config.prologue = as<qt::Prologue>(p.prologue);
  config.tile_m = static_cast<int>(wanted.value("tile_m"));
  config.tile_k = static_cast<int>(wanted.value("tile_k"));
  return {std::make_shared<BuiltIn<Config, qt::cpu::quantize<Config>>>(config), wanted};
}

PrebuiltKernel pack_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::PackConfig<qt::cpu::PortableLanes>;
  Config config;
  config.k_unit = static_cast<int>(unit_of(p));
  config.grouping = as<qt::Grouping>(p.grouping);
  config.a_layout = as<qt::cpu::Layout>(p.a_layout);
  config.d_layout = as<qt::cpu::Layout>(p.d_layout);
  config.tile_m = static_cast<int>(wanted.value("tile_m"));
  config.tile_k = static_cast<int>(wanted.value("tile_k"));
  return {std::make_shared<BuiltIn<Config, qt::cpu::pack<Config>>>(config), wanted};
}

PrebuiltKernel dequantize_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::DequantizeConfig<qt::cpu::PortableLanes>;
  Config config;
  config.k_unit = static_cast<int>(padding_unit(p));
  config.a_layout = as<qt::cpu::Layout>(p.a_layout);
  config.d_type = as<qt::cpu::DType>(p.d_type);
  config.tile_m = static_cast<int>(wanted.value("tile_m"));
  config.tile_k = static_cast<int>(wanted.value("tile_k"));
  return {std::make_shared<BuiltIn<Config, qt::cpu::dequantize<Config>>>(config), wanted};
}

PrebuiltKernel hadamard_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::HadamardConfig<qt::cpu::PortableLanes>;
  Config config;
  config.a_type = as<qt::cpu::DType>(p.a_type);
  config.d_type = as<qt::cpu::DType>(p.d_type);
  config.rotation = p.rotation;
  config.signs = as<qt::Signs>(p.signs);
  config.tile_m = static_cast<int>(wanted.value("tile_m"));
  config.tile_k = static_cast<int>(wanted.value("tile_k"));
  return {std::make_shared<BuiltIn<Config, qt::cpu::hadamard<Config>>>(config), wanted};
}

PrebuiltKernel column_sums_kernel(const Problem& p, const Variant& wanted) {
  using Config = qt::cpu::ColumnSumsConfig;
  Config config;
  config.a_type = as<qt::cpu::DType>(p.a_type);
  return {std::make_shared<BuiltIn<Config, qt::cpu::column_sums<Config>>>(config), wanted};
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
  if (wanted.family == "cpu_weight_only") return weight_only_kernel(step, wanted);
  if (wanted.family == "cpu_pack") return pack_kernel(step, wanted);
  if (wanted.family == "cpu_dequantize") return dequantize_kernel(step, wanted);
  if (wanted.family == "cpu_hadamard") return hadamard_kernel(step, wanted);
  if (wanted.family == "cpu_column_sums") return column_sums_kernel(step, wanted);
  if (wanted.family == "cpu_quantize") return quantize_kernel(step, wanted);
  return Status(Code::not_supported,
                fmt::format("{} has no form without a compiler", wanted.family));
}

}  // namespace quarterturn::cpu
