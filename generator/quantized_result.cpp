#include "generator/quantized_result.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace quarterturn {
namespace {

constexpr std::int64_t kMostWaiting = 64 << 10;  // bytes
constexpr double kCopyBytesPerSecond = 2e12;

}  // namespace

std::string refuse_quantized_result(const Problem& p, std::initializer_list<Layout> layouts,
                                    QuantizedCopies copies) {
  if (!quantizes_result(p)) return {};
  if (p.copies != Copies::rows && copies == QuantizedCopies::rows)
    return fmt::format(
        "copies = {}: quantises rows of D where it computes them (a step behind the product takes "
        "columns)",
        name_of(p.copies));
  if (p.scale_block != ScaleBlock::b1x32)
    return fmt::format("scale_block = {}: quantises 1x32 blocks of D where it computes them",
                       name_of(p.scale_block));
  if (std::find(layouts.begin(), layouts.end(), p.d_layout) == layouts.end()) {
    std::vector<std::string_view> names;
    for (const Layout layout : layouts) names.push_back(name_of(layout));
    return fmt::format("d_layout = {}: quantises D into {}", name_of(p.d_layout),
                       fmt::join(names, ", "));
  }
  if (p.epilogue == Epilogue::dswiglu && (!p.n.is_static() || p.n.lo % padding_unit(p) != 0))
    return fmt::format(
        "epilogue = dswiglu with n = {}..{}: its values' gradients begin at column n of D, amid a "
        "block of {} (dswiglu_interleaved has no such place)",
        p.n.lo, p.n.hi, padding_unit(p));
  return {};
}

std::string refuse_quantized_tile(const Problem& p, std::int64_t tile_n) {
  if (!quantizes_result(p)) return {};
  // Those of a split derivative's gates and of its values lie apart.
  const auto neighbours =
      p.epilogue == Epilogue::dswiglu ? tile_n : output_columns(p.epilogue, tile_n);
  if (neighbours % padding_unit(p) == 0) return {};
  return fmt::format("{} neighbouring columns of D in a tile are no whole blocks of {}", neighbours,
                     padding_unit(p));
}

std::string refuse_quantized_columns(const Problem& p, std::int64_t rows) {
  if (!quantizes_result(p) || p.copies == Copies::rows || rows % padding_unit(p) == 0) return {};
  return fmt::format("{} neighbouring rows of D in a tile are no whole blocks of {}", rows,
                     padding_unit(p));
}

std::int64_t quantized_rows_bytes(const Problem& p, std::int64_t rows, std::int64_t tile_n) {
  return quantizes_result(p) ? rows * output_columns(p.epilogue, tile_n) * 4 : 0;
}

std::int64_t quantized_passes(const Problem& p, std::int64_t tile_m, std::int64_t tile_n,
                              std::int64_t most) {
  std::int64_t passes = 1;
  while (passes < std::min<std::int64_t>(most, 4) &&
         quantized_rows_bytes(p, tile_m / passes, tile_n) > kMostWaiting)
    passes *= 2;
  return passes;
}

double quantized_cost(const Problem& p, double cost, double cost_seconds) {
  if (!quantizes_result(p)) return cost;
  const double elements = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
                          static_cast<double>(output_columns(p.epilogue, p.n.hi));
  return std::max(cost - 8 * elements / kCopyBytesPerSecond / cost_seconds, cost / 2);
}

}  // namespace quarterturn
