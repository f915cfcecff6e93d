// cpu_gemm: both operands MXFP4, exact block sums in integers. Its kernel text is
// templates/cpu/gemm.h.
#include <fmt/format.h>

#include <algorithm>

#include "generator/cpu/families.hpp"
#include "generator/cpu/kernel_text.hpp"

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
    if (p.grouping != Grouping::none) return "has no grouped form";
    if (p.epilogue != Epilogue::none) return "has no activation in its epilogue";
    if (p.d_layout != Layout::plain) return "writes D row-major";
    if (auto reason = refuse_layout("a_layout", p.a_layout, Layout::int8_blocks); !reason.empty())
      return reason;
    return refuse_layout("b_layout", p.b_layout, Layout::panel16);
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    const bool small = p.m.hi <= 16;
    const auto most_rows = std::max<std::int64_t>(p.m.hi, 1);
    std::vector<std::int64_t> tile_m, block_m;
    for (const std::int64_t rows : {6, 4, 12, 8, 2, 1})
      if (rows == 1 || rows < 2 * most_rows) tile_m.push_back(rows);
    for (const std::int64_t rows : {96, 48, 192, 384})
      if (rows == 48 || rows < 2 * most_rows) block_m.push_back(rows);
    const auto prefer = [](std::vector<std::int64_t> values, std::int64_t first) {
      const auto found = std::find(values.begin(), values.end(), first);
      if (found != values.end()) std::rotate(values.begin(), found, found + 1);
      return values;
    };
    const bool wide = static_cast<Isa>(isas(t).front()) == Isa::avx512;
    tile_m = prefer(std::move(tile_m), small ? (wide ? 12 : 2) : (wide ? 6 : 4));
    return {
        {"isa", isas(t), ParameterStage::compile, "vector width: 512 VNNI, 256 AVX2, 0 portable"},
        {"tile_m", tile_m, ParameterStage::compile, "rows whose sums stay in registers"},
        {"tile_n",
         small || !wide ? std::vector<std::int64_t>{16, 32, 48}
                        : std::vector<std::int64_t>{32, 16, 48},
         ParameterStage::compile, "columns whose sums stay in registers"},
        {"decode",
         small ? std::vector<std::int64_t>{registers, buffer}
               : std::vector<std::int64_t>{buffer, registers},
         ParameterStage::compile, "weights decoded in registers (0) or once into a buffer (1)"},
        {"block_m", block_m, ParameterStage::compile, "rows of a part"},
        {"part_n", {96, 192, 384, 48}, ParameterStage::compile, "columns of a part"},
        {"block_k", {512, 256, 1024}, ParameterStage::compile, "K that the buffer holds"},
        {"prefetch", {0, 4, 8}, ParameterStage::compile, "blocks of K to fetch ahead"},
    };
  }

  std::string illegal(const Problem&, const Target&, const Variant& v) const override {
    const auto panels = v.value("tile_n") / kPanel;
    const auto [count, per_panel] = registers_of(static_cast<Isa>(v.value("isa")));
    // A tile keeps integer and binary32 sums, the codes in hand, one broadcast of A.
    const auto codes = v.value("decode") == registers ? 2 * panels : panels;
    const auto needed = per_panel * (2 * v.value("tile_m") * panels + codes) + 1;
    // AVX2's scales and sums may wait in memory: a load is cheap beside its longer dot products.
    const auto allowed = static_cast<Isa>(v.value("isa")) == Isa::avx512 ? count : 2 * count + 2;
    if (v.value("tile_m") * panels > 1 && needed > allowed)
      return fmt::format("a tile of {} x {} needs {} registers, {} are there", v.value("tile_m"),
                         v.value("tile_n"), needed, allowed);
    if (v.value("decode") == registers && v.value("block_k") != 512)
      return "block_k sizes the buffer: 512 where there is none";
    if (v.value("decode") == buffer && v.value("prefetch") != 0)
      return "prefetch is for decoding in registers: 0 with a buffer";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    const bool ts34 = p.scale_rule == ScaleRule::ts34;
    KernelText text;
    text.alias("Isa", isa_type(isa), "");
    text.dimension("m", p.m);
    text.dimension("n", p.n);
    text.dimension("k", p.k);
    text.integer("k_unit", padding_unit(p), "operands are padded to a multiple of this along K");
    text.constant("qt::cpu::DType", "d_type", dtype_text(p.d_type), "of D, C and bias");
    text.flag("accumulate", p.accumulate == Accumulate::accumulate, "adds beta * C");
    text.flag("bias", p.bias == Bias::per_column, "adds a vector of n");
    text.constant("float", "descale", ts34 ? "16.0f / 9.0f" : "1.0f",
                  ts34 ? "takes 3/4 of TS34 out of both operands" : "scale rule needs no factor");
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
        args.batch * ceil_div(args.m, v.value("block_m")) * ceil_div(args.n, v.value("part_n"));
    return out;
  }

  Layout a_layout(const Problem&, const Variant&) const override { return Layout::int8_blocks; }
  Layout b_layout(const Problem&, const Variant&) const override { return Layout::panel16; }

  // In vector operations of one K block of one panel: 8 dot products and 3 to scale and add for
  // each row, 12 to decode, 9 more to put the decoded codes away.
  double predicted_cost(const Problem& p, const Target&, const Variant& v) const override {
    const auto isa = static_cast<Isa>(v.value("isa"));
    const double width = isa == Isa::avx512 ? 1 : isa == Isa::avx2 ? 3 : 30;
    const auto m = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1));
    const auto tile = static_cast<double>(v.value("tile_m"));
    const auto panels = static_cast<double>(v.value("tile_n")) / kPanel;
    const auto times = [m](double rows) {
      return static_cast<double>(static_cast<std::int64_t>((m + rows - 1) / rows));
    };
    const double decode = v.value("decode") == registers
                              ? 12 * times(tile)
                              : 21 * times(static_cast<double>(v.value("block_m")));
    // Each broadcast of A serves one tile's panels, each load of codes its rows.
    const double loads = 8 * m * (1 / panels + 1 / tile) / 2;
    const double blocks = static_cast<double>(ceil_div(p.k.hi, kBlock) * ceil_div(p.n.hi, kPanel));
    return blocks * width * (11 * m + decode + loads);
  }
};

}  // namespace

const Family& gemm() {
  static const Gemm family;
  return family;
}

}  // namespace quarterturn::cpu
