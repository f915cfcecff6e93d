// cpu_gemm: both operands MXFP4, exact block sums in integers. Its kernel text is
// templates/cpu/gemm.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"
#include "templates/cpu/gemm_parts.h"

namespace quarterturn::cpu {
namespace {

enum Decode : std::int64_t { registers = 0, buffer = 1 };

constexpr std::int64_t kPanel = 16;
constexpr std::int64_t kBlock = 32;

class Gemm : public Family {
 public:
  std::string_view name() const override { return "cpu_gemm"; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::cpu; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::cpu) return "runs on CPUs";
    if (p.op != Op::gemm) return "multiplies quantised operands: op = gemm";
    if (p.a_type != DType::mxfp4 || p.b_type != DType::mxfp4) return "needs both operands in mxfp4";
    return refuse_product(p, Layout::int8_blocks);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    const auto isa = static_cast<Isa>(isas(t).front());
    const bool few = p.m.hi <= 16;
    const auto up_to_m = [&p](std::vector<std::int64_t> rows, std::int64_t least) {
      std::erase_if(rows, [&](std::int64_t r) { return r > least && r >= 2 * p.m.hi; });
      return rows;
    };
    // What was fastest on Sapphire Rapids comes first.
    std::vector<std::int64_t> tile_m{4, 6, 12, 8, 2, 1}, tile_n{48, 32, 16};
    if (few) tile_m = {6, 4, 12, 8, 2, 1};
    if (few && p.m.hi > 2) tile_n = {32, 48, 16};
    if (isa == Isa::avx2) tile_m = {2, 4, 6, 1}, tile_n = {32, 16};
    if (isa == Isa::portable) tile_m = {2, 4, 1}, tile_n = {48, 32, 16};
    return {
        {"isa", isas(t), ParameterStage::compile, "vector width: 512 VNNI, 256 AVX2, 0 portable"},
        {"tile_m", up_to_m(tile_m, 1), ParameterStage::compile,
         "rows whose sums stay in registers"},
        {"tile_n", tile_n, ParameterStage::compile, "columns whose sums stay in registers"},
        {"decode",
         few ? std::vector<std::int64_t>{registers, buffer}
             : std::vector<std::int64_t>{buffer, registers},
         ParameterStage::compile, "weights decoded in registers (0) or once into a buffer (1)"},
        {"block_m", up_to_m({96, 48, 192, 384}, 48), ParameterStage::compile, "rows of a part"},
        {"part_n", {96, 192, 384, 48}, ParameterStage::compile, "columns of a part"},
        {"block_k", {512, 256, 1024}, ParameterStage::compile, "K that the buffer holds"},
        {"prefetch", few ? std::vector<std::int64_t>{4, 0, 8} : std::vector<std::int64_t>{0, 4, 8},
         ParameterStage::compile, "blocks of K to fetch ahead"},
    };
  }

  std::string illegal(const Problem&, const Target&, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    const auto rows = v.value("tile_m"), panels = v.value("tile_n") / kPanel;
    if (v.value("part_n") % v.value("tile_n") != 0)
      return fmt::format("part_n = {} is not a multiple of tile_n = {}", v.value("part_n"),
                         v.value("tile_n"));
    if (isa == Isa::avx512) {
      // Integer and binary32 sums, the codes in hand, one broadcast of A, one scale; decoding keeps
      // its table and both nibbles.
      const bool decodes = v.value("decode") == registers;
      const auto needed = 2 * rows * panels + (decodes ? 2 * panels + 1 : panels) + 2;
      if (needed > 32)
        return fmt::format("a tile of {} x {} needs {} registers, there are 32", rows,
                           v.value("tile_n"), needed);
    } else if (rows > 6) {
      return "16 registers hold no tile this high";
    }
    if (v.value("decode") == registers && v.value("block_k") != 512)
      return "block_k sizes the buffer: 512 where there is none";
    if (v.value("decode") == buffer && v.value("prefetch") != 0)
      return "prefetch is for decoding in registers: 0 with a buffer";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    KernelText text;
    text.alias("Isa", isa_type(isa), "");
    text.product(p);
    text.descale(p.scale_rule == ScaleRule::ts34 ? "16.0f / 9.0f" : "1.0f",
                 "takes 3/4 of TS34 out of both operands");
    text.integer("tile_m", v.value("tile_m"), "rows whose sums stay in registers");
    text.integer("tile_n", v.value("tile_n"), "columns whose sums stay in registers");
    text.constant(
        "qt::cpu::Decode", "decode",
        v.value("decode") == registers ? "qt::cpu::Decode::registers" : "qt::cpu::Decode::buffer",
        "where weights are decoded");
    text.integer("block_m", v.value("block_m"), "rows of a part");
    text.integer("part_n", v.value("part_n"), "columns of a part");
    text.integer("block_k", v.value("block_k"), "K that the buffer holds");
    text.integer("prefetch", v.value("prefetch"), "blocks of K to fetch ahead");
    return text.source(p, t, v, {"args.h", std::string(isa_text(isa)), "cpu/gemm.h"},
                       "qt::cpu::gemm");
  }

  Launch launch(const Problem&, const Variant& v, const qt_args& args,
                std::int64_t) const override {
    Launch out;
    out.parts =
        args.batch *
        qt::cpu::GemmParts::of(args.m, args.n, v.value("block_m"), v.value("part_n")).per_entry();
    return out;
  }

  Layout a_layout(const Problem&, const Variant&) const override { return Layout::int8_blocks; }
  Layout b_layout(const Problem&, const Variant&) const override { return Layout::panel16; }

  // Cycles of AVX-512, where each row's 8 dot products, conversion, multiplication and addition of
  // a panel's block share two ports with decoding, and loads come two a cycle.
  double predicted_cost(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    const double width = isa == Isa::avx512 ? 1.0
                         : isa == Isa::avx2 ? (t.has("avx_vnni") ? 2.0 : 3.5)
                                            : 12.0;
    const auto m = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1));
    const double rows = std::min(m, static_cast<double>(v.value("tile_m")));
    const double panels = static_cast<double>(v.value("tile_n")) / kPanel;
    const bool in_registers = v.value("decode") == registers;
    const double sums = 5.5 * m;
    const double loads = m * (8 / panels + 2 + (in_registers ? 4 : 8) / rows) / 2;
    // Once for each tile; or for each part, where it does not show from 96 rows on.
    const double part = std::min(static_cast<double>(v.value("block_m")), 96.0);
    const double decode = in_registers ? 9 * std::ceil(m / rows) : 30 * std::ceil(m / part);
    return typical(p.batch) * typical(p.n) / kPanel * typical(p.k) / kBlock * width *
           (sums + loads + decode);
  }
};

}  // namespace

const Family& gemm() {
  static const Gemm family;
  return family;
}

}  // namespace quarterturn::cpu
