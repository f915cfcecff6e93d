// cuda_quantize: high precision to MXFP4 in one pass, packed or expanded
// (templates/cuda/quantize.h, quantize_tiles.h, quantize_squares.h); and cuda_quantize_cvt_rs, the
// same by the stochastic rounding of sm_100a and sm_103a (templates/cuda/quantize_cvt_rs.h).
#include <fmt/format.h>

#include <algorithm>

#include "generator/cuda/config_text.hpp"
#include "generator/cuda/expanded.hpp"
#include "generator/cuda/families.hpp"
#include "generator/grouping.hpp"

namespace quarterturn::cuda {
namespace {

constexpr std::int64_t kBand = 256;                 // rows whose work blocks take together
constexpr std::int64_t kBandColumns = 64;           // columns of a column-wise tile of a band
constexpr std::int64_t kSquareBytes = 32 * 33 * 4;  // of a warp of quantize_squares.h
// Of quantize_tiles.h.
constexpr std::int64_t kTileRows = 128, kTileColumns = 64;

// Whether X comes to shared memory tile by tile: not for row-wise copies alone, nor for rotations
// that are longer than a tile.
bool is_square(const Problem& p) { return p.scale_block == ScaleBlock::b32x32; }

bool tiled(const Problem& p) {
  if (is_square(p)) return false;
  return (p.copies == Copies::columns && p.rotation <= kTileRows) ||
         (p.copies == Copies::both && p.rotation <= kTileColumns);
}

bool is_gated(const Problem& p) {
  return p.prologue == Prologue::swiglu_split || p.prologue == Prologue::swiglu_interleaved;
}

// Whether threads share rows, each row waiting for what is known at its end.
bool by_teams(const Problem& p) {
  return is_expanded(p.d_layout) || p.prologue == Prologue::rmsnorm;
}

// Those teams, and the sums of squares of their rows' blocks.
struct Teams {
  ExpandedRows rows;
  bool expanded, normed;
  std::int64_t unit;
  Teams(const Problem& p, std::int64_t threads)
      : rows(p, threads),
        expanded(is_expanded(p.d_layout)),
        normed(p.prologue == Prologue::rmsnorm),
        unit(padding_unit(p)) {
    if (expanded) return;
    const auto blocks = round_up(p.k.hi, unit) / 32;
    rows.threads_per_row = threads;
    for (std::int64_t team = 32; team < threads && rows.threads_per_row == threads; team *= 2)
      if (team >= blocks) rows.threads_per_row = team;
  }
  std::int64_t shared_bytes(std::int64_t k) const {
    const auto blocks = (expanded ? rows.padded(k) : round_up(k, unit)) / 32;
    return (expanded ? rows.shared_bytes(k) : 0) + (normed ? rows.rows_of_block() * blocks * 4 : 0);
  }
};

// Tiles follow X's rows, or the longer transposed copy where tokens are grouped; those of
// quantize_tiles.h go on to rows that no group owns.
std::int64_t tiles_down(const Problem& p, const qt_args& args, std::int64_t rows) {
  if (p.grouping != Grouping::k_grouped) return ceil_div(args.m, rows);
  const bool beside = p.copies == Copies::both && tiled(p);
  return ceil_div(copy_length(p, args.m, args.groups) + (beside ? kTileRows : 0), rows);
}

// The text, and its kernel, that a problem's rounding and shape of work take.
std::string_view text_for(const Problem& p, std::string_view own) {
  if (p.a_rounding == Rounding::sr_cvt_rs) return "cuda/quantize_cvt_rs.h";
  if (p.a_rounding == Rounding::sr_cvt_scalef32) return "hip/quantize_cvt_scalef32.h";
  return own;
}

class Quantize final : public Family {
 public:
  explicit Quantize(std::optional<Rounding> instruction = {}) : instruction_(instruction) {}

  std::string_view name() const override {
    return instruction_ ? "cuda_quantize_cvt_rs" : "cuda_quantize";
  }
  Evidence evidence(const Target& target) const override {
    return instruction_ ? Evidence::documents : Family::evidence(target);
  }
  std::optional<Rounding> hardware_rounding() const override { return instruction_; }
  std::int32_t revision() const override { return 1; }
  Vendor vendor() const override { return Vendor::nvidia; }

