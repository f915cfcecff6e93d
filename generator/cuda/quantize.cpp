// cuda_quantize: high precision to MXFP4 in one pass, packed or expanded
// (templates/cuda/quantize.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/families.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kBand = 256;        // rows whose work blocks take together
constexpr std::int64_t kTileColumns = 64;  // columns of a column-wise tile

bool expanded(const Problem& p) {
  return p.d_layout == Layout::e5m2 || p.d_layout == Layout::int8_rows;
}

std::int64_t expanded_k(const Problem& p, std::int64_t k) {
  return packed_stride(p.d_layout, round_up(k, padding_unit(p)));
}

class Quantize final : public Family {
 public:
  std::string_view name() const override { return "cuda_quantize"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::nvidia) return "runs on NVIDIA GPUs";
    if (capability(t) < 80) return "needs sm_80 or later";
    if (p.op != Op::quantize) return "quantises: op = quantize";
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (p.scale_block != ScaleBlock::b1x32) return "has no 32x32 scale blocks";
    switch (p.d_layout) {
      case Layout::plain:
      case Layout::scales_128x4:
        return {};
      case Layout::e5m2:
      case Layout::int8_rows:
        if (p.copies != Copies::rows)
          return "expands rows only: the largest scale of a column is known after the last row";
        if (staged_bytes(p, {}, p.k.hi, 1) > t.shared_bytes)
          return fmt::format(
              "expands rows of at most {} elements on {}: a row waits in shared memory",
              t.shared_bytes * 16 / 10, t.key());
        return {};
      default:
        return fmt::format("does not write layout {}", name_of(p.d_layout));
    }
  }

  std::vector<Parameter> parameters(const Problem& p, const Target&) const override {
    std::vector<std::int64_t> threads = {256};
    if (p.copies == Copies::rows) threads.insert(threads.end(), {128, 512});
    return {{"threads", threads, ParameterStage::compile, "of a block"}};
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    if (expanded(p) && staged_bytes(p, v, p.k.hi, teams(p, v)) > t.shared_bytes)
      return "its rows do not fit shared memory";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const std::string name =
        fmt::format("quarterturn_quantize_{}_{}_h{}_{}_{}_{}", name_of(p.copies), name_of(p.a_type),
                    p.rotation, name_of(p.scale_rule), name_of(p.a_rounding), name_of(p.d_layout));
    ConfigText text;
    const auto choice = [&text](std::string_view type, std::string_view field,
                                std::string_view value, std::string_view comment) {
      text.constant(fmt::format("qt::{}", type), field, fmt::format("qt::{}::{}", type, value),
                    comment);
    };
    choice("cuda::DType", "input", name_of(p.a_type), "");
    choice("cuda::Copies", "copies", name_of(p.copies), "rows, columns (transposed), or both");
    choice("cuda::Output", "output",
           p.d_layout == Layout::scales_128x4 ? "scales_128x4" : name_of(p.d_layout),
           "how codes and scales lie");
    text.integer("rotation", p.rotation, "Hadamard segment, 0 for none");
    choice("Signs", "signs", name_of(p.signs), "");
    choice("ScaleRule", "scale_rule", name_of(p.scale_rule), "");
    choice("Rounding", "rounding", name_of(p.a_rounding), "");
    text.dimension("k", p.k);
    text.integer("threads", v.value("threads"), "of a block");
    text.integer("threads_per_row", threads_per_row(p, v), "that share a row in expanded output");
    return text.source(p, t, v, "cuda/quantize.h", "quantize",
                       {name, static_cast<int>(v.value("threads")), 1, {}});
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.block = {static_cast<std::uint32_t>(v.value("threads")), 1, 1};
    std::int64_t blocks = 0;
    if (expanded(p)) {
      blocks = ceil_div(args.m, teams(p, v));
      out.shared_bytes = staged_bytes(p, v, args.k, teams(p, v));
    } else {
      const auto k32 = round_up(args.k, padding_unit(p)) / 32;
      const auto row_parts =
          p.copies == Copies::columns ? 0 : ceil_div(kBand * k32, 2 * v.value("threads"));
      const auto column_parts = p.copies == Copies::rows ? 0 : ceil_div(args.k, kTileColumns);
      blocks = ceil_div(args.m, kBand) * (row_parts + column_parts);
      if (column_parts > 0) out.shared_bytes = kBand * kTileColumns * bytes_of(p.a_type);
    }
    out.grid = {static_cast<std::uint32_t>(blocks), 1, static_cast<std::uint32_t>(args.batch)};
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant& v) const override {
    const double elements = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
                            static_cast<double>(std::max<std::int64_t>(p.k.hi, 1));
    const double copies = p.copies == Copies::both ? 2.0 : 1.0;
    return elements * copies * (v.value("threads") == 256 ? 1.0 : 1.01) * 1e-3;
  }

 private:
  // A row's threads: as few rounds as blocks of 256 threads can, and no more threads than that
  // takes.
  static std::int64_t threads_per_row(const Problem& p, const Variant& v) {
    const auto threads = v.value("threads");
    if (!expanded(p)) return threads;
    const auto blocks = expanded_k(p, p.k.hi) / 32;
    for (std::int64_t team = 32; team < threads; team *= 2)
      if (team >= blocks) return team;
    return threads;
  }
  static std::int64_t teams(const Problem& p, const Variant& v) {
    return v.value("threads") / threads_per_row(p, v);
  }
  // staged_row of expand.h for each team, then 12 bytes a warp.
  static std::int64_t staged_bytes(const Problem& p, const Variant& v, std::int64_t k,
                                   std::int64_t rows) {
    const auto blocks = std::max<std::int64_t>(expanded_k(p, k) / 32, 4);
    const auto scales_at = (blocks - 1) * 16 + (blocks - 1) / 8 * 16 + 16;
    return rows * round_up(scales_at + blocks, 16) + v.value("threads", 256) / 32 * 12;
  }
};

}  // namespace

const Family& quantize() {
  static const Quantize family;
  return family;
}

}  // namespace quarterturn::cuda
