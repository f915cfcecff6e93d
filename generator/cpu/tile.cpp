#include "generator/cpu/tile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "templates/cpu/gemm_parts.h"

namespace quarterturn::cpu {
namespace {

enum Decode : std::int64_t { registers = 0, buffer = 1 };

}  // namespace

std::vector<std::int64_t> rows_up_to_m(std::vector<std::int64_t> rows, const Problem& p,
                                       std::int64_t least) {
  std::erase_if(rows, [&](std::int64_t r) { return r > least && r >= 2 * p.m.hi; });
  return rows;
}

std::vector<Parameter> tile_parameters(const Problem& p, const Target& t) {
  using Values = std::vector<std::int64_t>;
  const auto isa = static_cast<Isa>(isas(t).front());
  const bool few = p.m.hi <= 16;
  Values tile_m{4, 6, 12, 8, 2, 1}, tile_n{48, 32, 16};
  if (few) tile_m = {6, 4, 12, 8, 2, 1};
  if (few && p.m.hi > 2) tile_n = {32, 48, 16};
  if (isa == Isa::avx2) tile_m = {2, 4, 6, 1}, tile_n = {32, 16};
  if (isa == Isa::portable) tile_m = {2, 4, 1}, tile_n = {48, 32, 16};
  return {
      {"isa", isas(t), ParameterStage::compile, "vector width: 512 VNNI, 256 AVX2, 0 portable"},
      {"tile_m", rows_up_to_m(tile_m, p, 1), ParameterStage::compile,
       "rows whose sums stay in registers"},
      {"tile_n", tile_n, ParameterStage::compile, "columns whose sums stay in registers"},
      {"decode", few ? Values{registers, buffer} : Values{buffer, registers},
       ParameterStage::compile, "weights decoded in registers (0) or once into a buffer (1)"},
      {"block_k", {512, 256, 1024}, ParameterStage::compile, "K that the buffer holds"},
      {"prefetch", few ? Values{4, 0, 8} : Values{0, 4, 8}, ParameterStage::compile,
       "blocks of K to fetch ahead"},
  };
}

std::string illegal_tile(const Variant& v) {
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

void add_tile(KernelText& text, const Variant& v) {
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
}

// Of AVX-512, where each row's 8 dot products, conversion, multiplication and addition of a panel's
// block share two ports with decoding, and loads come two a cycle.
double tile_cost(const Problem& p, const Target& t, const Variant& v) {
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

double starved(const Problem& p, const Variant& v, std::int64_t threads) {
  const auto parts = gemm_parts(p, v, p.batch.hi, std::max<std::int64_t>(p.m.hi, 1), p.n.hi);
  return std::max(1.0, static_cast<double>(threads > 0 ? threads : 8) / static_cast<double>(parts));
}

std::int64_t gemm_parts(const Problem& p, const Variant& v, std::int64_t batch, std::int64_t m,
                        std::int64_t n) {
  // Both halves of a split SwiGLU meet in one part.
  const auto columns = p.epilogue == Epilogue::swiglu_split ? n / 2 : n;
  return batch *
         qt::cpu::GemmParts::of(m, columns, v.value("block_m"), v.value("part_n")).per_entry();
}

}  // namespace quarterturn::cpu