  std::string refuses(const Problem& p, const Target& t) const override {
    if (t.vendor != Vendor::nvidia) return "runs on NVIDIA GPUs";
    if (capability(t) < 80) return "needs sm_80 or later";
    if (p.op != Op::quantize) return "quantises: op = quantize";
    if (instruction_ && p.a_rounding != *instruction_)
      return fmt::format("rounds by cvt.rs: a_rounding = {}", name_of(*instruction_));
    if (instruction_)
      if (auto reason = refuse_rounding(*instruction_, t); !reason.empty()) return reason;
    if (is_gated(p) && p.copies != Copies::rows && !tiled(p))
      return fmt::format(
          "applies SwiGLU before column copies with a rotation of up to {}, before both of up to "
          "{}",
          kTileRows, kTileColumns);
    if (p.bias_gradient != BiasGradient::none) return "sums no gradients";
    switch (p.d_layout) {
      case Layout::plain:
      case Layout::scales_128x4:
      case Layout::bf16:
        return {};
      case Layout::e5m2:
      case Layout::int8_rows:
        if (is_square(p)) return "expands 1x32 scale blocks only";
        if (p.copies != Copies::rows)
          return "expands rows only: the largest scale of a column is known after the last row";
        return refuse_length(p, t);
      default:
        return fmt::format("does not write layout {}", name_of(p.d_layout));
    }
  }

  std::vector<Parameter> parameters(const Problem& p, const Target& t) const override {
    std::vector<std::int64_t> threads = {256};
    if (p.copies == Copies::rows || is_square(p)) threads = {128, 256, 512};
    if (is_expanded(p.d_layout) && p.m.hi <= 64) threads = {512, 1024, 256};
    // The short encodings of encode.h fit 64 registers, longer rotations 80; the others, and bands,
    // need more.
    const bool fits = (p.copies == Copies::rows || tiled(p)) &&
                      (p.a_rounding == Rounding::rne || p.a_rounding == Rounding::sr16 ||
                       is_of_hardware(p.a_rounding));
    const bool longer = (p.copies == Copies::rows && p.rotation > 32) ||
                        (p.copies == Copies::both && p.rotation == 0);
    std::vector<std::int64_t> resident = {2};
    if (p.prologue != Prologue::none)
      return {{"threads", threads, ParameterStage::compile, "of a block"},
              {"resident", resident, ParameterStage::compile,
               "times 256 threads that an SM should hold: bounds their registers"}};
    if (fits) resident = {4, 3, 2};
    // Places in tiles of scales take some more, and decoding to bf16 too.
    // NVRTC 13.0 keeps a few values more for sm_120.
    const bool noisy = p.a_rounding != Rounding::rne;
    const bool tiles = noisy && p.d_layout == Layout::scales_128x4;
    const bool sm120 = noisy && capability(t) >= 120;
    if (fits && (longer || tiles || sm120)) resident = {3, 2};
    if (fits && sm120 && p.copies != Copies::rows) resident = {2};
    if (fits && longer && p.d_layout == Layout::bf16) resident = {2};
    // Row-wise work finds its row by a division, which takes registers unless it is a shift.
    const bool shifts = p.k.is_static() && (p.k.lo & (p.k.lo - 1)) == 0;
    if (fits && !longer && p.copies == Copies::rows && noisy && !is_expanded(p.d_layout) && !shifts)
      resident = {3, 2};
    // Three scales are tried on every block, whose errors are added up each.
    if (p.scale_rule == ScaleRule::search) resident = {p.copies == Copies::rows ? 2 : 1};
    if (p.scale_rule == ScaleRule::ts34 && p.rotation == 0 && resident.front() == 4)
      resident = {3, 2};
    // Masked groups' rows are counted as well.
    if (resident.front() == 3 && p.grouping == Grouping::m_masked) resident = {2};
    return {{"threads", threads, ParameterStage::compile, "of a block"},
            {"resident", resident, ParameterStage::compile,
             "times 256 threads that an SM should hold: bounds their registers"}};
  }

  std::string illegal(const Problem& p, const Target& t, const Variant& v) const override {
    const auto threads = v.value("threads");
    if (threads > 512 && v.value("resident") < 4) return "1024 threads have 64 registers each";
    if (by_teams(p) && Teams(p, threads).shared_bytes(p.k.hi) > t.shared_bytes)
      return "its rows do not fit shared memory";
    return {};
  }

  Source emit(const Problem& p, const Target& t, const Variant& v) const override {
    const std::string name =
        fmt::format("quarterturn_quantize_{}_{}_{}_{}_{}_{}", name_of(p.copies), name_of(p.a_type),
                    is_square(p) ? "squares" : fmt::format("h{}", p.rotation),
                    name_of(p.scale_rule), name_of(p.a_rounding), name_of(p.d_layout));
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
    text.grouping(p);
    text.dimension("k", p.k);
    const auto threads = v.value("threads");
    text.integer("threads", threads, "of a block");
    if (by_teams(p))
      text.integer("threads_per_row", Teams(p, threads).rows.threads_per_row, "that share a row");
    if (!is_square(p)) choice("Prologue", "prologue", name_of(p.prologue), "applied to X first");
    const auto blocks = std::max<std::int64_t>(1, v.value("resident") * 256 / threads);
    const EntryShape entry{name, static_cast<int>(threads), static_cast<int>(blocks), {}};
    if (is_square(p))
      return text.source(p, t, v, text_for(p, "cuda/quantize_squares.h"), "quantize_squares",
                         entry);
    if (tiled(p))
      return text.source(p, t, v, text_for(p, "cuda/quantize_tiles.h"), "quantize_tiles", entry);
    return text.source(p, t, v, text_for(p, "cuda/quantize.h"), "quantize", entry);
  }

  Launch launch(const Problem& p, const Variant& v, const qt_args& args,
                std::int64_t units) const override {
    Launch out;
    out.block = {static_cast<std::uint32_t>(v.value("threads")), 1, 1};
    std::int64_t blocks = 0;
    if (by_teams(p)) {
      const Teams teams(p, v.value("threads"));
      blocks = ceil_div(args.m, teams.rows.rows_of_block());
      out.shared_bytes = teams.shared_bytes(args.k);
    } else if (is_square(p)) {
      const auto warps = v.value("threads") / 32;
      blocks = ceil_div(ceil_div(args.m, 32) * ceil_div(args.k, 32), warps);
      if (p.copies != Copies::rows) out.shared_bytes = warps * kSquareBytes;
    } else if (tiled(p)) {
      const auto all = tiles_down(p, args, kTileRows) * ceil_div(args.k, kTileColumns);
      blocks = std::min(all, units * v.value("resident"));
      const auto held = bytes_of(is_gated(p) ? DType::f32 : p.a_type);
      out.shared_bytes = 2 * kTileRows * kTileColumns * held;
    } else {
      const auto k32 = round_up(args.k, padding_unit(p)) / 32;
      const auto row_parts =
          p.copies == Copies::columns ? 0 : ceil_div(kBand * k32, 2 * v.value("threads"));
      const auto column_parts = p.copies == Copies::rows ? 0 : ceil_div(args.k, kBandColumns);
      blocks = tiles_down(p, args, kBand) * (row_parts + column_parts);
      if (column_parts > 0) out.shared_bytes = kBand * kBandColumns * bytes_of(p.a_type);
    }
    out.grid = {static_cast<std::uint32_t>(blocks), 1, static_cast<std::uint32_t>(args.batch)};
    return out;
  }

  double predicted_cost(const Problem& p, const Target&, const Variant& v,
                        std::int64_t) const override {
    const double elements = static_cast<double>(std::max<std::int64_t>(p.m.hi, 1)) *
                            static_cast<double>(std::max<std::int64_t>(p.k.hi, 1));
    const double copies = p.copies == Copies::both ? 2.0 : 1.0;
    const auto& axes = parameters(p, {});
    double factor = 1.0;
    for (const auto& axis : axes)
      if (v.value(axis.name) != axis.values.front()) factor += 0.01;
    return elements * copies * factor * 1e-3;
  }

 private:
  std::optional<Rounding> instruction_;
};

}  // namespace

const Family& quantize() {
  static const Quantize family;
  return family;
}

const Family& quantize_cvt_rs() {
  static const Quantize family(Rounding::sr_cvt_rs);
  return family;
}

}  // namespace quarterturn::cuda
